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
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import TYPE_CHECKING, Final, TypeVar

import structlog

from qworker.client.inspect.many import inspect_many
from qworker.client.inspect.peek import Inspection
from qworker.client.namespace.queues import is_queue
from qworker.client.namespace.workers import read_reapers, read_workers
from qworker.daemon.registry import AWAY
from qworker.errors import BrokenQueueError, QworkerError, UnavailableError
from qworker.health.server import examine
from qworker.monitor.history import HOUR_S, Series
from qworker.monitor.sample import Sample

if TYPE_CHECKING:
    from qworker.monitor.namespace import Namespace
    from qworker.wire.shards import Shards

__all__ = ["EVERY_S", "Sampler"]

_log = structlog.get_logger(__name__)

T = TypeVar("T")

#: Seconds between readings while there are viewers.
EVERY_S: Final = 2.0
#: Seconds for which a request without a stream counts as a viewer.
_LOOKS_S: Final = 30.0
#: The same as `EVERY_S` without viewers.
_UNSEEN_S: Final = 10.0
_CHECKS_S: Final = 15.0
#: A reading of everything comes again after this many times what it took: the server's part of that is below 0.5 %.
_REST: Final = 150
#: Rates are over at least this long.
_RATE_MS: Final = 5_000
#: Seconds that a reading in progress has at the end.
_END_S: Final = 10.0
#: Points of a sparkline of a queue, and of all queues.
_QUEUE_APART_S: Final = 30.0
_TOTAL_APART_S: Final = 10.0


class Sampler:
    """Reads a namespace again and again, and keeps the last hour. Starts at the first question, anew after a fork.

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
        self._pass = _Pass(namespace, every_s)

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


class _Pass:
    """One reading, and when the next of everything is due."""

    def __init__(self, namespace: Namespace, every_s: float) -> None:
        self._namespace = namespace
        self._every_s = every_s
        self._due_s = 0.0
        self._took_s = 0.0
        self._checks_s = 0.0
        self._checks_took_s = 0.0
        self._totals = {
            name: Series(_TOTAL_APART_S)
            for name in ("sent", "done", "failed", "ready", "oldest", "dead")
        }
        self._ready: dict[str, Series] = {}
        self._done: dict[str, Series] = {}

    def take(self, last: Sample, watched: Collection[str]) -> Sample:
        """Read everything if that is due, else only the queues on open pages. Raises `ServerError`."""
        started_s = time.monotonic()
        if started_s < self._due_s and not last.problem:
            return self._people(self.some(last, watched))
        queues = self._namespace.queues
        shards = queues.list()
        sample = self._people(self._inspected(replace(last, queues={}), last, shards))
        queues.shards, queues.unread = shards, sample.unread
        queues.inspections = {
            name: queue
            for name, queue in sample.queues.items()
            if isinstance(queue, Inspection | BrokenQueueError)
        }
        now_s = time.monotonic()
        # Waiting for a node that is away costs no server anything: a reading takes as long as the last whole one.
        if not queues.away:
            self._took_s = now_s - started_s
        self._due_s = now_s + max(self._every_s / 2, _REST * self._took_s)
        self._remember(sample, now_s)
        if now_s >= self._checks_s:
            sample = replace(sample, findings=tuple(examine(self._namespace)))
            ended_s = time.monotonic()
            if not queues.away:
                self._checks_took_s = ended_s - now_s
            self._checks_s = ended_s + max(_CHECKS_S, _REST * self._checks_took_s)
        return sample

    def some(self, last: Sample, names: Collection[str]) -> Sample:
        """Read some queues again; one that is gone disappears."""
        if not names:
            return last
        found = self._namespace.queues.look_up(names)
        kept = {name: queue for name, queue in last.queues.items() if name not in names}
        return self._inspected(replace(last, queues=kept), last, found)

    def _inspected(
        self,
        sample: Sample,
        last: Sample,
        shards: Mapping[str, Shards],
    ) -> Sample:
        """Add inspections, or errors. If none of these queues can be read, raises that of a server that is alone."""
        namespace = self._namespace
        queues, unread = dict(sample.queues), 0
        for name, outcome in inspect_many(namespace.client, namespace.namespace, shards).items():
            queues[name] = outcome
            if isinstance(outcome, Inspection | BrokenQueueError):
                continue
            unread += 1
            if unread == len(shards) and not namespace.client.factory.clustered:
                raise outcome
            if (node := namespace.queues.node_away(name)) is not None:
                queues[name] = UnavailableError(f"node {node} of the Cluster is away: {outcome}")
        earlier = {}
        for name, queue in queues.items():
            before, base = last.queues.get(name), last.earlier.get(name)
            if not isinstance(queue, Inspection):
                continue
            # The base moves on while rates stay over a few seconds.
            if (
                before is not queue
                and isinstance(before, Inspection)
                and (base is None or before.now_ms - base.now_ms >= _RATE_MS)
            ):
                base = before
            if base is not None:
                earlier[name] = base
        return replace(
            sample,
            queues=dict(sorted(queues.items())),
            earlier=earlier,
            totals=self._totals,
            ready=self._ready,
            done=self._done,
            problem="",
        )

    def _people(self, sample: Sample) -> Sample:
        """Read workers and reapers."""
        namespace = self._namespace
        now_ms = namespace.now_ms()
        unlisted = namespace.queues.unlisted
        unknown = {"queues": unlisted} if unlisted else {}
        return replace(
            sample,
            now_ms=now_ms,
            workers=self._known("workers", lambda: read_workers(namespace, now_ms), unknown),
            reapers=self._known("reapers", lambda: read_reapers(namespace, now_ms), unknown),
            problem="",
            unknown=unknown,
        )

    def _known(
        self, name: str, read: Callable[[], list[T]], unknown: dict[str, str]
    ) -> Sequence[T]:
        """Read a list; while its node of a Cluster is away it is empty, and named in `unknown`."""
        try:
            return tuple(read())
        except AWAY as error:
            if not self._namespace.client.factory.clustered:
                raise
            unknown[name] = str(error)
            return ()

    def _remember(self, sample: Sample, now_s: float) -> None:
        read = sample.read()
        if not sample.unread:
            self._remember_totals(sample, read, now_s)
        for queue in read:
            of_queue = sample.flow(queue.queue)
            self._keep(self._ready, queue.queue, now_s, queue.ready)
            if of_queue is not None:
                self._keep(self._done, queue.queue, now_s, of_queue.done)
        for kept in (self._ready, self._done):
            for gone in kept.keys() - sample.queues.keys():
                del kept[gone]

    def _remember_totals(self, sample: Sample, read: list[Inspection], now_s: float) -> None:
        """Add points to the figures of all queues; sums of a part of them would look like a fall."""
        flow = sample.total_flow()
        figures = {
            "ready": float(sum(queue.ready for queue in read)),
            "oldest": max((queue.oldest_age_s for queue in read), default=0.0),
            "dead": float(sum(queue.dead for queue in read)),
        }
        if flow is not None:
            figures |= flow._asdict()
        for name, value in figures.items():
            self._totals[name].add(now_s, value)

    @staticmethod
    def _keep(kept: dict[str, Series], queue: str, now_s: float, value: float) -> None:
        """Append a point; a queue in which nothing ever happened costs no memory."""
        if value or queue in kept:
            kept.setdefault(queue, Series(_QUEUE_APART_S)).add(now_s, value)
