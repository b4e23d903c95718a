"""Rows that tests of workers share. By day each such test has the first; the others vary it, at night."""

from __future__ import annotations

from typing import Final

import pytest

__all__ = ["EXECUTORS", "STARTS"]

#: How a worker starts: forked from a process that has imported its modules, or by exec, as outside of tests.
STARTS: Final = (
    "forked",
    pytest.param("started", marks=[pytest.mark.cold, pytest.mark.nightly]),
)
#: The flags of a worker, by what runs its handlers.
EXECUTORS: Final = (
    pytest.param((), id="inline"),
    pytest.param(("--concurrency", "4"), marks=pytest.mark.nightly, id="threads"),
)
