"""Changes of many dead letters, in the background: started from a screen, shown with progress, stopped at any time.

A change that ends early, because it is stopped, the server goes away or this process ends, has lost nothing and done
nothing twice: repeat the change to continue with the rest. A drop begins only `UNDO_S` seconds after it was asked
for: stopping it until then undoes it, and so does an end of the process.
"""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

import structlog

from qworker.client.dead import pages
from qworker.client.dead.pages import ChangeCounts, DeadLetterScan
from qworker.client.dead.throttle import Throttle
from qworker.errors import InvalidOptionError, QworkerError
from qworker.formats import count, span
from qworker.wire.ids import EntryId

if TYPE_CHECKING:
    from qworker.client.dead.filter import DeadFilter
    from qworker.client.dead.pages import Act
    from qworker.monitor.namespace import Namespace

__all__ = ["UNDO_S", "BulkChange", "Jobs"]

_log = structlog.get_logger(__name__)

#: Seconds after which a drop begins.
UNDO_S: Final = 10.0
#: Changes at the same time in one process, each with a thread and a connection; those of one dead letter count apart.
_RUNNING: Final = 8
_SINGLE: Final = 50
#: Seconds for which a screen shows a change that has ended.
_SHOWN_S: Final = 600.0
#: Seconds that a change in progress has at the end of the process.
_END_S: Final = 5.0
#: Seconds for which a screen waits to hear that a drop was undone.
_UNDONE_WITHIN_S: Final = 2.0
_UNDONE: Final = "undone: nothing was dropped"
_GONE: Final = "it is foreign, or was redriven or dropped before"


class _StoppedError(Exception):
    """The change was stopped by a user."""


@dataclass(slots=True)
class BulkChange:
    """A change of dead letters; `ended` says how it ended, and is '' while it runs.

    `shown`: how many the screen had counted that asked for it, as far as it looked. `entry`: of the only dead letter.
    `begins_s`: when it begins, by `time.monotonic`.
    """

    id: str
    user: str
    verb: str
    queue: str
    filter: str
    shown: int
    per_s: float | None
    entry: str = ""
    begins_s: float = 0.0
    changed: ChangeCounts = field(default_factory=ChangeCounts)
    ended: str = ""
    ended_s: float = 0.0
    stopping: threading.Event = field(default_factory=threading.Event)
    finished: threading.Event = field(default_factory=threading.Event)

    @property
    def left_s(self) -> float:
        """Seconds in which it can be undone; 0 once it has begun."""
        return 0.0 if self.ended else max(0.0, self.begins_s - time.monotonic())

    @property
    def outcome(self) -> str:
        """Its outcome so far."""
        if left_s := self.left_s:
            return f"nothing yet, begins in {span(math.ceil(left_s))}"
        if self.ended == _UNDONE:
            return self.ended
        done = {"redrive": "redriven", "drop": "dropped"}[self.verb]
        text = f"{count(self.changed.done, 'dead letter')} {done}"
        if self.changed.foreign:
            text += f", {count(self.changed.foreign)} foreign skipped"
        return f"{text}{'; ' if self.ended else ''}{self.ended}"


