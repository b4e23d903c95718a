"""The page: a document as one HTML file that needs nothing else, neither a server nor a network.

Plotly's script is in it, packed (1.9 MB instead of 4.8); every chart has its numbers as a table below it.
"""

from __future__ import annotations

import base64
import gzip
import importlib.util
import json
import re
from collections.abc import Mapping
from html import escape
from pathlib import Path
from typing import Any, Final, NamedTuple

from qworker.errors import SparkMissingError
from qworker.pipeline.jobs.report.charts import make_figures
from qworker.pipeline.jobs.report.tables import TABLES
from qworker.pipeline.jobs.report.text import count, moment, span
from qworker.pipeline.jobs.report.tiles import tiles

__all__ = ["check_charts", "render"]

_HERE: Final = Path(__file__).parent
_TOKEN: Final = re.compile(r"\{\{ (\w+) \}\}")


class _Chart(NamedTuple):
    name: str
    title: str
    words: str
    wide: bool = False


_LOG: Final = "Log scale."
_BARS: Final = "Each bar is 1.6 times as long as the one before."
#: Sections of the page, and the charts in each.
_SECTIONS: Final[dict[str, tuple[_Chart, ...]]] = {
    "Flow": (
        _Chart(
            "throughput",
            "Throughput",
            "Messages sent and ended per second, and attempts that failed. Log scale where a burst hides the rest.",
            wide=True,
        ),
        _Chart("backlog", "Backlog", "Messages due and not ended, at the end of each interval."),
        _Chart("oldest", "Oldest message", "How long the oldest of them has been due."),
    ),
    "Durations": (
        _Chart("wait", "Waiting", f"From ready to the start, of every attempt. {_LOG}"),
        _Chart("run", "Running", f"From the handler's start to its end. {_LOG}"),
        _Chart("wait_histogram", "Waiting, all attempts", _BARS),
        _Chart("run_histogram", "Running, all attempts", _BARS),
    ),
    "Failures": (
        _Chart("attempts", "Attempts per message", f"Deliveries until it ended or died. {_LOG}"),
        _Chart("retry_cost", "What retries cost", "Handler time, and how much of it failed."),
        _Chart(
            "failures",
            "Failures by task and error",
            "Attempts that raised, timed out or lost their worker.",
        ),
        _Chart("dead", "Dead letters", "Messages that are dead at the end, by reason and queue."),
    ),
    "Promises and capacity": (
        _Chart(
            "sla", "Within target", "Acked soon enough after they were due, of all acked or dead."
        ),
        _Chart(
            "workers", "Slowest workers", "Median run time against all workers at the same tasks."
        ),
        _Chart("load", "Busy handlers", "Handler time per time, counted where it ends.", wide=True),
    ),
}


def render(document: Mapping[str, Any]) -> str:
    """Write the page of a document, with rows or without."""
    has_rows = bool(document["data"]["rows"])
    parts = {
        "title": escape(f"qworker report: {document['namespace']}"),
        "heading": f"{escape(document['namespace'])} <span>queue report</span>",
        "window": _window(document),
        "css": _read("page.css"),
        "js": _read("page.js"),
        "body": _body(document) if has_rows else _empty(document),
        "figures": _script_json(make_figures(document) if has_rows else {}),
        "plotly": f'<script type="text/plain" id="plotly">{_plotly()}</script>' if has_rows else "",
        "footer": f"Made by qworker from {escape(document['source'])} at {moment(document['generated_ms'])}. "
        "Times are UTC. Percentiles are exact to 0.05 % in rank.",
    }
    return _TOKEN.sub(lambda token: parts[token[1]], _read("page.html"))


