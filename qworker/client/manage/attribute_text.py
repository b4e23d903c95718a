"""Attributes of a queue as people write and read them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final, NamedTuple

from qworker.config.fields import kinds_of, unknown_option
from qworker.config.kinds import DurationKind, Kind, SizeKind
from qworker.durations import duration_ms
from qworker.engine.options import QueueAttributes
from qworker.errors import InvalidError, InvalidOptionError, shown

__all__ = ["Attribute", "Changes", "is_attribute", "parse_settings", "read_attributes"]

_DEFAULT: Final = "default"


class Attribute(NamedTuple):
    """One attribute: its text for people, its value in base units (seconds, bytes), whether the queue sets it.

    `problem` is not empty if the stored value is invalid; then the default counts.
    """

    name: str
    text: str
    field: str
    value: float | int
    is_set: bool
    problem: str = ""


class Changes(NamedTuple):
    """The changes of `queue set`: fields of `meta` ('' removes one), and the same for people and programs."""

    meta: dict[str, str]
    texts: list[str]
    document: dict[str, Any]


def is_attribute(key: str) -> bool:
    """Whether a key, as people write it, names an attribute."""
    return key.replace("-", "_") in kinds_of(QueueAttributes)


def parse_settings(settings: Sequence[str]) -> Changes:
    """Read KEY=VALUE words. Raises `InvalidOptionError` naming the key, before anything is changed."""
    kinds = kinds_of(QueueAttributes)
    changes = Changes({}, [], {})
    for setting in settings:
        key, equals, text = setting.partition("=")
        name = key.replace("-", "_")
        if not key:
            raise InvalidOptionError(
                "KEY=VALUE",
                f"{shown(setting)} names no attribute",
                "write one, such as visibility=30s",
            )
        if name not in kinds:
            raise unknown_option(shown(key)[1:-1], key, map(_shown, kinds))
        if not equals:
            raise InvalidOptionError(key, "has no value", f"write {key}=VALUE or {key}={_DEFAULT}")
        kind = kinds[name]
        stored = _stored(name, kind)
        if stored in changes.meta:
            raise InvalidOptionError(key, "is given twice", "write it once")
        if text == _DEFAULT:
            attribute = _attribute(name, kind, getattr(QueueAttributes(), name), is_set=False)
            changes.meta[stored] = ""
        else:
            value = kind.parse(text, key)
            attribute = _attribute(name, kind, value, is_set=True)
            changes.meta[stored] = QueueAttributes(**{name: value}).meta()[stored]
        default = "" if attribute.is_set else f" ({_DEFAULT})"
        changes.texts.append(f"{attribute.name} is {attribute.text}{default}")
        changes.document[attribute.field] = attribute.value
    return changes


def read_attributes(meta: Mapping[str, str]) -> list[Attribute]:
    """Read the attributes from a `meta` hash; the defaults for missing and invalid ones."""
    attributes = []
    for name, kind in kinds_of(QueueAttributes).items():
        default, text = getattr(QueueAttributes(), name), meta.get(_stored(name, kind))
        if text is None:
            attributes.append(_attribute(name, kind, default, is_set=False))
            continue
        try:
            value = kind.parse(f"{text}ms" if isinstance(kind, DurationKind) else text, name)
            attributes.append(_attribute(name, kind, value, is_set=True))
        except InvalidError as error:
            problem = f"stored is {ascii(text)[:40]}, which {error.limit}"
            attributes.append(
                _attribute(name, kind, default, is_set=False)._replace(problem=problem)
            )
    return attributes


def _attribute(name: str, kind: Kind, value: Any, *, is_set: bool) -> Attribute:
    text, field, base = kind.show(value), name, value
    if isinstance(kind, DurationKind):
        field, base = f"{name}_seconds", duration_ms(value, name) / 1000
    elif isinstance(kind, SizeKind):
        field = f"{name}_bytes"
    if kind.zero and base == 0:
        text = f"0 ({kind.zero})"
    return Attribute(_shown(name), text, field, base, is_set)


def _stored(name: str, kind: Kind) -> str:
    return f"{name}_ms" if isinstance(kind, DurationKind) else name


def _shown(name: str) -> str:
    return name.replace("_", "-")
