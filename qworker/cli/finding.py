"""What a check of `qworker doctor` found.

ok        nothing to do
warning   works, and somebody should look at it by day
problem   messages are lost, stuck or refused: now
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from enum import Enum
from typing import Any, Final

from qworker.cli.formats import safe

__all__ = ["Finding", "Status", "largest", "listed"]

_NAMED: Final = 5


class Status(Enum):
    """How bad a finding is."""

    OK = "ok"
    WARNING = "warning"
    PROBLEM = "problem"


@dataclass(frozen=True, slots=True)
class Finding:
    """What a check found: a sentence, and what to do next ('' for ok)."""

    check: str
    status: Status
    text: str
    fix: str = ""

    def document(self) -> dict[str, Any]:
        """Write it for programs."""
        return {**asdict(self), "status": self.status.value}


def largest(numbers: Mapping[str, float]) -> list[tuple[str, Any]]:
    """Put the largest numbers first."""
    return sorted(numbers.items(), key=lambda pair: -pair[1])


def listed(parts: list[str]) -> str:
    """Name the first five, and say how many more there are."""
    more = f" and {len(parts) - _NAMED} more" if len(parts) > _NAMED else ""
    return safe(", ".join(parts[:_NAMED])) + more
