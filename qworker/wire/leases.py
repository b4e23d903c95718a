"""The stored form of leases (see `lua/lib/lease.lua`)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import msgspec

__all__ = ["held_items"]

#: The field for messages that were delivered together, until one of them is settled alone.
_BATCH: Final = b"batch"
_DECODER: Final = msgspec.msgpack.Decoder(list[msgspec.Raw])
#: Length of the head of a MessagePack string or binary, by its first byte; 0xA0-0xBF are short strings.
_HEADS: Final = {0xC4: 2, 0xC5: 3, 0xC6: 5, 0xD9: 2, 0xDA: 3, 0xDB: 5}


def held_items(flat: Sequence[bytes]) -> list[tuple[bytes, bytes]]:
    """Read the HASH of a lease from the flat reply of `HGETALL`; returns (index, item) in any order.

    Returns foreign fields unchanged.
    """
    held: list[tuple[bytes, bytes]] = []
    for field, value in zip(flat[::2], flat[1::2], strict=True):
        items = _unpacked(value) if field == _BATCH else None
        if items is None:
            held.append((field, value))
        else:
            held += ((b"%d" % number, item) for number, item in enumerate(items, 1))
    return held


def _unpacked(batch: bytes) -> list[bytes] | None:
    """Return the items of a MessagePack array of strings; None for anything else."""
    try:
        raws = _DECODER.decode(batch)
    except msgspec.DecodeError:
        return None
    items = []
    for raw in map(bytes, raws):
        first = raw[0]
        head = 1 if 0xA0 <= first <= 0xBF else _HEADS.get(first)
        if head is None:
            return None
        items.append(raw[head:])
    return items or None
