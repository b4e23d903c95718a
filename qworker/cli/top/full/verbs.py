"""The verbs of the full screen: each asks, changes the namespace in the background, and shows the outcome."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Final

from qworker.cli.framework.errors import describe
from qworker.cli.top.full.background import in_background
from qworker.cli.top.full.dead import DeadRow
from qworker.cli.top.full.dead_of_kind import DeadOfKind
from qworker.cli.top.full.dialogs import Ask, Confirm, DialogChoice
from qworker.cli.top.full.opening import Opening
from qworker.cli.top.full.operator import DeadLetterCount
from qworker.cli.top.full.tasks import TaskRow
from qworker.client.dead.filter import DeadFilter
from qworker.client.dead.throttle import rate_per_s
from qworker.client.message import DeadLetter
from qworker.client.namespace.requests import change_of
from qworker.client.namespace.workers import Running, Worker
from qworker.errors import QworkerError
from qworker.formats import count, span
from qworker.monitor.rows import QueueRow

__all__ = ["Verbs"]

#: A redrive is offered at this rate.
_RATE: Final = "10/s"


class Verbs(Opening):
    """The screen with the actions of an operator."""

    def action_pause(self) -> None:
        """Ask in which directions a queue is paused."""
        row: QueueRow | None = self._row
        if row is None:
            return
        detail = "Running handlers continue."
        if row.queue is not None:
            waiting = count(row.queue.ready, "ready message")
            detail += f" {waiting} of it would wait until it is resumed."
        choices = [
            DialogChoice("a", "refuse sends, and deliver nothing", "in,out"),
            DialogChoice("i", "refuse sends only", "in"),
            DialogChoice("o", "deliver nothing only", "out"),
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
            [DialogChoice("y", "resume both directions", "y")],
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
            [DialogChoice("y", "drain it", "y")],
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
            change = "Add a process to" if processes == "+1" else "Remove a process from"
            self._confirm(
                f"{change} worker {row.name}?",
                f"It has {has}. The change lasts until it exits.",
                [DialogChoice("y", "change it", processes)],
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
                [DialogChoice("y", "pause it", "y")],
                lambda _: self._do(lambda: self.operator.pause_task(task)),
            )

    def action_resume_task(self) -> None:
        """Resume a task."""
        task, _ = self._chosen_task()
        if task:
            self._confirm(
                f"Resume task {task}?",
                "Its messages are received within about a minute.",
                [DialogChoice("y", "resume it", "y")],
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
        if row is None or not isinstance(self.view, DeadOfKind):
            return
        queue, entry = self.view.row.queue, row.entry_id
        drop = verb == "drop"
        undo = f" {self._undo()}" if drop else ""
        self._confirm(
            f"{'Drop' if drop else 'Redrive'} 1 dead letter of {queue}?",
            f"Entry {entry}, message {row.message.id or 'without id'}.{undo}",
            [DialogChoice("y", "delete it" if drop else "put it back to ready", "y")],
            lambda _: self._do(lambda: self.operator.change_letter(verb, queue, entry), queue),
            bad=drop,
        )

    def action_stop(self) -> None:
        """Stop the change of a queue that runs, or undo the drop that has not begun."""
        row = self.view.row if isinstance(self.view, DeadOfKind) else self._row
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
            self.say(f"{queue} has no more dead letters of this kind", "warn")
            self.dead.forget()
            return
        number = _number(counted)

        def act(per_s: str) -> None:
            self._do(lambda: self.operator.change_dead(verb, queue, wanted, counted, per_s), queue)

        if verb == "drop":
            self._confirm(
                f"Drop {number} of {queue}?",
                f"Those {kind}. {self._undo()}",
                [DialogChoice("y", f"delete {number}", "y")],
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
        choices: Sequence[DialogChoice],
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
        """Do it in the background, show the outcome, and read the queue again."""
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
        if isinstance(self.view, DeadOfKind):
            self.run_worker(self._letters_of(self.view))
        self._read_tasks()


def _number(counted: DeadLetterCount) -> str:
    """Write how many dead letters a question is about."""
    least = "" if counted.whole else "at least "
    return f"{least}{count(counted.number, 'dead letter')}"