def _window(document: Mapping[str, Any]) -> str:
    data, window = document["data"], document["window"]
    asked = []
    if window["since_ms"] is not None:
        asked.append(f"since {moment(window['since_ms'])}")
    if window["until_ms"] is not None:
        asked.append(f"until {moment(window['until_ms'])}")
    note = f" (asked for: {escape(' '.join(asked))})" if asked else ""
    if not data["rows"]:
        return f"no events{note}"
    first, last = data["first_ms"], data["last_ms"]
    until = moment(last) if moment(last)[:10] != moment(first)[:10] else moment(last)[11:]
    return (
        f"<b>{moment(first)}</b> to <b>{until}</b>, {span((last - first) / 1000)}{note} · "
        f"<b>{count(data['rows'])}</b> events of {count(len(document['queues']), 'queue')} · "
        f"{span(document['bucket_s'])} a point"
    )


def _body(document: Mapping[str, Any]) -> str:
    lines = ['<div class="tiles">']
    for tile in tiles(document):
        lines.append(
            f'<div class="tile {tile.tone}"><div class="name">{escape(tile.name)}</div>'
            f'<div class="value">{escape(tile.value)}</div><div class="note">{escape(tile.note)}</div></div>'
        )
    lines.append("</div>")
    for section, charts in _SECTIONS.items():
        lines.append(f'<h2>{section}</h2><div class="cards">')
        lines += [_card(document, chart) for chart in charts]
        if section == "Failures":
            lines.append(_table_card(document, "letters", "Dead letters, and how to get them back"))
        if section == "Promises and capacity":
            lines.append(
                _table_card(document, "capacity", "Capacity", document["forecast"]["method"])
            )
        lines.append("</div>")
    words = "Numbers of events that are not in the data: trimmed before they were read, or shed by a full server."
    lines.append(
        f'<h2>Journal</h2><div class="cards">{_table_card(document, "gaps", "Gaps", words)}</div>'
    )
    return "\n".join(lines)


def _card(document: Mapping[str, Any], chart: _Chart) -> str:
    table = TABLES[chart.name](document)
    if table.rows:
        plot = f'<div class="plot" data-figure="{chart.name}"></div>'
        numbers = f"<details><summary>Numbers</summary>{table.html()}</details>"
    else:
        plot, numbers = f'<div class="none">{escape(table.none)}</div>', ""
    return (
        f'<section class="card{" wide" if chart.wide else ""}"><h3>{escape(chart.title)}</h3>'
        f"<p>{escape(chart.words)}</p>{plot}{numbers}</section>"
    )


def _table_card(document: Mapping[str, Any], name: str, title: str, words: str = "") -> str:
    table = TABLES[name](document)
    inner = table.html() if table.rows else f'<div class="none">{escape(table.none)}</div>'
    about = f"<p>{escape(words)}</p>" if words else ""
    return f'<section class="card wide"><h3>{escape(title)}</h3>{about}{inner}</section>'


def _empty(document: Mapping[str, Any]) -> str:
    return (
        '<section class="card empty"><h3>Nothing to report</h3>'
        f"<p>There are no events in {escape(document['source'])} for this window.</p><ul>"
        "<li>Is the journal on? <code>qworker queue set QUEUE journal=all</code></li>"
        "<li>Does the window reach the data? Leave <code>--since</code> and <code>--until</code> out.</li>"
        "<li>Is the namespace right? <code>qworker queue ls</code></li></ul></section>"
    )


def _read(name: str) -> str:
    return (_HERE / name).read_text("utf-8")


def _script_json(value: object) -> str:
    """Write JSON that may stand in a script element: nothing in it ends the element."""
    return json.dumps(value, separators=(",", ":")).replace("<", "\\u003c")


def check_charts() -> None:
    """Raise `SparkMissingError` where Plotly is not installed; before the work rather than behind it."""
    if importlib.util.find_spec("plotly") is None:
        raise SparkMissingError("plotly is not installed; pip install 'qworker-redis[report]'")


def _plotly() -> str:
    check_charts()
    from plotly.offline import get_plotlyjs

    # Without the time in the header, so that equal documents give equal pages.
    packed = gzip.compress(get_plotlyjs().encode(), 9, mtime=0)
    return base64.b64encode(packed).decode("ascii")
