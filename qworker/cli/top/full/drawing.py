"""The parts of the full screen of `qworker top`: the place, figures, tabs, a table, the status, the keys."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from typing import TYPE_CHECKING, Any, Final

from rich.console import RenderableType
from rich.text import Text
from textual.app import App, ComposeResult, ScreenStackError
from textual.widgets import Input, Static

from qworker.cli.framework.terminal import plain
from qworker.cli.top.full.bar import Bar
from qworker.cli.top.full.dead import DeadLetters
from qworker.cli.top.full.dead_of_kind import DeadOfKind
from qworker.cli.top.full.dialogs import DetailScreen
from qworker.cli.top.full.findings import Findings
from qworker.cli.top.full.glyphs import UNICODE, Glyphs
from qworker.cli.top.full.grid import TONES, Grid
from qworker.cli.top.full.head import Header, figures, foot, overflow, place_line, tabs
from qworker.cli.top.full.limits import Limits
from qworker.cli.top.full.operator import Operator
from qworker.cli.top.full.queues import Queues
from qworker.cli.top.full.tasks import Tasks
from qworker.cli.top.full.view import Key, View
from qworker.cli.top.full.workers import Handlers, Workers
from qworker.monitor.sample import Sample
from qworker.monitor.sampler import EVERY_S, Sampler

if TYPE_CHECKING:
    from qworker.monitor.jobs import BulkChange
    from qworker.monitor.namespace import Namespace

__all__ = ["ALWAYS", "NO_STACK", "TALL", "Drawing", "footer"]

#: Seconds for which the outcome of an action, or the end of a change, is shown.
_SHOWN_S: Final = 10.0
#: Lines from which on the row under the cursor is shown in full below the table.
TALL: Final = 40
#: In place of the stacks of a worker that was not asked.
NO_STACK: Final = "Enter asks the worker for it"
_EVERYWHERE: Final = (
    Key("/", "filter", "filter", "Show only rows that contain all of some words; Esc shows all."),
    Key("left", "sort", "sort", "Sort by the column to the left or right.", "←→"),
    Key("i", "invert", "invert", "Invert the order."),
    Key("p", "pause", "freeze", "Pause the screen, or continue."),
    Key("1", "tables", "show", "Choose a table; Tab takes the next one.", "1-7"),
)
ALWAYS: Final = (
    Key("?", "help", "help", "Show the keys."),
    Key("q", "quit", "quit", "Quit."),
)


class Drawing(App[None]):
    """The screen as it is drawn, with what the operator looks at."""

    CSS = """
    Screen { background: ansi_default; color: ansi_default; }
    #place, #tabs, #status, #foot, #title { height: 1; text-wrap: nowrap; }
    #figures { height: 2; margin-bottom: 1; text-wrap: nowrap; }
    #grid { height: 1fr; margin-top: 1; overflow: hidden; background: ansi_default; }
    #filter { display: none; height: 1; border: none; padding: 0 1; background: ansi_default; }
    #text { height: 1fr; margin: 1 1 0 1; background: ansi_default; scrollbar-size-vertical: 1; }
    #body { height: auto; }
    .low #grid { margin-top: 0; }
    #preview { display: none; height: 1fr; padding: 0 1; overflow: hidden; }
    .tall #preview { display: block; border-top: solid ansi_blue; border-title-color: ansi_default;
                     border-title-style: bold; }
    .ascii.tall #preview { border-top: ascii ansi_blue; }
    ModalScreen { align: center middle; background: transparent; }
    .dialog { width: 68; max-width: 96%; height: auto; max-height: 96%; padding: 1 2;
              border: round ansi_blue; background: ansi_default; }
    .dialog.bad { border: round ansi_red; }
    .ascii .dialog { border: ascii ansi_blue; }
    .ascii .dialog.bad { border: ascii ansi_red; }
    .dialog Static { height: auto; }
    .dialog .detail { margin-bottom: 1; }
    .dialog Input { margin-bottom: 1; height: 1; border: none; padding: 0;
                    background: ansi_default; text-style: underline; }
    """

    def __init__(
        self, namespace: Namespace, *, every_s: float = EVERY_S, glyphs: Glyphs = UNICODE
    ) -> None:
        super().__init__(ansi_color=True)
        self.glyphs = glyphs
        self.namespace = namespace
        self.sampler = Sampler(namespace, lasts=True, every_s=every_s)
        self.operator = Operator(namespace)
        self.shown = Sample()
        self.dead = DeadLetters(namespace.namespace, glyphs)
        self.tasks = Tasks()
        self.limits = Limits()
        self.views: tuple[View[Any], ...] = (
            Queues(namespace.namespace, glyphs),
            Workers(namespace.namespace),
            Handlers(namespace.namespace),
            self.dead,
            self.tasks,
            Findings(),
            self.limits,
        )
        self.view: View[Any] = self.views[0]
        self.frozen = False
        self._read_s = time.monotonic()
        self._said = ("", "", 0.0)
        self._watched: tuple[str, ...] = ()
        self._watching = ExitStack()
        self._reading_dead = False
        self._reading_tasks = False
        self._reading_limits = False
        self._ended_jobs: set[str] = set()
        self._stacks: Sequence[Mapping[str, Any]] | str = NO_STACK

    def compose(self) -> ComposeResult:
        """Lay the screen out from the top."""
        yield Static(id="place")
        yield Static(id="figures")
        yield Bar(id="tabs")
        yield Grid(self.view, self.glyphs, id="grid")
        yield Static(id="preview")
        yield Input(
            id="filter", placeholder="words that rows contain", compact=True, max_length=200
        )
        yield Static(id="status")
        yield Bar(id="foot")

    def on_resize(self) -> None:
        """Fit the new size."""
        self.set_class(self.size.height < 30, "low")
        self.set_class(self.size.height >= TALL, "tall")
        self.draw()

    @property
    def _grid(self) -> Grid:
        return self.screen_stack[0].query_one(Grid)

    @property
    def _is_there(self) -> bool:
        """Whether there is something to draw on: not while the screen is opened or left."""
        try:
            return bool(self.screen_stack[0].query(Grid))
        except (ScreenStackError, IndexError):
            return False

    @property
    def _page(self) -> DetailScreen | None:
        try:
            return self.screen if isinstance(self.screen, DetailScreen) else None
        except ScreenStackError:
            return None

    def draw(self) -> None:
        """Write all that changes with a sample or a key."""
        if not self._is_there:
            return
        width, sample = self.size.width, self.shown
        away_s = time.monotonic() - self._read_s if sample.problem else 0.0
        place = Header(self.namespace.namespace, self.namespace.server.address, away_s, self.frozen)
        self._write("place", place_line(place, sample, width, self.glyphs))
        self._write("figures", Text("\n").join(figures(sample, width, self.glyphs)))
        self._write("tabs", tabs(self.views, self.view, width))
        self._write("status", self._status(width))
        self._write("foot", foot([*self.view.keys, *footer(self.glyphs)], ALWAYS, width))
        self._grid.show(self.view)

    def say(self, text: str, tone: str = "") -> None:
        """Show the outcome of an action above the keys."""
        self._said = (text, tone, time.monotonic())
        if self._page is not None:
            self._page.say(text, tone)
        self.draw()

    def _write(self, name: str, content: RenderableType) -> None:
        for box in self.screen_stack[0].query(f"#{name}").results(Static):
            box.update(content)

    def _status(self, width: int) -> Text:
        """Write one line: the problem, the last outcome, the changes that run, or which rows are in sight."""
        text, tone, said_s = self._said
        sample = self.shown
        left = Text(" ", no_wrap=True)
        jobs, moved_s = self._jobs()
        # Show the latest; a refusal stays until it was read.
        fresh = time.monotonic() - said_s < _SHOWN_S and (tone == "bad" or said_s >= moved_s)
        if text and fresh:
            left.append(plain(text), TONES[tone])
        elif sample.problem:
            left.append(plain(f"retrying: {sample.problem}"), TONES["bad"])
        elif jobs:
            left.append(plain(jobs), TONES["warn"])
        elif sample.partial:
            left.append(plain("; ".join(sample.partial)), TONES["bad"])
        elif self.view is self.dead:
            left.append(plain(self.dead.scope()), TONES["dim"])
        elif isinstance(self.view, DeadOfKind):
            row = self.view.row
            left.append(plain(f"{row.queue}: {row.group.pattern} (Esc: back)"), TONES["dim"])
        view, right = self.view, Text(no_wrap=True)
        if view.filter:
            right.append(plain(f"/{view.filter}  "), TONES["warn"])
        if view.rows:
            last = min(len(view.rows), view.top + self._grid.room)
            of = f" of {view.total:,}" if view.total != len(view.rows) else ""
            right.append(f"{view.top + 1:,}-{last:,} of {len(view.rows):,}{of} ", TONES["dim"])
        room = max(0, width - right.cell_len - 1)
        left.truncate(room, overflow=overflow(self.glyphs))
        left.pad_right(max(0, room - left.cell_len))
        return Text.assemble(left, " ", right, no_wrap=True)

    def _jobs(self) -> tuple[str, float]:
        """Write the changes of dead letters that run or ended just now, and say when they last moved."""
        now_s = time.monotonic()
        jobs = [
            job
            for job in self.operator.running()
            if not job.ended or now_s - job.ended_s < _SHOWN_S
        ]
        moved_s = max((job.ended_s if job.ended else now_s for job in jobs), default=0.0)
        return "; ".join(map(_progress, jobs)), moved_s


def footer(glyphs: Glyphs) -> list[Key]:
    """Return the keys of all tables, with the arrows that the terminal has."""
    arrows = f"{glyphs.left}{glyphs.right}"
    return [
        Key(key.key, key.label, key.action, key.help, arrows if key.key == "left" else key.shown)
        for key in _EVERYWHERE
    ]


def _progress(job: BulkChange) -> str:
    """Write how far a change of dead letters is."""
    if job.left_s:
        return f"{job.verb} {job.queue}: {job.outcome} (s: undo)"
    done = f"{job.changed.done:,} of {job.shown:,}"
    return f"{job.verb} {job.queue}: {done}{f', {job.ended}' if job.ended else ''}"
