"""Typing of tasks: mypy must accept and refuse the lines of `typed_tasks.py` as their comments say."""

from __future__ import annotations

import re
from collections import Counter
from pathlib import Path

import pytest

from tests.type_checker import ROOT, check_types

CASES = Path(__file__).with_name("typed_tasks.py")
_EXPECTED = re.compile(r"# error: (\[.*\])")
_FOUND = re.compile(r"^[^:]+:(\d+): error: .*\[([a-z-]+)\]$", re.MULTILINE)


@pytest.mark.slow
def test_mypy_accepts_and_refuses_what_tasks_do(tmp_path: Path) -> None:
    """Calls, sends and options of plain, async and batch tasks are typed: mypy reports exactly the marked errors."""
    expected = Counter(
        (number, code)
        for number, line in enumerate(CASES.read_text("utf-8").splitlines(), 1)
        for codes in _EXPECTED.findall(line)
        for code in re.findall(r"\[([a-z-]+)\]", codes)
    )

    report, _, _ = check_types(ROOT, str(CASES.relative_to(ROOT)), cache=tmp_path / "cache")

    counter = Counter((int(line), code) for line, code in _FOUND.findall(report))
    assert counter == expected, report
