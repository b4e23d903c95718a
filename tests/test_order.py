"""What `tests.conftest` does to a run: the order of its tests, and what the processes that they start import."""

from __future__ import annotations

import importlib
import subprocess
import sys
from typing import cast

import pytest

from tests.conftest import check_group, slow_first


class Item:
    """A test, slow or quick, perhaps in groups."""

    def __init__(self, name: str, *groups: str) -> None:
        self.name = self.nodeid = name
        self.groups = groups

    def iter_markers(self, name: str) -> list[pytest.Mark]:
        assert name == "xdist_group"
        return [pytest.mark.xdist_group(group).mark for group in self.groups]

    def get_closest_marker(self, name: str) -> str | None:
        return name if name == self.name[:4] else None


def ordered(*names: str) -> list[str]:
    items = slow_first([cast(pytest.Item, Item(name)) for name in names])
    return [item.name for item in items]


def test_quick_tests_stand_between_the_later_slow_ones_and_after_them() -> None:
    """Each kind keeps its order, and none is lost."""
    quick = [f"quick {number}" for number in range(8)]
    slow = [f"slow {number}" for number in range(4)]

    assert ordered(*quick, *slow) == [
        *("slow 0", "slow 1"),
        *("slow 2", "quick 0", "quick 1", "slow 3", "quick 2", "quick 3"),
        *("quick 4", "quick 5", "quick 6", "quick 7"),
    ]
    assert ordered(*quick) == quick
    assert ordered(*slow) == slow
    assert ordered("slow 0", "quick 0", "quick 1") == ["slow 0", "quick 0", "quick 1"]


def test_a_test_in_two_groups_is_refused() -> None:
    """Twice in the same one is once."""
    check_group(cast(pytest.Item, Item("none")))
    check_group(cast(pytest.Item, Item("one", "spark", "spark")))
    with pytest.raises(pytest.UsageError, match=r"both is in 2 groups: \['nodes', 'spark'\]"):
        check_group(cast(pytest.Item, Item("both", "spark", "nodes")))


@pytest.mark.slow
def test_processes_of_tests_import_no_opentelemetry() -> None:
    """redis-py would import all of it; and jsonschema the grammars of international URLs, in this process as well."""
    code = """
import importlib, redis, sys
try:
    importlib.import_module("rfc3987_syntax")
except ModuleNotFoundError:
    print(*sys.modules)
"""
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)

    assert "redis.client" in ran.stdout.split()
    assert not [name for name in ran.stdout.split() if name.startswith("opentelemetry")]
    with pytest.raises(ModuleNotFoundError):
        importlib.import_module("rfc3987_syntax")
