"""What a type checker makes of tasks: `typed_tasks.py` beside this file says what it must accept and refuse."""

from __future__ import annotations

import re
from collections import Counter
from pathlib import Path

import pytest

CASES = Path(__file__).with_name("typed_tasks.py")
_EXPECTED = re.compile(r"# error: (\[.*\])")
_FOUND = re.compile(r"^[^:]+:(\d+): error: .*\[([a-z-]+)\]$", re.MULTILINE)


def test_mypy_accepts_and_refuses_what_tasks_do(tmp_path: Path) -> None:
    """Plain, async and batch tasks are typed in calls, sends and options: every line as its comment says, no other."""
    mypy = pytest.importorskip("mypy.api", reason="mypy is in the dependency group `check`")
    expected = Counter(
        (number, code)
        for number, line in enumerate(CASES.read_text("utf-8").splitlines(), 1)
        for codes in _EXPECTED.findall(line)
        for code in re.findall(r"\[([a-z-]+)\]", codes)
    )

    report, _, _ = mypy.run(
        ["--strict", "--config-file", "", "--cache-dir", str(tmp_path / "cache"), str(CASES)]
    )

    found = Counter((int(line), code) for line, code in _FOUND.findall(report))
    assert found == expected, report
