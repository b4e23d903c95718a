"""Dead letters with the same error, as one group."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from qworker.client.dead.fingerprint import error_pattern, fingerprint
from qworker.client.message import DeadLetter

__all__ = ["ErrorGroup", "group_by_error"]


@dataclass(slots=True)
class ErrorGroup:
    """Dead letters with one fingerprint; `letter` is the newest. Times of death in ms."""

    fingerprint: str
    letter: DeadLetter
    pattern: str
    count: int = 0
    first_ms: int = 0
    died: list[int] = field(default_factory=list)


def group_by_error(found: Iterable[DeadLetter]) -> dict[str, ErrorGroup]:
    """Group dead letters, which come the newest first, by fingerprint."""
    groups: dict[str, ErrorGroup] = {}
    for one in found:
        name = fingerprint(one)
        group = groups.get(name)
        if group is None:
            group = groups[name] = ErrorGroup(name, one, error_pattern(one))
        group.count += 1
        group.first_ms = one.died_ms
        group.died.append(one.died_ms)
    return groups
