"""The finding of a check of `qworker doctor`.

ok        nothing to do
warning   works; look at it during the day
problem   messages are lost, stuck or refused: act now
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from enum import Enum
from typing import Any, Final

from qworker.formats import safe

__all__ = [
    "FIX_AWAY",
    "FIX_BROKEN",
    "LONG_RUN_S",
    "Finding",
    "Status",
    "counted",
    "largest",
    "listed",
]

_NAMED: Final = 5

#: What to do about a node of a Cluster that is away.
FIX_AWAY: Final = (
    "start that node, or let its replica take over: CLUSTER NODES shows both; if no node has the slot: "
    "redis-cli --cluster fix HOST:PORT"
)

#: What to do about a key of another type.
FIX_BROKEN: Final = "inspect that key, then RENAME or DEL it in redis-cli; the rest is untouched"

#: Handlers that have run for this long are named.
LONG_RUN_S: Final = 180.0


class Status(Enum):
    """How bad a finding is."""

    OK = "ok"
    WARNING = "warning"
    PROBLEM = "problem"


@dataclass(frozen=True, slots=True)
class Finding:
    """A check's result as a sentence, and what to do next ('' for ok)."""

    check: str
    status: Status
    text: str
    fix: str = ""

    def document(self) -> dict[str, Any]:
        """Return it for `--json`."""
        return {**asdict(self), "status": self.status.value}


def largest(numbers: Mapping[str, float]) -> list[tuple[str, Any]]:
    """Sort names and numbers, largest number first."""
    return sorted(numbers.items(), key=lambda pair: -pair[1])


def counted(numbers: Mapping[str, int]) -> str:
    """Write names with their numbers, largest first, as `listed` does."""
    return listed([f"{name} {number:,}" for name, number in largest(numbers)])


def listed(parts: list[str]) -> str:
    """Join the first five, and count the rest."""
    more = f" and {len(parts) - _NAMED} more" if len(parts) > _NAMED else ""
    return safe(", ".join(parts[:_NAMED])) + more
