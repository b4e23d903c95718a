"""Time for the long form, and what the properties run against."""

from __future__ import annotations

import pytest

from tests.fuzz.exploring import SECONDS


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Let the long form run for as long as it was asked to, and shrink what it finds."""
    for item in items:
        if SECONDS and "tests/fuzz" in item.path.as_posix():
            item.add_marker(pytest.mark.timeout(SECONDS + 600))
