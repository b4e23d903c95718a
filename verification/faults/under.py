"""Faults of single messages, played under another load: of flows, groups or crowds."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Final

from verification.faults import built, consumers, network, reapers, servers, surroundings, topology
from verification.faults.load import Load
from verification.faults.row import Bound, Row

__all__ = ["COMMON", "SINGLE", "under"]

#: The faults of single messages by name.
SINGLE: Final = {
    row.name: row
    for module in (consumers, reapers, servers, network, surroundings, built, topology)
    for row in module.ROWS
}
#: Those that other loads go through as well.
COMMON: Final = (
    "F1", "F1t", "F1w", "F2", "F2w", "F3", "F5", "F7", "F9", "F9c", "F15", "F17", "F18", "F20",
    "F21", "F21a", "F23", "F24", "F25", "F26d", "F26l", "F26r", "F27", "F28s", "F31", "F32",
    "F40b", "F46",
)  # fmt: skip
#: What a failover takes or undoes stays bounded.
_FORGIVEN: Final = ("taken", "undone")
#: Figures that only the load of single messages produces.
_OF_MESSAGES: Final = ("held_again", "stale_acks")


def under(
    row: Row, name: str, load: Load, figures: Callable[[Path], Mapping[str, float]], *bounds: Bound
) -> Row:
    """Play the course of a row under another load, of which `figures` reads what `bounds` ask for."""
    kept = [
        bound
        for bound in row.bounds
        if (bound.sign == "≥" and bound.figure not in _OF_MESSAGES) or bound.figure in _FORGIVEN
    ]
    return replace(
        row, name=name, load=load, bounds=(*kept, *bounds), figures=figures, commit_s=0.0
    )
