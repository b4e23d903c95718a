"""The zoo as the table of a page: python -m tests.consumer.zoo.page writes docs/guides/handlers.md anew."""

from __future__ import annotations

import re
from itertools import groupby
from pathlib import Path
from typing import Final

from tests.consumer.zoo.handlers import ROWS

__all__ = ["PAGE", "written"]

PAGE: Final = Path(__file__).parents[3] / "docs" / "guides" / "handlers.md"
_PART: Final = re.compile(r"(<!-- zoo -->\n).*?(<!-- /zoo -->)", re.DOTALL)


def written() -> str:
    """The page with its table as the rows are now."""
    text = PAGE.read_text("utf-8")
    assert _PART.search(text), "the page has no place for the table"
    return _PART.sub(lambda match: f"{match[1]}\n{_tables()}\n{match[2]}", text)


def _tables() -> str:
    parts = []
    for section, rows in groupby(ROWS.rows.values(), key=lambda each: each.section):
        lines = [
            "| The handler | Its message | In the log | Its process |",
            "| --- | --- | --- | --- |",
        ]
        for each in rows:
            events = ", ".join(f"`{event}`" for event in dict.fromkeys(each.end.logged))
            cells = (each.does, each.end.says, events or "–", each.child or "goes on")
            lines.append(f"| {' | '.join(cell.replace('|', chr(92) + '|') for cell in cells)} |")
        parts.append(f"### {section}\n\n" + "\n".join(lines) + "\n")
    if ROWS.refused:
        lines = ["| The function | The error says |", "| --- | --- |"]
        lines += [f"| {each.does} | {each.words} |" for each in ROWS.refused]
        parts.append("### Refused when it is declared\n\n" + "\n".join(lines) + "\n")
    return "\n".join(parts)


if __name__ == "__main__":
    PAGE.write_text(written(), "utf-8")
