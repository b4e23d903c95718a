"""The logging guide names events that are logged, at their levels' own names, and its code runs."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import structlog

import qworker
from tests.docs.blocks import ROOT, blocks

PAGE = "docs/guides/logging.md"


def events() -> list[str]:
    """The events of the page's table."""
    rows = re.findall(r"^\| (`.*?) \| ", (ROOT / PAGE).read_text("utf-8"), re.MULTILINE)
    return re.findall(r"`([a-z_]+)`", " ".join(rows))


def test_events_of_the_page_are_logged() -> None:
    """A renamed event does not stay in the page."""
    assert len(events()) > 25
    source = "".join(
        path.read_text("utf-8") for path in Path(qworker.__file__).parent.rglob("*.py")
    )
    assert [name for name in events() if f'"{name}"' not in source] == []


@pytest.mark.parametrize("number", range(2))
def test_the_code_of_the_page_runs(number: int) -> None:
    """As it stands there."""
    code = blocks(PAGE, "python")
    assert len(code) == 2
    try:
        exec(compile(code[number], PAGE, "exec"), {"__name__": "shop"})
    finally:
        structlog.reset_defaults()
