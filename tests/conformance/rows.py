"""The rows of the conformance table: an operation of another system, and the test that shows it here.

    @row("RSMQ", "sendMessage")
    def test_a_message_is_sent(caller: Caller) -> None: …

A test may show several operations; an operation may have several tests, which then are a row each.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final, TypeVar

import pytest

__all__ = ["SYSTEMS", "Collector", "Row", "row"]

F = TypeVar("F", bound=Callable[..., Any])

#: In the order of the table.
SYSTEMS: Final = ("prototype", "RSMQ", "backup queue", "RedisMQ", "Disque")
_ATTRIBUTE: Final = "conformance_rows"


@dataclass
class Row:
    """One operation of a system, its test, and what came of it: passed if every case of the test did."""

    system: str
    operation: str
    test: str
    cases: int = 0
    failures: int = 0

    @property
    def passed(self) -> bool:
        """Whether all cases ran and passed; a skipped one shows nothing."""
        return self.cases > 0 and self.failures == 0


def row(system: str, operation: str) -> Callable[[F], F]:
    """Say that a test shows an operation of a system."""
    if system not in SYSTEMS:
        raise ValueError(f"{system!r} is no system of the table: {', '.join(SYSTEMS)}")

    def mark(function: F) -> F:
        marks = getattr(function, _ATTRIBUTE, ())
        setattr(function, _ATTRIBUTE, ((system, operation), *marks))
        return function

    return mark


class Collector:
    """A pytest plugin that notes what came of each row."""

    def __init__(self) -> None:
        self._rows: dict[str, list[Row]] = {}

    def rows(self) -> list[Row]:
        """List the rows by system, in the order of their tests."""
        rows = [each for rows in self._rows.values() for each in rows]
        return sorted(rows, key=lambda each: SYSTEMS.index(each.system))

    def pytest_collection_modifyitems(self, items: list[pytest.Item]) -> None:
        """Make the rows of the tests found."""
        for item in items:
            marks = getattr(getattr(item, "function", None), _ATTRIBUTE, ())
            name = item.nodeid.partition("[")[0]
            self._rows.setdefault(name, [Row(*mark, name) for mark in marks])

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Note one phase of one case."""
        for each in self._rows.get(report.nodeid.partition("[")[0], ()):
            each.cases += report.when == "call"
            each.failures += not report.passed
