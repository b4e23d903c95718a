"""Changes of many dead letters, in the background: started from a screen, shown with progress, stopped at any time.

A change that ends early, because it is stopped, the server goes or this process ends, has lost nothing and done
nothing twice: the same change again continues with the rest.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

import structlog

from qworker.client.dead import pages
from qworker.client.dead.pages import Changed, Reading
from qworker.client.dead.throttle import Throttle
from qworker.errors import InvalidOptionError, QworkerError
from qworker.formats import count

if TYPE_CHECKING:
    from qworker.client.dead.filter import DeadFilter
    from qworker.client.dead.pages import Act
    from qworker.monitor.namespace import Namespace

__all__ = ["Job", "Jobs"]

_log = structlog.get_logger(__name__)

#: Changes at the same time in one process: each has a thread and a connection.
_RUNNING: Final = 8
#: Seconds for which a screen shows a change that has ended.
_SHOWN_S: Final = 600.0
#: Seconds that a change in progress has at the end of the process.
_END_S: Final = 5.0


class _StoppedError(Exception):
    """The change was stopped by a user."""


@dataclass(slots=True)
class Job:
    """A change of dead letters; `ended` says how it ended, and is '' while it runs.

    `shown`: how many the screen had counted that asked for it, as far as it looked.
    """

    id: str
    user: str
    verb: str
    queue: str
    filter: str
    shown: int
    per_s: float | None
    changed: Changed = field(default_factory=Changed)
    ended: str = ""
    ended_s: float = 0.0
    stopping: threading.Event = field(default_factory=threading.Event)

    @property
    def outcome(self) -> str:
        """Its outcome so far."""
        done = {"redrive": "redriven", "drop": "dropped"}[self.verb]
        text = f"{count(self.changed.done, 'dead letter')} {done}"
        if self.changed.foreign:
            text += f", {count(self.changed.foreign)} foreign skipped"
        return f"{text}{'; ' if self.ended else ''}{self.ended}"


class Jobs:
    """The changes of this process. `on_end` gets each one that has ended, on its thread."""

    def __init__(self, namespace: Namespace, on_end: Callable[[Job], None]) -> None:
        self._namespace = namespace
        self._on_end = on_end
        self._lock = threading.Lock()
        self._jobs: dict[str, Job] = {}
        self._threads: list[threading.Thread] = []

    def of(self, queue: str) -> list[Job]:
        """Return the changes of a queue that run or ended a short time ago, the latest first."""
        return [job for job in self.all() if job.queue == queue]

    def all(self) -> list[Job]:
        """Return the changes of all queues that run or ended a short time ago, the latest first."""
        now_s = time.monotonic()
        with self._lock:
            for old in [
                job for job in self._jobs.values() if job.ended and now_s - job.ended_s > _SHOWN_S
            ]:
                del self._jobs[old.id]
            return [*reversed(self._jobs.values())]

    def prepare(self, job: Job, act: Act, wanted: DeadFilter, at_ms: int) -> Callable[[], None]:
        """Take a change of the dead letters that had died at `at_ms` and fit; returns what begins it.

        Raises `InvalidOptionError`.
        """
        readings = pages.readings_at(self._namespace.queues.ref(job.queue), wanted, at_ms)
        started = self._namespace.client.run(readings)
        with self._lock:
            if job.id in self._jobs:
                raise InvalidOptionError(
                    "change", "was started already", "its progress is shown with the queue"
                )
            if sum(not other.ended for other in self._jobs.values()) >= _RUNNING:
                raise InvalidOptionError(
                    "change", f"{_RUNNING} others are running", "wait for one of them, or stop it"
                )
            self._jobs[job.id] = job
        thread = threading.Thread(target=self._run, args=(job, act, started), daemon=True)

        def begin() -> None:
            self._threads = [other for other in self._threads if other.is_alive()] + [thread]
            thread.start()

        return begin

    def stop(self, queue: str, job_id: str) -> Job | None:
        """Stop a change before its next call; None if there is no such change."""
        job = next((job for job in self.of(queue) if job.id == job_id), None)
        if job is not None:
            job.stopping.set()
        return job

    def close(self) -> None:
        """Stop all, and wait a short time for them."""
        with self._lock:
            for job in self._jobs.values():
                job.stopping.set()
        for thread in self._threads:
            thread.join(_END_S)

    def _run(self, job: Job, act: Act, readings: list[Reading]) -> None:
        client, throttle = self._namespace.client, Throttle(job.per_s)
        ended = "failed: a defect, see the log"

        def count_them(changed: Changed) -> None:
            job.changed.add(changed)
            if job.stopping.is_set():
                raise _StoppedError

        try:
            for reading in readings:
                while not reading.ended:
                    if job.stopping.is_set():
                        raise _StoppedError
                    chosen = [one.entry for one in client.run(reading.page())]
                    plan = pages.change_these(reading.keys, act, chosen, throttle, count_them)
                    client.run(plan)
            ended = "done"
        except _StoppedError:
            ended = "stopped; the rest is unchanged"
        except QworkerError as error:
            ended = f"ended early, the rest is unchanged: {error}"
        except Exception:  # noqa: BLE001  nothing above the thread would report it
            _log.exception("change_failed", verb=job.verb, queue=job.queue)
        job.ended_s = time.monotonic()
        job.ended = ended
        self._on_end(job)
