"""Write the tables of docs/reliability.md from reports: of a run, or of several with some of the rows each; of a soak.

python -m verification.faults.page report.json [more.json …]
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

from verification.faults.row import ALWAYS

__all__ = ["write"]

PAGE = Path(__file__).parents[2] / "docs" / "reliability.md"


def write(page: str, *reports: dict[str, Any]) -> str:
    """Put the tables of reports between the marks of a page. Raises `ValueError` where a mark is missing."""
    soaks = [report for report in reports if "ticks" in report]
    runs = [report for report in reports if "ticks" not in report]
    if soaks:
        page = _between(page, "soak", "\n".join(map(_soak, soaks)))
    if not runs:
        return page
    rows = [row for report in runs for row in report["rows"]]
    page = _between(page, "losses", _losses(rows))
    return _between(page, "faults", "\n".join([*map(_totals, runs), _faults(rows)]))


def _between(page: str, name: str, text: str) -> str:
    begin, end = f"<!-- {name} -->\n", f"<!-- end of {name} -->"
    head, opened, rest = page.partition(begin)
    _, closed, tail = rest.partition(end)
    if not opened or not closed:
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
    damage = ", ".join(f"{kind.replace('_', ' ')} {report[kind]}" for kind in ALWAYS)
    minutes, seconds = divmod(round(report["seconds"]), 60)
    length = f"{minutes} min {seconds} s, {report['acked']:,} messages"
    away = f", servers {report['rtt_ms']:g} ms away" if report.get("rtt_ms") else ""
    return f"Seed {report['seed']}, {length}{away}: {damage}.\n"


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


def _soak(report: dict[str, Any]) -> str:
    days = f"{report['days_of_messages']:.1f} and {report['days_of_ticks']:.2f} days"
    lines = [
        f"Seed {report['seed']}, {report['seconds'] / 60:.0f} min: {report['messages']:,} messages and "
        f"{report['ticks']:,} passes of the reaper, which are {days}.",
        "",
        "| Process | Mean | KB per minute (95 %) | A day at most | |",
        "| --- | --: | --: | --: | --- |",
    ]
    for row in report["rows"]:
        slope = f"{row['slope_kb_per_min']:+.1f} ± {row['margin_kb_per_min']:.1f}"
        lines.append(
            f"| {row['process']} | {row['mean_mb']:.1f} MB | {slope} | {row['day_percent']:g} % | {row['verdict']} |"
        )
    return "\n".join(lines) + "\n"


def main() -> None:
    """Write the page."""
    reports = [json.loads(Path(each).read_text()) for each in sys.argv[1:]]
    PAGE.write_text(write(PAGE.read_text(), *reports))


if __name__ == "__main__":
    main()
