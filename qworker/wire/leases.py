"""What a lease holds, as the server stores it: see `lua/lib/lease.lua`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import msgspec

__all__ = ["held_items"]

#: The field of messages that were delivered together, as long as none of them was settled by itself.
_BATCH: Final = b"batch"
_DECODER: Final = msgspec.msgpack.Decoder(list[msgspec.Raw])
#: Bytes before the text of a MessagePack string or binary, by its first byte; those with a short text are 0xA0-0xBF.
_HEADS: Final = {0xC4: 2, 0xC5: 3, 0xC6: 5, 0xD9: 2, 0xDA: 3, 0xDB: 5}


def held_items(flat: Sequence[bytes]) -> list[tuple[bytes, bytes]]:
    """Read the HASH of a lease, given flat as `HGETALL` answers; returns (index, item) in no certain order.

    What anybody wrote there beside the messages comes out as it is.
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
    """The items of a MessagePack array of strings; None where it is anything else."""
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
