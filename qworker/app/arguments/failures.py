"""Members of groups of calls that have failed, as their callbacks get them."""

from __future__ import annotations

import typing
from collections.abc import Callable, Sequence
from types import UnionType
from typing import Any

import msgspec
from msgspec import Raw

__all__ = ["Failure", "among_failures", "decoder_among_failures", "is_failure", "takes_failures"]


class Failure(msgspec.Struct, frozen=True, tag_field="qworker", tag="failure"):
    """A member of a group of calls that has no value: the callback gets it in the place of one.

    `state` is dead, cancelled, discarded, expired or purged. For a dead letter, `reason` says why it died, `error` is
    the class of its error and `text` the rest. `queue`, `task` and `message_id` name the message that ended in this
    way.
    """

    state: str
    reason: str = ""
    error: str = ""
    text: str = ""
    queue: str = ""
    task: str = ""
    message_id: str = ""


_FAILURE = msgspec.json.Decoder(Failure)
_ITEMS = msgspec.json.Decoder(list[Raw])
_LISTS = (list, Sequence)


def among_failures(annotation: Any) -> tuple[Any, bool]:
    """Find `list[T | Failure]`: returns T and True, else the annotation and False. Of `list[Failure]` T is Failure."""
    if typing.get_origin(annotation) not in _LISTS:
        return annotation, False
    (item,) = typing.get_args(annotation)
    if item is Failure:
        return Failure, True
    if not isinstance(item, UnionType) and typing.get_origin(item) is not typing.Union:
        return annotation, False
    members = typing.get_args(item)
    if Failure not in members:
        return annotation, False
    others = tuple(member for member in members if member is not Failure)
    return typing.Union[others], True  # noqa: UP007 - of a tuple


def decoder_among_failures(decode: Callable[[Raw], Any]) -> Callable[[Raw], Any]:
    """Make a decoder of a list whose items are failures, or what `decode` reads."""

    def read(raw: Raw) -> list[Any]:
        return [
            _FAILURE.decode(item) if is_failure(item) else decode(item)
            for item in _ITEMS.decode(raw)
        ]

    return read


def is_failure(raw: Raw) -> bool:
    """Whether a JSON value is a failure, by its tag."""
    data = bytes(raw)
    if data[:1] != b"{" or b'"qworker"' not in data:
        return False
    try:
        _FAILURE.decode(data)
    except (ValueError, msgspec.MsgspecError):
        return False
    return True


def takes_failures(annotation: Any) -> bool:
    """Whether a parameter of this type takes a list with failures."""
    if annotation is Any or annotation is list or annotation in (list[Any], Sequence[Any]):
        return True
    return among_failures(annotation)[1]
