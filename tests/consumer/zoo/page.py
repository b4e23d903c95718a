"""The zoo as the table of a page: python -m tests.consumer.zoo.page updates docs/guides/handlers.md."""

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
    """Return the page with the table of the present rows."""
    text = PAGE.read_text("utf-8")
    assert _PART.search(text), "the page has no markers for the table"
    return _PART.sub(lambda match: f"{match[1]}\n{_tables()}\n{match[2]}", text)


def _tables() -> str:
    parts = []
    for section, rows in groupby(ROWS.rows.values(), key=lambda row: row.section):
        lines = [
            "| The handler | Message | Log | Process |",
            "| --- | --- | --- | --- |",
        ]
        for row in rows:
            events = ", ".join(f"`{event}`" for event in dict.fromkeys(row.end.logged))
            cells = (row.does, row.end.says, events or "–", row.child or "continues")
            lines.append(f"| {' | '.join(cell.replace('|', chr(92) + '|') for cell in cells)} |")
        parts.append(f"### {section}\n\n" + "\n".join(lines) + "\n")
    if ROWS.refused:
        lines = ["| The function | Error |", "| --- | --- |"]
        lines += [f"| {each.does} | {each.words} |" for each in ROWS.refused]
        parts.append("### Refused at declaration\n\n" + "\n".join(lines) + "\n")
    return "\n".join(parts)


if __name__ == "__main__":
    PAGE.write_text(written(), "utf-8")
