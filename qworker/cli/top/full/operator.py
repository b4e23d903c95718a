"""The actions of the operator at the screen: functions of the command line, each recorded in the audit trail."""

from __future__ import annotations

import getpass
import secrets
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import structlog

from qworker.cli.top.limits import busiest_limits
from qworker.client.dead import pages
from qworker.client.dead.newest import newest
from qworker.client.dead.throttle import rate_per_s
from qworker.client.manage.pauses import PAUSES, change_pauses
from qworker.client.namespace.audit import Deed, record_deed
from qworker.client.namespace.paused_tasks import pause_task, read_paused_tasks, resume_task
from qworker.client.namespace.requests import ask_workers, change_of, drain_workers
from qworker.errors import InvalidOptionError, QworkerError
from qworker.formats import count, span
from qworker.monitor.jobs import BulkChange, Jobs

if TYPE_CHECKING:
    from qworker.client.dead.filter import DeadFilter
    from qworker.client.manage.limit_load import LimitLoad
    from qworker.monitor.namespace import Namespace

__all__ = ["DeadLetterCount", "Operator"]

_log = structlog.get_logger(__name__)
#: Dead letters that are read before a question.
_COUNTED: Final = 20_000
_ACTS: Final = {"redrive": pages.redrive, "drop": pages.drop}


@dataclass(frozen=True, slots=True)
class DeadLetterCount:
    """Dead letters that fit a filter, as far as they were read, and the server's time then."""

    number: int
    whole: bool
    at_ms: int


