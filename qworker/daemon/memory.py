"""How full the server is: the memory that it uses, and its maxmemory."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from qworker.store.nodes import Address

__all__ = ["NEARLY_FULL", "MemoryUse"]

#: Share of maxmemory from which a server counts as nearly full.
NEARLY_FULL: Final = 0.9
#: A server that refuses sends uses a little less than its limit until the next one comes.
_FULL: Final = 0.99


@dataclass(frozen=True, slots=True)
class MemoryUse:
    """The memory of one server. `limit_bytes`: 0 is unlimited. `refused`: calls since its start, for lack of memory."""

    node: Address
    used_bytes: int
    limit_bytes: int
    refused: int = 0

    @classmethod
    def of(cls, node: Address, info: Mapping[str, str]) -> MemoryUse:
        """Read the section memory of INFO; errorstats, where it is there, for what was refused."""
        used, limit = int(info.get("used_memory", 0)), int(info.get("maxmemory", 0))
        counted = info.get("errorstat_OOM", "").removeprefix("count=")
        return cls(node, used, limit, int(counted) if counted.isdecimal() else 0)

    @property
    def ratio(self) -> float | None:
        """The used share of the limit; None without a limit."""
        return self.used_bytes / self.limit_bytes if self.limit_bytes else None

    @property
    def full(self) -> bool:
        """Whether it refuses sends now."""
        ratio = self.ratio or 0.0
        return ratio >= 1 or (self.refused > 0 and ratio >= _FULL)
