"""How a queue is divided into shards: places with keys of their own, which a Cluster keeps on several nodes.

The first shard has the queue's own name and keys, so a queue that is not divided has one shard, and may be divided any
time. The others are `queue/1`, `queue/2` … The queue's own `meta` says into how many it is divided; the `meta` of each
other shard has a mark, by which it takes what is sent, or refuses it.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any, Final
from zlib import crc32

from qworker.wire.names import MAX_SHARDS, place_name

__all__ = ["UNMARKED", "WHOLE", "Mark", "Shards"]

_WRITTEN: Final = re.compile(rb"(\d{1,2}) (\d{1,2}) (\d{1,16})")
_MARKED: Final = re.compile(rb"(open|draining) (\d{1,2}) (\d{1,16})")


@dataclass(frozen=True, slots=True)
class Shards:
    """Messages are sent to the shards before `active`, and may be in all before `kept`: the others are to run empty.

    `epoch`: when it was divided so, in ms by the clock of the queue's server; it grows with every change. 0: never.
    """

    active: int = 1
    kept: int = 1
    epoch: int = 0

    @classmethod
    def parse(cls, written: Any) -> Shards | None:
        """Read the field `shards` of a queue's meta; None where it says nothing that is meant so."""
        match = _WRITTEN.fullmatch(written) if isinstance(written, bytes) else None
        if match is None:
            return None
        active, kept, epoch = (int(match[group]) for group in (1, 2, 3))
        return cls(active, kept, epoch) if 1 <= active <= kept <= MAX_SHARDS else None

    @property
    def divided(self) -> bool:
        """Whether there is more than one shard."""
        return self.kept > 1

    def of_key(self, unique: str) -> int:
        """Choose the shard of a unique key: the same one for all senders, as long as the number is the same."""
        return crc32(unique.encode("utf-8", "surrogatepass")) % self.active

    def names(self, queue: str) -> list[str]:
        """Name all shards that may hold messages."""
        return [place_name(queue, number) for number in range(self.kept)]


@dataclass(frozen=True, slots=True)
class Mark:
    """What a shard beside the first one says of itself: whether it is `open` to what is sent, and since which division.

    `active` and `epoch` are those of the division that opened it or lets it run empty; 0 where none has.
    """

    open: bool = False
    active: int = 1
    epoch: int = 0

    @classmethod
    def parse(cls, written: Any) -> Mark:
        """Read the field `shard` of a shard's meta; one that says nothing that is meant so takes no message."""
        match = _MARKED.fullmatch(written) if isinstance(written, bytes) else None
        if match is None or not 1 <= int(match[2]) <= MAX_SHARDS:
            return UNMARKED
        return cls(match[1] == b"open", int(match[2]), int(match[3]))


#: A queue that is not divided.
WHOLE: Final = Shards()
#: A shard that was never opened, or is removed.
UNMARKED: Final = Mark()