class Operator:
    """Changes a namespace for one user. All of it waits for the server, and raises `QworkerError`."""

    def __init__(self, namespace: Namespace, user: str = "") -> None:
        self._namespace = namespace
        self._user = user or _user()
        self.jobs = Jobs(namespace, self._ended)

    def pause(self, queue: str, directions: Collection[str]) -> str:
        """Pause a queue in some directions; returns the directions that are paused then."""
        return self._pauses("queue pause", queue, close=directions)

    def resume(self, queue: str) -> str:
        """Resume a queue in both directions."""
        return self._pauses("queue resume", queue, reopen=("in", "out"))

    def drain(self, worker: str) -> str:
        """Ask a worker to end its handlers and exit."""
        namespace = self._namespace

        def act() -> str:
            drain_workers(namespace, [worker], namespace.now_ms())
            return "exits when its handlers have ended"

        return self._recorded("worker drain", worker, act)

    def scale(self, worker: str, processes: str) -> str:
        """Change the processes of a worker: 4, +1, -1."""
        change = change_of(processes, "processes")

        def act() -> str:
            answer = self._ask(worker, "scale", **change)
            wanted, before = answer["processes"], answer["before"]
            return f"{count(wanted, 'process', 'processes')} (was {before})"

        return self._recorded("worker scale", worker, act)

    def stacks(self, worker: str) -> list[Mapping[str, Any]]:
        """Read the stack of each handler of a worker."""
        return list(self._ask(worker, "stack").get("handlers") or ())

    def pause_task(self, task: str) -> str:
        """Pause a task."""
        namespace = self._namespace

        def act() -> str:
            now_ms = namespace.now_ms()
            done = pause_task(namespace.client.execute, namespace.namespace, task, now_ms)
            return "paused" if done else "already paused"

        return self._recorded("task pause", task, act)

    def resume_task(self, task: str) -> str:
        """Resume a task."""
        namespace = self._namespace

        def act() -> str:
            done = resume_task(namespace.client.execute, namespace.namespace, task)
            return "resumed" if done else "is not paused"

        return self._recorded("task resume", task, act)

    def paused_tasks(self) -> dict[str, int]:
        """Read the paused tasks."""
        namespace = self._namespace
        return read_paused_tasks(namespace.client.execute, namespace.namespace)

    def limits(self, queues: Mapping[str, object]) -> list[tuple[str, LimitLoad]]:
        """Read the limits under which messages wait, by queue."""
        namespace = self._namespace
        return busiest_limits(namespace.client, namespace.queues.ref, queues)

    def count_dead(self, queue: str, wanted: DeadFilter) -> DeadLetterCount:
        """Count the dead letters of a queue that fit, among the newest 20,000."""
        ref = self._namespace.queues.ref(queue)
        found = self._namespace.client.run(newest(ref, wanted, most_read=_COUNTED))
        return DeadLetterCount(len(found.found), found.last is None, found.now_ms)

    def change_dead(
        self, verb: str, queue: str, wanted: DeadFilter, counted: DeadLetterCount, per_s: str
    ) -> str:
        """Start to redrive or drop the dead letters that were counted, and no later ones, at a rate ('': no limit).

        Returns '': the change says how far it is.
        """
        limit = rate_per_s(per_s, "rate") if per_s else None
        written = f"--fingerprint {wanted.fingerprint}" if wanted.fingerprint else "--all"
        job_id = secrets.token_urlsafe(12)
        job = BulkChange(job_id, self._user, verb, queue, written, counted.number, limit)

        begin: list[Callable[[], None]] = []

        def act() -> str:
            begin.append(self.jobs.prepare(job, _ACTS[verb], wanted, counted.at_ms))
            begins = f"begins in {span(self.jobs.undo_s)}, unless it is undone"
            begun = begins if verb == "drop" else "started"
            return f"{begun}: {count(counted.number, 'dead letter')} counted"

        self._recorded(f"dead {verb}", f"{queue} {written}", act)
        begin[0]()  # its end is recorded behind its start
        return ""

    def change_letter(self, verb: str, queue: str, entry: str) -> str:
        """Redrive or drop one dead letter."""

        if verb == "drop":
            return self._drop_letter(queue, entry)

        def act() -> str:
            number = len(self._namespace.queues.get(queue).redrive(entry))
            if number:
                return f"{count(number, 'dead letter')} redriven"
            return "unchanged: it is foreign, its unique key is taken, or it is gone"

        return self._recorded("dead redrive", f"{queue} entry {entry}", act)

    def _drop_letter(self, queue: str, entry: str) -> str:
        target, begin = f"entry {entry}", list[Callable[[], None]]()
        job = BulkChange(
            secrets.token_urlsafe(12), self._user, "drop", queue, target, 1, None, entry
        )

        def act() -> str:
            begin.append(self.jobs.prepare_drop(job))
            return f"begins in {span(self.jobs.undo_s)}, unless it is undone"

        self._recorded("dead drop", f"{queue} {target}", act)
        begin[0]()
        return ""

    def stop(self, queue: str) -> str:
        """Stop the change of a queue that runs."""
        running = [job for job in self.jobs.of(queue) if not job.ended]
        if not running:
            raise InvalidOptionError("stop", f"no change runs in {queue}", "it may have ended")
        for job in running:
            self.jobs.stop(queue, job.id)
        return f"{queue}: {running[0].ended or 'asked to stop'}"

    def running(self) -> list[BulkChange]:
        """Return the changes that run, and those that ended a short time ago, the latest first."""
        return self.jobs.all()

    def close(self) -> None:
        """Stop the changes that run; the rest of them is unchanged."""
        self.jobs.close()

    def _pauses(
        self, verb: str, queue: str, close: Collection[str] = (), reopen: Collection[str] = ()
    ) -> str:
        def act() -> str:
            if not self._namespace.queues.look_up([queue]):
                raise InvalidOptionError("queue", f"{queue!r} does not exist", "it was removed")
            ref = self._namespace.queues.ref(queue)
            inspection = self._namespace.client.run(change_pauses(ref, close=close, reopen=reopen))
            return PAUSES.get(inspection.paused, inspection.paused)

        return self._recorded(verb, queue, act)

    def _ask(self, worker: str, verb: str, **arguments: Any) -> dict[str, Any]:
        for answer in ask_workers(self._namespace, [worker], verb, **arguments):
            if not answer.done:
                raise InvalidOptionError(worker, answer.text, f"qworker worker {verb} --help")
            return answer.data
        raise InvalidOptionError(
            worker, "did not answer", "it is unreachable, or runs an older version"
        )

    def _recorded(self, verb: str, target: str, act: Callable[[], str]) -> str:
        """Do it, and write it to the audit trail, with its outcome."""
        try:
            outcome = act()
        except QworkerError as error:
            self._record(verb, target, f"failed: {error}")
            raise
        self._record(verb, target, outcome)
        return f"{target}: {outcome}"

    def _ended(self, job: BulkChange) -> None:
        self._record(f"dead {job.verb}", f"{job.queue} {job.filter}", job.outcome)

    def _record(self, verb: str, target: str, outcome: str) -> None:
        deed = Deed(self._user, verb, target, outcome)
        try:
            record_deed(self._namespace.client.execute, self._namespace.namespace, deed)
        except QworkerError as error:
            # What was done is done.
            _log.error("audit_failed", user=self._user, verb=verb, target=target, error=str(error))


def _user() -> str:
    try:
        return getpass.getuser()
    except (OSError, KeyError):  # a container without a name for its user
        return "operator"
