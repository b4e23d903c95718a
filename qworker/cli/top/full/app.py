"""The full screen of `qworker top`: tables to choose from, pages behind their rows, questions before a change."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import ExitStack
from typing import TYPE_CHECKING, Any, ClassVar, Final

from rich.console import RenderableType
from rich.text import Text
from textual.app import App, ComposeResult, ScreenStackError
from textual.binding import Binding, BindingType
from textual.widgets import Input, Static

from qworker.cli.framework.errors import describe
from qworker.cli.framework.terminal import plain
from qworker.cli.top.full.background import in_background
from qworker.cli.top.full.bar import Bar
from qworker.cli.top.full.blocks import drawn
from qworker.cli.top.full.dead import DeadLetters, DeadRow, Letters, read_dead
from qworker.cli.top.full.dialogs import Ask, Choice, Confirm, Page
from qworker.cli.top.full.glyphs import ASCII, UNICODE, Glyphs
from qworker.cli.top.full.grid import TONES, Grid
from qworker.cli.top.full.head import KEY_NAMES, Place, figures, foot, overflow, place_line, tabs
from qworker.cli.top.full.operator import Counted, Operator
from qworker.cli.top.full.tables import Findings, Handlers, Queues, TaskRow, Tasks, Workers
from qworker.cli.top.full.texts import (
    finding_page,
    handler_page,
    help_page,
    letter_page,
    queue_page,
    worker_page,
)
from qworker.cli.top.full.view import Key, View
from qworker.client.dead.filter import DeadFilter
from qworker.client.dead.throttle import rate_per_s
from qworker.client.message import DeadLetter
from qworker.client.namespace.requests import change_of
from qworker.client.namespace.workers import Running, Worker
from qworker.errors import QworkerError
from qworker.formats import count, span
from qworker.health.finding import Finding
from qworker.monitor.rows import QueueRow
from qworker.monitor.sample import Sample
from qworker.monitor.sampler import EVERY_S, Sampler

if TYPE_CHECKING:
    from qworker.cli.framework.output import Block
    from qworker.monitor.jobs import Job
    from qworker.monitor.namespace import Namespace

__all__ = ["Top"]

#: Seconds after which the clock of a server that is away is written again.
_CLOCK_S: Final = 1.0
#: Seconds for which the outcome of an action, or the end of a change, is shown.
_SHOWN_S: Final = 10.0
#: Rows in sight that are read at every interval.
_WATCHED: Final = 100
#: Lines from which on the row under the cursor is shown in full below the table.
_TALL: Final = 40
_NO_STACK: Final = "Enter asks the worker for it"
#: A redrive is offered at this rate.
_RATE: Final = "10/s"

_EVERYWHERE: Final = (
    Key("/", "filter", "filter", "Show only rows that contain all of some words; Esc shows all."),
    Key("left", "sort", "sort", "Sort by the column to the left or right.", "←→"),
    Key("i", "invert", "invert", "Invert the order."),
    Key("p", "pause", "freeze", "Pause the screen, and go on."),
    Key("1", "tables", "show", "Choose a table; Tab takes the next one.", "1-6"),
)
_ALWAYS: Final = (
    Key("?", "help", "help", "Show the keys."),
    Key("q", "quit", "quit", "Quit."),
)
_VERBS: Final = sorted(
    {
        key.key
        for view in (Queues, Workers, Handlers, DeadLetters, Letters, Tasks)
        for key in view.keys
        if key.key != "enter"
    }
)


class Top(App[None]):
    """Shows a namespace until `q`. `glyphs`: what the terminal can draw."""

    ENABLE_COMMAND_PALETTE = False
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
    BINDINGS: ClassVar[list[BindingType]] = [
        *(Binding(str(number), f"nth({number - 1})", show=False) for number in range(1, 7)),
        *(Binding(KEY_NAMES.get(key, key), f"verb('{key}')", show=False) for key in _VERBS),
        Binding("tab", "next(1)", show=False, priority=True),
        Binding("shift+tab", "next(-1)", show=False, priority=True),
        Binding("slash", "filter", show=False),
        Binding("p", "freeze", show=False),
        Binding("question_mark,h", "help", show=False),
        Binding("escape", "leave", show=False),
        Binding("q", "quit", show=False),
        Binding("ctrl+c", "interrupt", show=False, priority=True),
    ]

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
        self.views: tuple[View[Any], ...] = (
            Queues(namespace.namespace, glyphs),
            Workers(namespace.namespace),
            Handlers(namespace.namespace),
            self.dead,
            self.tasks,
            Findings(),
        )
        self.view: View[Any] = self.views[0]
        self.frozen = False
        self._read_s = time.monotonic()
        self._said = ("", "", 0.0)
        self._watched: tuple[str, ...] = ()
        self._watching = ExitStack()
        self._reading_dead = False
        self._reading_tasks = False
        self._ended_jobs: set[str] = set()
        self._stacks: Sequence[Mapping[str, Any]] | str = _NO_STACK

    # -- The screen ----------------------------------------------------------------------------

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

    def on_mount(self) -> None:
        """Begin to follow the sampler."""
        self.theme = "ansi-dark"
        self.set_class(self.glyphs is ASCII, "ascii")
        self._grid.focus()
        self.draw()
        self.run_worker(self._follow(), exclusive=True)

    def on_resize(self) -> None:
        """Fit the new size."""
        self.set_class(self.size.height < 30, "low")
        self.set_class(self.size.height >= _TALL, "tall")
        self.draw()

    def on_unmount(self) -> None:
        """End the sampler, and the changes that run."""
        self._watching.close()
        self.sampler.end()
        self.operator.close()

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
    def _page(self) -> Page | None:
        try:
            return self.screen if isinstance(self.screen, Page) else None
        except ScreenStackError:
            return None

    async def _follow(self) -> None:
        """Show each sample as it comes; without one, write the clock of what is away."""
        number = 0
        while not self.sampler.ended:
            if self.frozen:
                await asyncio.sleep(_CLOCK_S / 5)
                continue
            sample = await self.sampler.after(number, _CLOCK_S)
            if self.frozen:
                continue
            if sample.number != number:
                number = sample.number
                self.take(sample)
            self.draw()

    def take(self, sample: Sample) -> None:
        """Take a new sample into all tables."""
        self.shown = sample
        if not sample.problem:
            self._read_s = time.monotonic()
        for view in self.views:
            view.update(sample)
        if self._page is not None:
            self._page.rewrite()
        self._read_dead()
        self._read_tasks()

    def draw(self) -> None:
        """Write all that changes with a sample or a key."""
        if not self._is_there:
            return
        width, sample = self.size.width, self.shown
        away_s = time.monotonic() - self._read_s if sample.problem else 0.0
        place = Place(self.namespace.namespace, self.namespace.server.address, away_s, self.frozen)
        self._write("place", place_line(place, sample, width, self.glyphs))
        self._write("figures", Text("\n").join(figures(sample, width, self.glyphs)))
        self._write("tabs", tabs(self.views, self.view, width))
        self._write("status", self._status(width))
        self._write("foot", foot([*self.view.keys, *_footer(self.glyphs)], _ALWAYS, width))
        self._grid.show(self.view)

    def say(self, text: str, tone: str = "") -> None:
        """Show what came of an action above the keys."""
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
        # The latest is shown; what was refused stays until it was read.
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
        elif isinstance(self.view, Letters):
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

    # -- What is read --------------------------------------------------------------------------

    def on_grid_moved(self) -> None:
        """Say which rows are in sight, show the one under the cursor, and read the queues among them."""
        if not self._is_there:
            return
        self._write("status", self._status(self.size.width))
        self._preview()
        self._watch()

    def _preview(self) -> None:
        """Show the row under the cursor in full where there is room."""
        if self.size.height < _TALL:
            return
        box = self.screen_stack[0].query_one("#preview", Static)
        row = self.view.selected
        found = self._text_of(row) if row is not None else None
        box.border_title = plain(found[0]) if found is not None else ""
        box.update(drawn(found[1](), self.size.width) if found is not None else "")

    def _watch(self) -> None:
        """Read the queues that are in sight at every interval, and not those that no longer are."""
        names: tuple[str, ...] = ()
        if not self.frozen and self.view is self.views[0]:
            names = tuple(row.name for row in self._grid.in_sight()[:_WATCHED])
        page = self._page
        if page is not None and isinstance(page.row, QueueRow):
            names = (page.row.name,)
        if names != self._watched:
            self._watched = names
            self._watching.close()
            if names:
                self._watching.enter_context(self.sampler.watching(names))

    def _read_dead(self) -> None:
        ended = {job.id: job.queue for job in self.operator.running() if job.ended}
        for job_id in ended.keys() - self._ended_jobs:
            self.dead.forget()
            self.run_worker(self._refreshed(ended[job_id]))
            if isinstance(self.view, Letters):
                self.run_worker(self._letters_of(self.view))
        self._ended_jobs = set(ended)
        if self.view is self.dead and self.dead.is_due() and not self._reading_dead:
            self.run_worker(self._dead_again())

    async def _refreshed(self, queue: str) -> None:
        """Read a queue whose dead letters were changed."""
        try:
            await in_background(lambda: self.sampler.refresh(queue))
        except QworkerError:
            return  # the sampler says that the server is away

    async def _dead_again(self) -> None:
        self._reading_dead = True
        self.dead.begin()
        only, numbers = self.dead.only, self.dead.numbers()
        try:
            found = await in_background(lambda: read_dead(self.namespace, numbers, only))
        except QworkerError as error:
            self.dead.problem = describe(error)[0]
        else:
            if only == self.dead.only:
                self.dead.take(found, (only, numbers))
        finally:
            self._reading_dead = False
        self.draw()

    def _read_tasks(self) -> None:
        if self.view is self.tasks and not self._reading_tasks and not self.shown.problem:
            self.run_worker(self._tasks_again())

    async def _tasks_again(self) -> None:
        self._reading_tasks = True
        try:
            self.tasks.paused = await in_background(self.operator.paused_tasks)
        except QworkerError as error:
            self.say(describe(error)[0], "bad")
        finally:
            self._reading_tasks = False
        self.tasks.update(self.shown)
        self.draw()

    # -- Keys of all tables --------------------------------------------------------------------

    def check_action(self, action: str, parameters: tuple[object, ...]) -> bool | None:
        """Keep the keys of tables from the pages behind them."""
        return not (self._page is not None and action in ("nth", "next", "filter", "help", "leave"))

    def action_show(self, name: str) -> None:
        """Show a table by its name."""
        self._turn_to(next(view for view in self.views if view.name == name))

    def action_nth(self, number: int) -> None:
        """Show a table by its number."""
        self._turn_to(self.views[number])

    def action_next(self, by: int) -> None:
        """Show the next table."""
        at = self.views.index(self.dead if isinstance(self.view, Letters) else self.view)
        self._turn_to(self.views[(at + by) % len(self.views)])

    def action_filter(self) -> None:
        """Ask for words that rows contain; rows follow while they are typed."""
        box = self.query_one("#filter", Input)
        box.display = True
        box.value = self.view.filter
        box.focus()

    def on_input_changed(self, event: Input.Changed) -> None:
        """Filter while words are typed."""
        if event.input.id == "filter" and event.input.display:
            self.view.set_filter(event.value)
            self.draw()

    def on_input_submitted(self, event: Input.Submitted) -> None:
        """Keep the filter."""
        if event.input.id == "filter":
            self._close_filter()

    def action_leave(self) -> None:
        """Leave the filter, the list of a kind, or the dead letters of one queue, in this order."""
        if self.query_one("#filter", Input).display or self.view.filter:
            self._close_filter()
            self.view.set_filter("")
        elif isinstance(self.view, Letters):
            self._turn_to(self.dead)
        elif self.view is self.dead and self.dead.only:
            self._only("")
        self._said = ("", "", 0.0)
        self.draw()

    def action_freeze(self) -> None:
        """Pause the screen, or continue."""
        self.frozen = not self.frozen
        self.on_grid_moved()
        self.draw()

    def action_help(self) -> None:
        """Show the keys."""
        self._open(
            "Keys", lambda: help_page([*self.views, Letters], [*_footer(self.glyphs), *_ALWAYS])
        )

    def action_interrupt(self) -> None:
        """End as a program does that is interrupted."""
        self.exit(return_code=130)

    async def action_verb(self, key: str) -> None:
        """Do what a key means in the table or page that is shown."""
        page = self._page
        for known in page.keys if page is not None else self.view.keys:
            if known.key == key:
                await self.run_action(known.action)

    def _close_filter(self) -> None:
        box = self.query_one("#filter", Input)
        box.display = False
        self._grid.focus()
        self.draw()

    def _turn_to(self, view: View[Any]) -> None:
        self._close_filter()
        self.view = view
        self._said = ("", "", 0.0)
        self._read_dead()
        self._read_tasks()
        self.draw()

    def _only(self, queue: str) -> None:
        self.dead.only = queue
        self.dead.cursor = 0
        self._turn_to(self.dead)

    @property
    def _row(self) -> Any:
        """The row that a verb is for: that of the page that is open, else the one under the cursor."""
        return self._page.row if self._page is not None else self.view.selected

    # -- What a row opens ----------------------------------------------------------------------

    def on_grid_opened(self) -> None:
        """Open the row under the cursor."""
        self.action_open()

    def action_open(self) -> None:
        """Open the page of a row, or the rows behind it."""
        row = self.view.selected
        match row:
            case TaskRow():
                self.views[2].set_filter(row.name)
                self._turn_to(self.views[2])
            case DeadRow():
                self._open_group(row)
            case _ if row is not None and (found := self._text_of(row)) is not None:
                if isinstance(row, Worker | Running):
                    self._read_stacks(row.name if isinstance(row, Worker) else row.worker)
                keys = () if isinstance(row, Finding) else self.view.keys
                self._open(*found, row, keys)

    def _text_of(self, row: Any) -> tuple[str, Callable[[], Iterable[str | Block]]] | None:
        """Return the title and the text of a row's page; None if it has none."""
        match row:
            case QueueRow():
                return row.name, lambda: queue_page(self.shown, row.name, self.glyphs)
            case Worker():
                return row.name, lambda: self._worker_page(row)
            case Running():
                return row.task or "a handler", lambda: handler_page(row, self._stacks)
            case DeadRow():
                letter, now_ms = row.group.letter, row.now_ms
                title = f"{row.queue}: the newest of {row.number}"
                return title, lambda: letter_page(row.queue, letter, now_ms)
            case Finding():
                return row.check, lambda: finding_page(row)
            case DeadLetter() if isinstance(self.view, Letters):
                queue, read_ms = self.view.row.queue, self.view.now_ms
                title = f"{queue}: dead letter {row.entry_id}"
                return title, lambda: letter_page(queue, row, read_ms)
        return None

    def _open(
        self,
        title: str,
        write: Callable[[], Iterable[str | Block]],
        row: Any = None,
        keys: Sequence[Key] = (),
    ) -> None:
        own = [key for key in keys if key.key != "enter"]
        self.push_screen(Page(title, lambda: drawn(write(), self.size.width), own, row))
        self.call_after_refresh(self.on_grid_moved)

    def _worker_page(self, row: Worker) -> Iterable[str | Block]:
        now = next((worker for worker in self.shown.workers if worker.name == row.name), row)
        return worker_page(now, self.shown.now_ms, self._stacks)

    def _read_stacks(self, worker: str) -> None:
        self._stacks = f"asking the worker {self.glyphs.cut}"
        self.run_worker(self._stacks_of(worker))

    def on_screen_resume(self) -> None:
        """Forget the stacks of a page that was left."""
        if self._page is None:
            self._stacks = _NO_STACK

    async def _stacks_of(self, worker: str) -> None:
        try:
            self._stacks = await in_background(lambda: self.operator.stacks(worker))
        except QworkerError as error:
            self._stacks = describe(error)[0]
        if self._page is not None:
            self._page.rewrite()

    def _open_group(self, row: DeadRow) -> None:
        letters = Letters(row)
        self._turn_to(letters)
        self.run_worker(self._letters_of(letters))

    async def _letters_of(self, letters: Letters) -> None:
        try:
            found, now_ms = await in_background(lambda: letters.load(self.namespace))
        except QworkerError as error:
            letters.reading = False
            self.say(describe(error)[0], "bad")
        else:
            letters.take(found, now_ms)
        self.draw()

    # -- Verbs ---------------------------------------------------------------------------------

    def action_pause(self) -> None:
        """Ask in which directions a queue is paused."""
        row: QueueRow | None = self._row
        if row is None:
            return
        detail = "Running handlers go on."
        if row.queue is not None:
            waiting = count(row.queue.ready, "ready message")
            detail += f" {waiting} of it would wait until it is resumed."
        choices = [
            Choice("a", "refuse sends, and deliver nothing", "in,out"),
            Choice("i", "refuse sends only", "in"),
            Choice("o", "deliver nothing only", "out"),
        ]

        def act(chosen: str) -> None:
            self._do(lambda: self.operator.pause(row.name, chosen.split(",")), row.name)

        self._confirm(f"Pause queue {row.name}?", detail, choices, act)

    def action_resume(self) -> None:
        """Resume a queue."""
        row: QueueRow | None = self._row
        if row is None:
            return
        waiting = (
            f"{count(row.queue.ready, 'ready message')} would be delivered." if row.queue else ""
        )
        self._confirm(
            f"Resume queue {row.name}?",
            waiting,
            [Choice("y", "resume both directions", "y")],
            lambda _: self._do(lambda: self.operator.resume(row.name), row.name),
        )

    def action_dead(self) -> None:
        """Show the dead letters of a queue alone."""
        row: QueueRow | None = self._row
        if row is not None:
            if self._page is not None:
                self.pop_screen()
            self._only(row.name)

    def action_drain(self) -> None:
        """Drain a worker."""
        row: Worker | None = self._row
        if row is None or self._is_gone(row):
            return
        running = count(len(row.running), "running handler")
        self._confirm(
            f"Drain worker {row.name}?",
            f"It takes no more messages, and exits when {running} of it ended, however long that takes.",
            [Choice("y", "drain it", "y")],
            lambda _: self._do(lambda: self.operator.drain(row.name)),
        )

    def action_scale(self, processes: str) -> None:
        """Change the number of processes of a worker; '' asks for it."""
        row: Worker | None = self._row
        if row is None or self._is_gone(row):
            return
        has = count(len(row.described.children), "process", "processes")

        def act(text: str) -> None:
            self._do(lambda: self.operator.scale(row.name, text))

        if processes:
            change = "Add a process to" if processes == "+1" else "Take a process from"
            self._confirm(
                f"{change} worker {row.name}?",
                f"It has {has}. The change lasts until it exits.",
                [Choice("y", "change it", processes)],
                act,
            )
            return
        self._ask(
            f"How many processes for worker {row.name}?",
            f"It has {has}. Write 4, +1 or -1; the change lasts until it exits.",
            act,
            value=str(len(row.described.children)),
            hint="4, +1 or -1",
            check=lambda text: change_of(text, "processes"),
        )

    def _is_gone(self, worker: Worker) -> bool:
        """Refuse a verb for a worker that does not listen any more."""
        if worker.is_gone:
            self.say(
                f"{worker.name} is gone: it was last seen {span(worker.age_ms / 1000)} ago", "warn"
            )
        return worker.is_gone

    def action_pause_task(self) -> None:
        """Pause a task."""
        task, running = self._chosen_task()
        if task:
            self._confirm(
                f"Pause task {task}?",
                f"No call of it starts until it is resumed; {count(running, 'running call')} would end as usual.",
                [Choice("y", "pause it", "y")],
                lambda _: self._do(lambda: self.operator.pause_task(task)),
            )

    def action_resume_task(self) -> None:
        """Resume a task."""
        task, _ = self._chosen_task()
        if task:
            self._confirm(
                f"Resume task {task}?",
                "Its messages are received within about a minute.",
                [Choice("y", "resume it", "y")],
                lambda _: self._do(lambda: self.operator.resume_task(task)),
            )

    async def action_change(self, verb: str) -> None:
        """Redrive or drop the dead letters of a kind."""
        row: DeadRow | None = self._row
        if isinstance(row, DeadRow):
            wanted = DeadFilter(fingerprint=row.group.fingerprint)
            self.run_worker(
                self._change(verb, row.queue, wanted, f"that died of: {row.group.pattern}")
            )

    async def action_change_all(self, verb: str) -> None:
        """Redrive or drop all dead letters of a queue."""
        row: DeadRow | None = self._row
        if isinstance(row, DeadRow):
            self.run_worker(self._change(verb, row.queue, DeadFilter(), "of every kind"))

    def action_change_one(self, verb: str) -> None:
        """Redrive or drop one dead letter."""
        row: DeadLetter | None = self._row
        if row is None or not isinstance(self.view, Letters):
            return
        queue, entry = self.view.row.queue, row.entry_id
        drop = verb == "drop"
        undo = f" {self._undo()}" if drop else ""
        self._confirm(
            f"{'Drop' if drop else 'Redrive'} 1 dead letter of {queue}?",
            f"Entry {entry}, message {row.message.id or 'without id'}.{undo}",
            [Choice("y", "delete it" if drop else "put it back to ready", "y")],
            lambda _: self._do(lambda: self.operator.change_letter(verb, queue, entry), queue),
            bad=drop,
        )

    def action_stop(self) -> None:
        """Stop the change of a queue that runs, or undo the drop that has not begun."""
        row = self.view.row if isinstance(self.view, Letters) else self._row
        if isinstance(row, DeadRow):
            self._do(lambda: self.operator.stop(row.queue))

    def _undo(self) -> str:
        lasting = span(self.operator.jobs.undo_s)
        return f"It begins in {lasting}; s undoes it until then. Later they cannot be brought back."

    async def _change(self, verb: str, queue: str, wanted: DeadFilter, kind: str) -> None:
        """Count the dead letters, ask with their number, and start."""
        self.say(f"counting the dead letters of {queue} {self.glyphs.cut}", "dim")
        try:
            counted = await in_background(lambda: self.operator.count_dead(queue, wanted))
        except QworkerError as error:
            self.say(describe(error)[0], "bad")
            return
        self._said = ("", "", 0.0)
        if not counted.number and counted.whole:
            self.say(f"{queue} has no dead letter of this kind any more", "warn")
            self.dead.forget()
            return
        number = _number(counted)

        def act(per_s: str) -> None:
            self._do(lambda: self.operator.change_dead(verb, queue, wanted, counted, per_s), queue)

        if verb == "drop":
            self._confirm(
                f"Drop {number} of {queue}?",
                f"Those {kind}. {self._undo()}",
                [Choice("y", f"delete {number}", "y")],
                lambda _: act(""),
                bad=True,
            )
            return
        lasting = span(counted.number / rate_per_s(_RATE, "rate"))
        self._ask(
            f"Redrive {number} of {queue}?",
            f"Those {kind}. At which rate? At {_RATE} it takes {lasting}; empty is without a limit.",
            act,
            value=_RATE,
            hint="no limit",
            check=lambda text: rate_per_s(text, "rate") if text else None,
        )

    def _chosen_task(self) -> tuple[str, int]:
        """Name the task that a verb is for, and how many calls of it run."""
        row = self._row
        name = (
            row.task if isinstance(row, Running) else row.name if isinstance(row, TaskRow) else ""
        )
        alive = (worker for worker in self.shown.workers if not worker.is_gone)
        return name, sum(handler.task == name for worker in alive for handler in worker.running)

    def _confirm(
        self,
        question: str,
        detail: str,
        choices: Sequence[Choice],
        act: Callable[[str], None],
        *,
        bad: bool = False,
    ) -> None:
        def answered(value: str | None) -> None:
            if value:
                act(value)
            else:
                self.say("nothing was changed", "dim")

        self.push_screen(Confirm(question, detail, choices, bad=bad), answered)

    def _ask(self, question: str, detail: str, act: Callable[[str], None], **options: Any) -> None:
        def answered(value: str | None) -> None:
            if value is not None:
                act(value)
            else:
                self.say("nothing was changed", "dim")

        self.push_screen(Ask(question, detail, **options), answered)

    def _do(self, function: Callable[[], str], queue: str = "") -> None:
        """Do it apart from the loop, say what came of it, and read the queue again."""
        self.run_worker(self._done(function, queue))

    async def _done(self, function: Callable[[], str], queue: str) -> None:
        self.say(f"asking the server {self.glyphs.cut}", "dim")

        def act() -> str:
            text = function()
            if queue:
                self.sampler.refresh(queue)
            return text

        try:
            text = await in_background(act)
        except QworkerError as error:
            self.say(describe(error)[0], "bad")
            return
        self.dead.forget()
        self.say(text, "good")
        if isinstance(self.view, Letters):
            self.run_worker(self._letters_of(self.view))
        self._read_tasks()


def _footer(glyphs: Glyphs) -> list[Key]:
    """Return the keys of all tables, with the arrows that the terminal has."""
    arrows = f"{glyphs.left}{glyphs.right}"
    return [
        Key(key.key, key.label, key.action, key.help, arrows if key.key == "left" else key.shown)
        for key in _EVERYWHERE
    ]


def _number(counted: Counted) -> str:
    """Write how many dead letters a question is about."""
    least = "" if counted.whole else "at least "
    return f"{least}{count(counted.number, 'dead letter')}"


def _progress(job: Job) -> str:
    """Write how far a change of dead letters is."""
    if job.left_s:
        return f"{job.verb} {job.queue}: {job.outcome} (s: undo)"
    done = f"{job.changed.done:,} of {job.shown:,}"
    return f"{job.verb} {job.queue}: {done}{f', {job.ended}' if job.ended else ''}"
