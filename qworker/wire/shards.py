"""How a queue is divided into shards: places with keys of their own, which a Cluster keeps on several nodes.

The first shard has the queue's own name and keys, so a queue that is not divided has one shard, and may be divided any
time. The others are `queue/1`, `queue/2` …
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any, Final
from zlib import crc32

from qworker.wire.names import MAX_SHARDS, place_name

__all__ = ["WHOLE", "Shards"]

_WRITTEN: Final = re.compile(rb"(\d{1,2})(?: (\d{1,2}) (\d{1,15}))?")


@dataclass(frozen=True, slots=True)
class Shards:
    """Messages are sent to the shards before `active`, and may be in all before `kept`: the others are to run empty.

    `epoch` grows with every change; of two that are told the later one holds.
    """

    active: int = 1
    kept: int = 1
    epoch: int = 0

    @classmethod
    def parse(cls, written: Any) -> Shards | None:
        """Read what the registry says of a queue; None where it says nothing that is meant so."""
        match = _WRITTEN.fullmatch(written) if isinstance(written, bytes) else None
        if match is None:
            return None
        active = int(match[1])
        kept, epoch = int(match[2] or active), int(match[3] or 0)
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


#: A queue that is not divided.
WHOLE: Final = Shards()
