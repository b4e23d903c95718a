"""A run of quick tests fails for one that is not: its loop is minutes for all who wait for it.

Counted is the CPU time of the test's process, not the time that passes, which says more about the machine. Beside
others, on threads of one core, it may be three times as long as alone; imports of a first test count as well. So the
bound is far above the rule, a tenth of a second alone: who passes it is slow on any machine.
"""

from __future__ import annotations

import time
from collections.abc import Generator
from typing import Final

import pytest

from tests import late

__all__ = ["MAX_S", "pytest_runtest_call"]

MAX_S: Final = 4.0


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call(item: pytest.Item) -> Generator[None, object, object]:
    """Fail a test that computes for too long in a run that leaves the slow ones out."""
    begun = time.process_time()
    result = yield
    took = time.process_time() - begun
    if took > MAX_S and late.quick(item.config):
        pytest.fail(f"took {took:.1f} s of CPU: make it cheaper, or mark it slow", pytrace=False)
    return result
