"""How a queue is divided into shards, each with its own keys, which a Cluster spreads over its nodes.

The first shard has the queue's own name and keys: a queue that is not divided has one shard, and can be divided at any
time. The others are `queue/1`, `queue/2` … The queue's `meta` says how many there are; the `meta` of every other shard
has a mark, by which it accepts or refuses sends.
"""

from __future__ import annotations

import re
from typing import Any, Final
from zlib import crc32

import msgspec

from qworker.wire.names import MAX_SHARDS, shard_name

__all__ = ["UNMARKED", "WHOLE", "ReshardMark", "Shards"]

_WRITTEN: Final = re.compile(rb"(\d{1,2}) (\d{1,2}) (\d{1,16})")
_MARKED: Final = re.compile(rb"(open|draining) (\d{1,2}) (\d{1,16})")


class Shards(msgspec.Struct, frozen=True):
    """Shards 0 to `active` - 1 take messages; those up to `kept` - 1 are draining.

    `epoch`: when the queue got this division, in ms by its server's clock; grows with every change. 0: never divided.
    """

    active: int = 1
    kept: int = 1
    epoch: int = 0

    @classmethod
    def parse(cls, written: Any) -> Shards | None:
        """Read the field `shards` of a queue's meta; None for anything else."""
        match = _WRITTEN.fullmatch(written) if isinstance(written, bytes) else None
        if match is None:
            return None
        active, kept, epoch = (int(match[group]) for group in (1, 2, 3))
        return cls(active, kept, epoch) if 1 <= active <= kept <= MAX_SHARDS else None

    @property
    def divided(self) -> bool:
        """Whether the queue has more than one shard."""
        return self.kept > 1

    def of_key(self, unique: str) -> int:
        """Return the shard of a unique key: the same for all senders, while `active` does not change."""
        return crc32(unique.encode("utf-8", "surrogatepass")) % self.active

    def names(self, queue: str) -> list[str]:
        """Return the names of all shards that may have messages."""
        return [shard_name(queue, number) for number in range(self.kept)]


class ReshardMark(msgspec.Struct, frozen=True):
    """Whether a shard other than the first accepts sends, and `active` and `epoch` of the reshard that set it.

    `epoch` 0: the shard was never opened, or was removed.
    """

    open: bool = False
    active: int = 1
    epoch: int = 0

    @classmethod
    def parse(cls, written: Any) -> ReshardMark:
        """Read the field `shard` of a shard's meta; anything else is `UNMARKED`, which accepts no sends."""
        match = _MARKED.fullmatch(written) if isinstance(written, bytes) else None
        if match is None or not 1 <= int(match[2]) <= MAX_SHARDS:
            return UNMARKED
        return cls(match[1] == b"open", int(match[2]), int(match[3]))


#: A queue that is not divided.
WHOLE: Final = Shards()
#: A shard that was never opened, or was removed.
UNMARKED: Final = ReshardMark()
