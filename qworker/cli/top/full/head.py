"""The top of the screen: the namespace, the figures of all queues together, the tables to choose from."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from rich.cells import cell_len
from rich.console import OverflowMethod
from rich.style import Style
from rich.text import Text

from qworker.cli.framework.terminal import Cell, plain
from qworker.cli.top.full.bar import pressing
from qworker.cli.top.full.cells import aged
from qworker.cli.top.full.columns import fitted
from qworker.cli.top.full.glyphs import Glyphs, sparkline
from qworker.cli.top.full.grid import TONES
from qworker.formats import count, moment, rate, span

if TYPE_CHECKING:
    from qworker.cli.top.full.view import Key, View
    from qworker.monitor.sample import Sample

__all__ = ["KEY_NAMES", "Header", "figures", "foot", "overflow", "place_line", "tabs"]

_NAME: Final = Style(bold=True, reverse=True)
_CHOSEN: Final = Style(bold=True, reverse=True)
_FIGURES: Final = 6
#: Keys → how the library names them.
KEY_NAMES: Final = {
    "+": "plus",
    "-": "minus",
    "=": "equals_sign",
    "/": "slash",
    "?": "question_mark",
}


@dataclass(frozen=True, slots=True)
class Header:
    """The namespace, the server, and how current the picture is. `away_s`: for how long nothing was read."""

    namespace: str
    server: str
    away_s: float = 0.0
    frozen: bool = False


def place_line(place: Header, sample: Sample, width: int, glyphs: Glyphs) -> Text:
    """Write the first line: the namespace, its workers and reapers, and for how long nothing was read."""
    left = Text(no_wrap=True)
    left.append(f" {plain(place.namespace)} ", _NAME)
    left.append(f" {plain(place.server)}", TONES["dim"])
    right = Text(no_wrap=True)
    if sample.problem and not sample.now_ms:
        right.append(f"no answer yet ({span(place.away_s)})", TONES["bad"])
    elif sample.problem:
        since = moment(sample.now_ms).split(" ")[1]
        right.append(f"no answer since {since} ({span(round(place.away_s))})", TONES["bad"])
    elif not sample.now_ms:
        right.append(f"reading {glyphs.cut}", TONES["dim"])
    else:
        workers = sum(not worker.is_gone for worker in sample.workers)
        reapers = sum(not reaper.is_gone for reaper in sample.reapers)
        for name, number, tone in (("worker", workers, "warn"), ("reaper", reapers, "bad")):
            if f"{name}s" in sample.unknown:
                right.append(f"{name}s not read", TONES["bad"])
            else:
                right.append(
                    count(number, name) if number else f"no {name}", TONES["" if number else tone]
                )
            right.append("  ")
        right.append(moment(sample.now_ms).split(" ")[1], TONES["dim"])
    if place.frozen:
        right = Text.assemble((" paused ", TONES["warn"] + Style(reverse=True)), "  ", right)
    right.append(" ")
    room = width - right.cell_len
    left.truncate(max(0, room), overflow=overflow(glyphs))
    left.pad_right(max(0, room - left.cell_len))
    return Text.assemble(left, right, no_wrap=True)


def overflow(glyphs: Glyphs) -> OverflowMethod:
    """Return how text is cut: visibly, if the terminal has a character for that."""
    return "ellipsis" if glyphs.cut == "…" else "crop"


def figures(sample: Sample, width: int, glyphs: Glyphs) -> list[Text]:
    """Write two lines: the names of six figures, and each with its last hour."""
    read, flow = sample.read(), sample.total_flow()
    ready, dead = sum(queue.ready for queue in read), sum(queue.dead for queue in read)
    oldest_s = max((queue.oldest_age_s for queue in read), default=0.0)

    def per_s(name: str, tone: str = "") -> Cell:
        value = getattr(flow, name) if flow is not None else None
        text = "-" if value is None else rate(value)
        return Cell(text, tone if value is not None and value >= 0.005 else "")

    shown: list[tuple[str, str, Cell]] = [
        ("SENT/S", "sent", per_s("sent")),
        ("DONE/S", "done", per_s("done")),
        ("FAILED/S", "failed", per_s("failed", "warn")),
        ("READY", "ready", Cell(count(ready))),
        ("OLDEST", "oldest", aged(oldest_s) if ready else Cell("-")),
        ("DEAD", "dead", Cell(count(dead), "warn" if dead else "")),
    ]
    wide = max(8, (width - 1) // _FIGURES)
    names, values = Text(" ", no_wrap=True), Text(" ", no_wrap=True)
    for title, series, cell in shown:
        names.append(fitted(title, wide, glyphs), TONES["dim"])
        text = fitted(cell.text, max(6, cell_len(cell.text)), glyphs)
        room = wide - cell_len(text) - 2
        drawn = sparkline(sample.totals.get(series), room, glyphs) if room >= 3 else ""
        values.append(text, TONES[cell.tone] + Style(bold=True))
        values.append(" ")
        values.append(fitted(drawn, max(0, wide - cell_len(text) - 1), glyphs), TONES["spark"])
    return [names, values]


def tabs(views: Sequence[View[Any]], chosen: View[Any], width: int) -> Text:
    """Write the names of the tables, each with its key and number; on a narrow screen without keys, or in short."""
    for with_keys, in_full in ((True, True), (False, True), (False, False)):
        text = Text(no_wrap=True)
        for number, view in enumerate(views, start=1):
            badge, tone = view.badge()
            click = pressing(f"app.show('{view.name}')")
            ours = view is chosen or (view.name == "dead" and chosen.name == "letters")
            style = (_CHOSEN if ours else Style()) + click
            title = view.title if in_full else view.short or view.title
            label = f"{number} {title}" if with_keys else title
            text.append(f" {label} ", style)
            text.append(
                f"{badge} " if badge else "", style if ours else TONES[tone or "dim"] + click
            )
            text.append(" " if in_full else "")
        if text.cell_len <= width:
            break
    text.truncate(width)
    return text


def foot(keys: Sequence[Key], always: Sequence[Key], width: int) -> Text:
    """Write as many keys as fit, and at the right those that always do; `?` has all of them."""
    left, right = Text(" ", no_wrap=True), Text(no_wrap=True)
    for key in always:
        right.append("  ")
        right.append_text(_key(key))
    right.append(" ")
    for key in keys:
        part = _key(key)
        if left.cell_len + part.cell_len > width - right.cell_len:
            break
        left.append_text(part)
        left.append("  ")
    left.truncate(width - right.cell_len)
    left.pad_right(max(0, width - right.cell_len - left.cell_len))
    return Text.assemble(left, right, no_wrap=True)


def _key(key: Key) -> Text:
    click = pressing(f"app.simulate_key('{_event(key.key)}')")
    return Text.assemble(
        (key.name, Style(bold=True) + click), (f" {key.label}", TONES["dim"] + click)
    )


def _event(key: str) -> str:
    """Return how the library names a key."""
    return KEY_NAMES.get(key, key)
