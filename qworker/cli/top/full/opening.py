"""Open a row of the full screen: its page, or the rows behind it."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Any

from textual.widgets import Static

from qworker.cli.framework.errors import describe
from qworker.cli.framework.terminal import plain
from qworker.cli.top.full.background import in_background
from qworker.cli.top.full.blocks import drawn
from qworker.cli.top.full.dead import DeadRow
from qworker.cli.top.full.dead_of_kind import DeadOfKind
from qworker.cli.top.full.dialogs import DetailScreen
from qworker.cli.top.full.drawing import NO_STACK, TALL
from qworker.cli.top.full.limits import LimitRow
from qworker.cli.top.full.reading import LiveScreen
from qworker.cli.top.full.tasks import TaskRow
from qworker.cli.top.full.texts import (
    finding_page,
    handler_page,
    letter_page,
    limit_page,
    queue_page,
    worker_page,
)
from qworker.cli.top.full.view import Key
from qworker.client.message import DeadLetter
from qworker.client.namespace.workers import Running, Worker
from qworker.errors import QworkerError
from qworker.health.finding import Finding
from qworker.monitor.rows import QueueRow

if TYPE_CHECKING:
    from qworker.cli.framework.output import Block

__all__ = ["Opening"]


class Opening(LiveScreen):
    """The screen with the pages of rows."""

    def on_grid_opened(self) -> None:
        """Open the row under the cursor."""
        self.action_open()

    def on_grid_moved(self) -> None:
        """Say which rows are in sight, show the one under the cursor, and read the queues among them."""
        if not self._is_there:
            return
        self._write("status", self._status(self.size.width))
        self._preview()
        self._watch()

    def _preview(self) -> None:
        """Show the row under the cursor in full where there is room."""
        if self.size.height < TALL:
            return
        box = self.screen_stack[0].query_one("#preview", Static)
        row = self.view.selected
        found = self._text_of(row) if row is not None else None
        box.border_title = plain(found[0]) if found is not None else ""
        box.update(drawn(found[1](), self.size.width) if found is not None else "")

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
            case LimitRow():
                title = f"{row.queue}: {row.load.name}"
                return title, lambda: limit_page(row.queue, row.load, row.now_ms)
            case DeadLetter() if isinstance(self.view, DeadOfKind):
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
        self.push_screen(DetailScreen(title, lambda: drawn(write(), self.size.width), own, row))
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
            self._stacks = NO_STACK

    async def _stacks_of(self, worker: str) -> None:
        try:
            self._stacks = await in_background(lambda: self.operator.stacks(worker))
        except QworkerError as error:
            self._stacks = describe(error)[0]
        if self._page is not None:
            self._page.rewrite()

    def _open_group(self, row: DeadRow) -> None:
        letters = DeadOfKind(row)
        self._turn_to(letters)
        self.run_worker(self._letters_of(letters))
