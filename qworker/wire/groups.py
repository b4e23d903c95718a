"""Names of groups, of messages that take turns or share limits; and the slots of their deliveries."""

from __future__ import annotations

import re
from typing import Final

import msgspec

__all__ = [
    "MAX_GROUP",
    "ORDERED",
    "flag_of",
    "is_group",
    "is_limit",
    "parent_of",
    "shown",
    "slots_of",
]

#: Bytes of a name.
MAX_GROUP: Final = 256
#: Marks an ordered group where it is stored.
ORDERED: Final = "="
_GROUP: Final = re.compile(r"[^/=*][^/*]*(/[^/*]+)?")
_LIMIT: Final = re.compile(r"[^/=*][^/*]*(/([^/*]+|\*)?)?|\*/?")


def is_group(name: str) -> bool:
    """Say whether messages can be in a group of this name."""
    return _fits(name) and _GROUP.fullmatch(name) is not None


def is_limit(name: str) -> bool:
    """Say whether limits can have this name: a group, `acme/` for all under it, `acme/*`, `*`, `*/`."""
    return _fits(name) and _LIMIT.fullmatch(name) is not None


def _fits(name: str) -> bool:
    try:
        size = len(name.encode())
    except UnicodeEncodeError:
        return False
    return size <= MAX_GROUP and name.isprintable()


def flag_of(group: str, ordered: bool) -> str:
    """Return the group as messages and scripts name it."""
    return ORDERED + group if ordered else group


def parent_of(name: str) -> str:
    """Return the part of a stored name that a group shares with others of its parent; decides its shard."""
    return name.removeprefix(ORDERED).partition("/")[0]


def shown(name: str) -> str:
    """Return a stored name for display."""
    return f"{name[1:]} (ordered)" if name.startswith(ORDERED) else name


def slots_of(field: bytes, value: bytes) -> dict[str, str]:
    """Return the slots that a field of `slots` stands for: `<lease>:<index>` of a delivery, or `:<id>` → stored name.

    Those of a batch share a field; none if another program wrote into it.
    """
    name = field.decode("utf-8", "replace")
    if ":" in name:
        return {name: value.decode("utf-8", "replace")}
    try:
        groups = msgspec.msgpack.decode(value, type=list[str | bool])
    except (msgspec.DecodeError, UnicodeDecodeError):
        return {}
    return {
        f"{name}:{index}": group for index, group in enumerate(groups, 1) if isinstance(group, str)
    }
