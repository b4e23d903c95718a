"""The sampler: one thread per process reads the namespace, for any number of viewers.

All queues are read as often as costs the server less than half a percent of its time (every 2 seconds for 200 queues,
every 8 seconds for 1,000); those on a page that is being looked at every 2 seconds. Without viewers it slows down, and
ends after an hour. The checks of the doctor are made at most every 15 seconds, on what was sampled.
"""

from __future__ import annotations

import asyncio
import os
import threading
import time
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import TYPE_CHECKING, Final

import structlog

from qworker.client.namespace.queues import is_queue
from qworker.errors import QworkerError
from qworker.monitor.history import HOUR_S
from qworker.monitor.one_pass import Pass
from qworker.monitor.sample import Sample

if TYPE_CHECKING:
    from qworker.monitor.namespace import Namespace

__all__ = ["EVERY_S", "Sampler"]

_log = structlog.get_logger(__name__)

#: Seconds between readings while there are viewers.
EVERY_S: Final = 2.0
#: Seconds for which a request without a stream counts as a viewer.
_LOOKS_S: Final = 30.0
#: The same as `EVERY_S` without viewers.
_UNSEEN_S: Final = 10.0
#: Seconds that a reading in progress has at the end.
_END_S: Final = 10.0


class Sampler:
    """Reads a namespace again and again, and keeps the last hour. Starts at the first question, again after a fork.

    `lasts`: go on without viewers forever, and not for an hour. `every_s`: seconds between readings while somebody
    looks.
    """

    def __init__(
        self, namespace: Namespace, *, lasts: bool = False, every_s: float = EVERY_S
    ) -> None:
        self._namespace = namespace
        self._lasts = lasts
        self._every_s = every_s
        self._lock = threading.Lock()
        self._wake = threading.Event()
        self._waiters: set[tuple[asyncio.AbstractEventLoop, asyncio.Event]] = set()
        self._viewers: list[Collection[str]] = []
        self._thread: threading.Thread | None = None
        self._pid = 0
        self._seen_s = 0.0
        self._taken_s = 0.0
        self._ended = False
        self._sample = Sample()
        self._pass = Pass(namespace, every_s)

    @property
    def sample(self) -> Sample:
        """The last sample; starts the sampler."""
        self._start()
        return self._sample

    @property
    def ended(self) -> bool:
        """Whether `end` was called: streams end then."""
        return self._ended

    async def first(self, within_s: float) -> Sample:
        """Return the last sample; waits for the first one."""
        sample = self.sample
        return sample if sample.number else await self.after(0, within_s)

    async def after(self, number: int, within_s: float) -> Sample:
        """Wait for a sample with a higher number; returns the last one if none comes in time."""
        waiter = (asyncio.get_running_loop(), asyncio.Event())
        with self._lock:
            if self._sample.number > number or self._ended:
                return self._sample
            self._waiters.add(waiter)
        self._start()
        try:
            await asyncio.wait_for(waiter[1].wait(), within_s)
        except TimeoutError:
            pass  # the caller looks at the number
        finally:
            with self._lock:
                self._waiters.discard(waiter)
        return self._sample

    @contextmanager
    def watching(self, queues: Collection[str]) -> Iterator[None]:
        """Read these queues in every reading meanwhile, also while all others rest."""
        watched: Collection[str] = tuple(queues)
        with self._lock:
            self._viewers.append(watched)
        self._start()
        if time.monotonic() - self._taken_s > self._every_s:
            self._wake.set()
        try:
            yield
        finally:
            with self._lock:
                self._viewers.remove(watched)

    def refresh(self, queue: str) -> None:
        """Read a queue now, after it was changed. A name that cannot be one is not looked for. Raises `ServerError`."""
        if self._sample.now_ms and is_queue(queue):
            self._publish(self._pass.some(self._sample, [queue]))

    def end(self) -> None:
        """Let the thread end after its reading, and all waits at once."""
        self._ended = True
        self._wake.set()
        self._tell()

    def join(self) -> None:
        """Wait until the thread has ended."""
        if self._thread is not None and self._pid == os.getpid():
            self._thread.join(_END_S)

    def _start(self) -> None:
        self._seen_s = time.monotonic()
        with self._lock:
            alive = self._thread is not None and self._thread.is_alive()
            if self._ended or (alive and self._pid == os.getpid()):
                return
            if self._pid and self._pid != os.getpid():
                self._waiters, self._viewers = set(), []
            self._pid = os.getpid()
            self._thread = threading.Thread(target=self._run, name="qworker-sampler", daemon=True)
            self._thread.start()

    def _run(self) -> None:
        while not self._ended and (self._lasts or time.monotonic() - self._seen_s < HOUR_S):
            with self._lock:
                watched = {name for names in self._viewers for name in names}
                seen = bool(self._viewers) or time.monotonic() - self._seen_s < _LOOKS_S
            try:
                self._publish(self._pass.take(self._sample, watched))
            except QworkerError as error:
                self._publish(replace(self._sample, problem=str(error)))
            except Exception:  # noqa: BLE001  a bug must not leave every page without answers
                _log.exception("sample_failed")
                self._publish(replace(self._sample, problem="reading it failed, see the log"))
            self._taken_s = time.monotonic()
            self._wake.wait(self._every_s if seen or self._sample.problem else _UNSEEN_S)
            self._wake.clear()

    def _publish(self, sample: Sample) -> None:
        with self._lock:
            self._sample = replace(sample, number=self._sample.number + 1)
        self._tell()

    def _tell(self) -> None:
        with self._lock:
            waiters, self._waiters = self._waiters, set()
        for loop, event in waiters:
            try:
                loop.call_soon_threadsafe(event.set)
            except RuntimeError:
                continue  # its loop is closed
