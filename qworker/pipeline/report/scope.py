"""What a report covers."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Final

from qworker.pipeline.report import message_counts

__all__ = ["DEFAULT_TARGET_MS", "Scope", "in_ms"]

DEFAULT_TARGET_MS: Final = 10_000.0


@dataclass(frozen=True, slots=True)
class Scope:
    """What a report covers. `source`: where its events come from, in words. `targets_ms`: queue → target of its SLA."""

    namespace: str
    source: str
    since: datetime | None = None
    until: datetime | None = None
    targets_ms: Mapping[str, float] = field(default_factory=dict)
    default_target_ms: float = DEFAULT_TARGET_MS

    @property
    def targets(self) -> message_counts.Targets:
        """Targets by queue, and of the others."""
        return dict(self.targets_ms), self.default_target_ms


def in_ms(moment: datetime | None) -> int | None:
    """Write a time as ms since 1970."""
    return None if moment is None else round(moment.timestamp() * 1000)
