"""Write the tables of docs/reliability.md from the report of a run, or of several with a part of the rows each.

python -m tests.faults.page report.json [more.json …]
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

__all__ = ["write"]

PAGE = Path(__file__).parents[2] / "docs" / "reliability.md"
_CHECKED = ("lost", "unexpected", "acked_twice", "started_after_ack")


def write(page: str, *reports: dict[str, Any]) -> str:
    """Put the tables of reports between the marks of a page. Raises `ValueError` where a mark is missing."""
    rows = [row for report in reports for row in report["rows"]]
    page = _between(page, "losses", _losses(rows))
    return _between(page, "faults", "\n".join([*map(_totals, reports), _faults(rows)]))


def _between(page: str, name: str, text: str) -> str:
    begin, end = f"<!-- {name} -->\n", f"<!-- end of {name} -->"
    head, found, rest = page.partition(begin)
    _, closed, tail = rest.partition(end)
    if not found or not closed:
        raise ValueError(f"the page has no marks for {name!r}")
    return f"{head}{begin}\n{text}\n{end}{tail}"


def _losses(rows: list[dict[str, Any]]) -> str:
    """What was taken away by faults that take something, beside the same fault where nothing may be lost."""
    lines = [
        "| Fault | Confirmed sends | Lost | Why, or the promise |",
        "| --- | --: | --: | --- |",
    ]
    for row in rows:
        if not row["reason"] and (row["takes"] or "server is killed" in row["what"]):
            lost = row["taken"] if row["takes"] else row["lost"]
            promise = row["takes"] or "nothing is lost"
            lines.append(
                f"| {row['fault']}: {row['what']} | {row['acked']:,} | {lost:,} | {promise} |"
            )
    return "\n".join(lines) + "\n"


def _totals(report: dict[str, Any]) -> str:
    damage = ", ".join(f"{kind.replace('_', ' ')} {report[kind]}" for kind in _CHECKED)
    minutes, seconds = divmod(round(report["seconds"]), 60)
    length = f"{minutes} min {seconds} s, {report['acked']:,} messages"
    return f"Seed {report['seed']}, {length}: {damage}.\n"


def _faults(rows: list[dict[str, Any]]) -> str:
    lines = [
        "| | Fault | Messages | Duplicates | Bound and measured | |",
        "| --- | --- | --: | --: | --- | --- |",
    ]
    for row in rows:
        if row["reason"]:
            lines.append(f"| {row['fault']} | {row['what']} | | | | not played: {row['reason']} |")
            continue
        bounds = "; ".join(_measured(bound, row["figures"]) for bound in row["bound"])
        passed = "passed" if row["passed"] else "**failed**"
        lines.append(
            f"| {row['fault']} | {row['what']} | {row['acked']:,} | {row['duplicates']:,} | {bounds} | {passed} |"
        )
    return "\n".join(lines) + "\n"


def _measured(bound: str, figures: dict[str, float]) -> str:
    figure, _, limit = bound.split(" ")
    if limit in figures:
        bound = f"{bound} ({figures[limit]:,.6g})"
    value = figures.get(figure)
    return f"{bound}: {value:,.6g}" if value is not None else f"{bound}: not measured"


def main() -> None:
    """Write the page."""
    reports = [json.loads(Path(each).read_text()) for each in sys.argv[1:]]
    PAGE.write_text(write(PAGE.read_text(), *reports))


if __name__ == "__main__":
    main()
