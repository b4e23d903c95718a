"""The result of an import."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from qworker.importers.mover import MoveCounts
from qworker.importers.survey import Survey

__all__ = ["Import"]


@dataclass(slots=True)
class Import:
    """The result of an import, by queue of the source. `into`: source queue → ours; `attributes`: those taken over."""

    system: str
    server: str
    into: dict[str, str]
    surveys: dict[str, Survey] = field(default_factory=dict)
    attributes: dict[str, dict[str, str]] = field(default_factory=dict)
    moved: dict[str, MoveCounts] = field(default_factory=dict)
    tasks: Mapping[str, str] = field(default_factory=dict)

    @property
    def movable(self) -> int:
        """Messages that can be moved."""
        return sum(survey.movable for survey in self.surveys.values())

    @property
    def total(self) -> MoveCounts:
        """The numbers of all queues."""
        return sum(self.moved.values(), MoveCounts())

    @property
    def refused(self) -> int:
        """Messages that cannot be moved."""
        return sum(survey.reasons.total() for survey in self.surveys.values())
