"""What the full screen reads: samples, dead letters, paused tasks and limits, and which queues it watches."""

from __future__ import annotations

import asyncio
import time
from typing import Any, Final

from textual.widgets import Input

from qworker.cli.framework.errors import describe
from qworker.cli.top.full.background import in_background
from qworker.cli.top.full.dead import read_dead
from qworker.cli.top.full.dead_of_kind import DeadOfKind
from qworker.cli.top.full.drawing import Drawing
from qworker.cli.top.full.glyphs import ASCII
from qworker.cli.top.full.view import View
from qworker.errors import QworkerError
from qworker.monitor.rows import QueueRow
from qworker.monitor.sample import Sample

__all__ = ["LiveScreen"]

#: Seconds after which the clock of a server that is away is written again.
_CLOCK_S: Final = 1.0
#: Rows in sight that are read at every interval.
_WATCHED: Final = 100


class LiveScreen(Drawing):
    """The screen that follows a namespace."""

    def on_mount(self) -> None:
        """Begin to follow the sampler."""
        self.theme = "ansi-dark"
        self.set_class(self.glyphs is ASCII, "ascii")
        self._grid.focus()
        self.draw()
        self.run_worker(self._follow(), exclusive=True)

    def on_unmount(self) -> None:
        """End the sampler, and the changes that run."""
        self._watching.close()
        self.sampler.end()
        self.operator.close()

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
        self._read_limits()

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
            if isinstance(self.view, DeadOfKind):
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

    def _read_limits(self) -> None:
        if self.view is self.limits and not self._reading_limits and not self.shown.problem:
            self.run_worker(self._limits_again())

    async def _limits_again(self) -> None:
        self._reading_limits = True
        queues = self.shown.queues
        try:
            found = await in_background(lambda: self.operator.limits(queues))
        except QworkerError as error:
            self.say(describe(error)[0], "bad")
        else:
            self.limits.found = found
        finally:
            self._reading_limits = False
        self.limits.update(self.shown)
        self.draw()

    async def _letters_of(self, letters: DeadOfKind) -> None:
        try:
            found, now_ms = await in_background(lambda: letters.load(self.namespace))
        except QworkerError as error:
            letters.reading = False
            self.say(describe(error)[0], "bad")
        else:
            letters.take(found, now_ms)
        self.draw()

    def _turn_to(self, view: View[Any]) -> None:
        self._close_filter()
        self.view = view
        self._said = ("", "", 0.0)
        self._read_dead()
        self._read_tasks()
        self._read_limits()
        self.draw()

    def _only(self, queue: str) -> None:
        self.dead.only = queue
        self.dead.cursor = 0
        self._turn_to(self.dead)

    def _close_filter(self) -> None:
        box = self.query_one("#filter", Input)
        box.display = False
        self._grid.focus()
        self.draw()

    @property
    def _row(self) -> Any:
        """The row that a verb is for: that of the page that is open, else the one under the cursor."""
        return self._page.row if self._page is not None else self.view.selected
