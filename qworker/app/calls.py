"""Reads the bodies of calls whole: one decoder for all tasks finds the task by its name and converts its arguments."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, Generic, TypeVar, Union

import msgspec
from msgspec.structs import astuple

from qworker.app.arguments import NO_KWARGS, Signature
from qworker.wire.codec import SHORT, is_too_deep

if TYPE_CHECKING:
    from qworker.app.arguments import CallByPosition

__all__ = ["Calls"]

Owner = TypeVar("Owner")


class Calls(Generic[Owner]):
    """The calls by position of some signatures, each with its owner, as one tagged union of msgspec.

    A call takes one decoding instead of three (body, arguments, their types). It only saves time: what is none of these
    calls, or does not fit its signature, is left to `Signature.decode`, which says what is wrong with it.
    """

    def __init__(self, signatures: Mapping[Signature, Owner]) -> None:
        self._owners = {
            signature.call_type: owner
            for signature, owner in signatures.items()
            if signature.call_type is not None
        }
        types: Any = Union[tuple(self._owners)] if self._owners else None  # noqa: UP007
        self._decode: Callable[[bytes], CallByPosition] = msgspec.json.Decoder(types).decode

    def read(self, body: bytes) -> tuple[Owner, tuple[Any, ...]] | None:
        """Return the owner and the arguments of a call; None for what is left to the signature. Raises nothing."""
        try:
            call = self._decode(body)
            if call.kwargs is not NO_KWARGS or (len(body) > SHORT and is_too_deep(body)):
                return None
            return self._owners[type(call)], astuple(call.args)
        except BaseException:  # noqa: BLE001 - code of the caller's own types: run again where errors have names
            return None
