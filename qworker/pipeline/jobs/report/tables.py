"""The tables of the page: the numbers of each chart."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from html import escape
from typing import Any, Final, NamedTuple

from qworker.pipeline.jobs.report.text import count, decimal, moment, percent, span, span_ms

__all__ = ["TABLES", "Table"]

Document = Mapping[str, Any]

#: A table of a series shows so many points at most, the latest.
_POINTS: Final = 60
#: Kinds of dead letters that are told with their ids; all are in the numbers of the chart.
_LETTERS: Final = 20


class Code(NamedTuple):
    """Text to be copied: one line each."""

    lines: tuple[str, ...]
    short: bool = False


@dataclass(frozen=True, slots=True)
class Table:
    """Titles (`>` before one that is a number), rows, and what is said where there are none."""

    titles: Sequence[str]
    rows: Sequence[Sequence[str | Code]]
    none: str = "Nothing here."

    def html(self) -> str:
        """Write it as HTML, everything escaped."""
        numbers = [title.startswith(">") for title in self.titles]
        head = "".join(
            f"<th{_number(number)}>{escape(title.removeprefix('>'))}</th>"
            for title, number in zip(self.titles, numbers, strict=True)
        )
        body = "".join(
            "<tr>"
            + "".join(_cell(cell, number) for cell, number in zip(row, numbers, strict=True))
            + "</tr>"
            for row in self.rows
        )
        return f'<div class="scroll"><table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table></div>'


def _number(is_number: bool) -> str:
    return ' class="number"' if is_number else ""


def _cell(cell: str | Code, number: bool) -> str:
    if isinstance(cell, Code):
        inner = "".join(f"<code>{escape(line)}</code>" for line in cell.lines)
        return f'<td class="ids{" short" if cell.short else ""}">{inner}</td>'
    return f"<td{_number(number)}>{escape(cell)}</td>"


def _over_time(document: Document, columns: Mapping[str, Sequence[str]], none: str) -> Table:
    points = range(max(0, len(document["t_ms"]) - _POINTS), len(document["t_ms"]))
    rows = [
        [moment(document["t_ms"][at]), *(column[at] for column in columns.values())]
        for at in points
    ]
    return Table(["from", *(f">{name}" for name in columns)], rows[::-1], none)


def _sums(document: Document, key: str) -> list[str]:
    queues = document["queues"].values()
    return [count(round(sum(each))) for each in zip(*(queue[key] for queue in queues), strict=True)]


def _throughput(document: Document) -> Table:
    names = {
        "in": "sent",
        "acked": "acked",
        "failed": "failed attempts",
        "dead": "dead",
        "ended": "ended otherwise",
    }
    return _over_time(
        document, {name: _sums(document, key) for key, name in names.items()}, "No messages."
    )


def _of_queues(key: str, write: Callable[[Any], str]) -> Callable[[Document], Table]:
    def table(document: Document) -> Table:
        chosen = sorted(document["queues"], key=lambda name: -sum(document["queues"][name][key]))[
            :7
        ]
        return _over_time(
            document,
            {name: [write(value) for value in document["queues"][name][key]] for name in chosen},
            "No messages.",
        )

    return table


def _percentiles(kind: str) -> Callable[[Document], Table]:
    def table(document: Document) -> Table:
        series = document["percentiles_ms"][kind]
        if not any(value is not None for value in series["p50"]):
            return Table([], [], "No attempt ended in this window.")
        columns = {
            name: [span_ms(value) for value in series[name]] for name in ("p50", "p95", "p99")
        }
        return _over_time(document, columns, "")

    return table


def _histogram(kind: str) -> Callable[[Document], Table]:
    def table(document: Document) -> Table:
        bars = document["histograms"][kind]
        total = sum(bars["count"]) or 1
        rows = [
            [span_ms(edge), count(number), percent(number / total)]
            for edge, number in zip(bars["from_ms"], bars["count"], strict=True)
        ]
        return Table(["from", ">attempts", ">share"], rows, "No attempt ended in this window.")

    return table


def _attempts(document: Document) -> Table:
    rows = [
        [
            "10 or more" if row["attempts"] == 10 else str(row["attempts"]),
            count(row["ended"]),
            count(row["dead"]),
        ]
        for row in document["attempts"]
    ]
    return Table([">attempts", ">ended", ">dead"], rows, "No message ended in this window.")


def _tasks(document: Document) -> Table:
    rows = [
        [
            row["task"],
            count(row["attempts"]),
            count(row["failed"]),
            span(row["run_s"]),
            span(row["failed_s"]),
            span_ms(row["p50_ms"]),
            span_ms(row["p95_ms"]),
        ]
        for row in document["tasks"]
    ]
    titles = [
        "task",
        ">attempts",
        ">failed",
        ">handler time",
        ">of it failed",
        ">run p50",
        ">run p95",
    ]
    return Table(titles, rows, "No attempt ended in this window.")


def _failures(document: Document) -> Table:
    rows = [
        [row["task"], row["error"], count(row["failed"]), span_ms(row["run_ms"])]
        for row in document["failures"]
    ]
    return Table(["task", "error", ">failed attempts", ">handler time"], rows, "No attempt failed.")


def _dead(document: Document) -> Table:
    rows = [
        [row["reason"], row["queue"], row["error_class"] or "–", count(row["dead"])]
        for row in document["dead"]
    ]
    return Table(["reason", "queue", "error", ">dead"], rows, "No message is dead.")


def _letters(document: Document) -> Table:
    rows = [
        [
            row["queue"],
            row["reason"],
            row["error_class"] or "–",
            count(row["dead"]),
            moment(row["last_ms"]),
            Code(tuple(row["samples"]), short=True),
            Code((row["redrive"],)),
        ]
        for row in document["dead"][:_LETTERS]
    ]
    titles = [
        "queue",
        "reason",
        "error",
        ">dead",
        "last",
        "the latest ids",
        "redrive (shows what it would do)",
    ]
    return Table(titles, rows, "No message is dead.")


def _sla(document: Document) -> Table:
    rows = [
        [
            row["queue"],
            span_ms(row["target_ms"]),
            percent(None if row["percent"] is None else row["percent"] / 100),
            count(row["within"]),
            count(row["done"]),
            count(row["failed"]),
            span_ms(row["p50_ms"]),
            span_ms(row["p95_ms"]),
            span_ms(row["p99_ms"]),
        ]
        for row in document["sla"]
    ]
    titles = ["queue", ">target", ">within", ">messages", ">of", ">dead", ">p50", ">p95", ">p99"]
    return Table(titles, rows, "No message ended in this window.")


def _capacity(document: Document) -> Table:
    rows = []
    for row in document["forecast"]["queues"]:
        growth = row["growth_per_day"]
        trend = "under 3 days" if growth is None else f"{growth:+.3g}/s a day"
        if row["days_left"] is not None:
            trend += f", full in {row['days_left']:.0f} days"
        drained = (
            "–" if row["drained_in_s"] is None and not row["backlog"] else span(row["drained_in_s"])
        )
        rows.append(
            [
                row["queue"],
                f"{decimal(row['arrivals_per_s'])}/s",
                f"{decimal(row['busiest_per_s'])}/s",
                span(row["run_s"]),
                decimal(row["load"]),
                decimal(row["had"]),
                "–" if row["needed"] is None else count(row["needed"]),
                count(row["backlog"]),
                "never at this rate" if row["backlog"] and row["drained_in_s"] is None else drained,
                trend,
            ]
        )
    titles = [
        *("queue", ">arrivals", ">busiest", ">handler time per message", ">load", ">busiest load seen"),
        *(">handlers needed", ">backlog", ">drained in", "trend"),
    ]  # fmt: skip
    return Table(titles, rows)


def _workers(document: Document) -> Table:
    rows = [
        [
            row["worker"],
            "–" if row["slowness"] is None else f"{row['slowness']:.2f} ×",
            count(row["attempts"]),
            count(row["failed"]),
            span(row["run_s"]),
            span_ms(row["slowest_p95_ms"]),
        ]
        for row in document["workers"]
    ]
    titles = [
        "worker",
        ">against the others",
        ">attempts",
        ">failed",
        ">handler time",
        ">slowest task's p95",
    ]
    return Table(titles, rows, "No worker is named in these events.")


def _gaps(document: Document) -> Table:
    rows = [
        [
            row["queue"],
            "unknown: begun anew" if row["missing"] is None else count(row["missing"]),
            "the beginning" if row["from_ms"] is None else moment(row["from_ms"]),
            moment(row["until_ms"]),
        ]
        for row in document["gaps"]
    ]
    return Table(["queue", ">events missing", "from", "until"], rows, "None: the journal is whole.")


#: Name of a chart (and of the tables without one) → its table.
TABLES: Final[dict[str, Callable[[Document], Table]]] = {
    "throughput": _throughput,
    "backlog": _of_queues("backlog", count),
    "oldest": _of_queues("oldest_s", span),
    "wait": _percentiles("wait"),
    "run": _percentiles("run"),
    "wait_histogram": _histogram("wait"),
    "run_histogram": _histogram("run"),
    "attempts": _attempts,
    "retry_cost": _tasks,
    "failures": _failures,
    "dead": _dead,
    "letters": _letters,
    "sla": _sla,
    "load": _of_queues("busy_s", span),
    "capacity": _capacity,
    "workers": _workers,
    "gaps": _gaps,
}