class Jobs:
    """The changes of this process. `on_end` gets each one that has ended, on its thread.

    `undo_s`: seconds in which a drop can be undone.
    """

    def __init__(
        self, namespace: Namespace, on_end: Callable[[BulkChange], None], *, undo_s: float = UNDO_S
    ) -> None:
        self.undo_s = undo_s
        self._namespace = namespace
        self._on_end = on_end
        self._lock = threading.Lock()
        self._jobs: dict[str, BulkChange] = {}
        self._threads: list[threading.Thread] = []

    def of(self, queue: str) -> list[BulkChange]:
        """Return the changes of a queue that run or ended a short time ago, the latest first."""
        return [job for job in self.all() if job.queue == queue]

    def all(self) -> list[BulkChange]:
        """Return the changes of all queues that run or ended a short time ago, the latest first."""
        now_s = time.monotonic()
        with self._lock:
            for old in [
                job for job in self._jobs.values() if job.ended and now_s - job.ended_s > _SHOWN_S
            ]:
                del self._jobs[old.id]
            return [*reversed(self._jobs.values())]

    def prepare(
        self, job: BulkChange, act: Act, wanted: DeadFilter, at_ms: int
    ) -> Callable[[], None]:
        """Take a change of the dead letters that had died at `at_ms` and fit; returns what begins it.

        Raises `InvalidOptionError`.
        """
        readings = pages.readings_at(self._namespace.queues.ref(job.queue), wanted, at_ms)
        started = self._namespace.client.run(readings)
        return self._enter(job, lambda: self._change(job, act, started))

    def prepare_drop(self, job: BulkChange) -> Callable[[], None]:
        """Take the drop of the dead letter that a change names; returns what begins it. Raises `InvalidOptionError`."""
        EntryId.parse(job.entry)

        def drop() -> None:
            done = self._namespace.queues.get(job.queue).drop_dead(job.entry)
            job.changed.add(ChangeCounts(done=done, gone=1 - done))

        return self._enter(job, drop)

    def _enter(self, job: BulkChange, change: Callable[[], None]) -> Callable[[], None]:
        most = _SINGLE if job.entry else _RUNNING
        with self._lock:
            others = [
                other
                for other in self._jobs.values()
                if not other.ended and bool(other.entry) == bool(job.entry)
            ]
            same = job.entry and any(
                (other.queue, other.entry) == (job.queue, job.entry) for other in others
            )
            if job.id in self._jobs or same:
                raise InvalidOptionError(
                    "change", "was started already", "its progress is shown with the queue"
                )
            if len(others) >= most:
                raise InvalidOptionError(
                    "change", f"{most} others are running", "wait for one of them, or stop it"
                )
            self._jobs[job.id] = job
            # Until it begins, it can be undone.
            job.begins_s = time.monotonic() + (self.undo_s if job.verb == "drop" else 0.0)
        thread = threading.Thread(target=self._run, args=(job, change), daemon=True)

        def begin() -> None:
            if job.verb == "drop":
                job.begins_s = time.monotonic() + self.undo_s
            self._threads = [other for other in self._threads if other.is_alive()] + [thread]
            thread.start()

        return begin

    def stop(self, queue: str, job_id: str) -> BulkChange | None:
        """Stop a change before its next call, or undo it; None if there is no such change."""
        job = next((job for job in self.of(queue) if job.id == job_id), None)
        if job is not None:
            waited = job.left_s > 0
            job.stopping.set()
            if waited:
                # Its thread decides whether it was in time.
                job.finished.wait(_UNDONE_WITHIN_S)
        return job

    def close(self) -> None:
        """Stop all, and wait a short time for them."""
        with self._lock:
            for job in self._jobs.values():
                job.stopping.set()
        for thread in self._threads:
            thread.join(_END_S)

    def _change(self, job: BulkChange, act: Act, readings: list[DeadLetterScan]) -> None:
        """Change dead letters, page by page. Raises `_StoppedError`, `QworkerError`."""
        client, throttle = self._namespace.client, Throttle(job.per_s)

        def count_them(changed: ChangeCounts) -> None:
            job.changed.add(changed)
            if job.stopping.is_set():
                raise _StoppedError

        for reading in readings:
            while not reading.ended:
                if job.stopping.is_set():
                    raise _StoppedError
                chosen = [one.entry for one in client.run(reading.page())]
                plan = pages.change_these(reading.keys, act, chosen, throttle, count_them)
                client.run(plan)

    def _run(self, job: BulkChange, change: Callable[[], None]) -> None:
        ended, begun = "failed: a defect, see the log", False
        try:
            if job.stopping.wait(job.left_s):
                raise _StoppedError
            begun = True
            change()
            ended = _GONE if job.entry and job.changed.gone else "done"
        except _StoppedError:
            ended = "stopped; the rest is unchanged" if begun or job.verb != "drop" else _UNDONE
        except QworkerError as error:
            ended = f"ended early, the rest is unchanged: {error}"
        except Exception:  # noqa: BLE001  nothing above the thread would report it
            _log.exception("change_failed", verb=job.verb, queue=job.queue)
        job.ended_s = time.monotonic()
        job.ended = ended
        job.finished.set()
        self._on_end(job)
