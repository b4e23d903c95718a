"""The supervisor: holds no user code, starts the children that do, and minds them.

The main thread watches processes: exits, time limits, memory, stalls, signals. A second thread speaks to the server:
it extends leases, takes back what waits behind slow handlers, and settles what dead children had in hand. Neither
waits for the other.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from queue import Empty, SimpleQueue
from typing import TYPE_CHECKING, Final

import structlog

from qworker.client import Client
from qworker.consumer.board import Mark, boot_time
from qworker.consumer.child import slots_for
from qworker.consumer.keeper import Death, Keeper
from qworker.consumer.manifest import ChildConfig, Manifest
from qworker.consumer.presence import EVERY_S, Presence, rss_bytes
from qworker.consumer.process import ChildProcess
from qworker.errors import AppLoadError, QworkerError, ServerError

if TYPE_CHECKING:
    from qworker.config import LogOptions, RunOptions
    from qworker.connection import ConnectionFactory

__all__ = ["EXIT_WATCHDOG", "ChildExits", "Supervisor"]

_log = structlog.get_logger(__name__)

EXIT_WATCHDOG: Final = 70
_LOOK_S: Final = 0.05
_KEEP_S: Final = 0.1
#: What waits behind a handler that runs longer than this is given back.
_SLOW_S: Final = 1.0
_RSS_EVERY_S: Final = 2.0
#: A child that ends sooner than this did not work; the next one is started later and later.
_SHORT_LIFE_S: Final = 2.0
_LONGEST_PAUSE_S: Final = 30.0
#: What a child needs beyond the grace time to tell how its handlers ended.
_GOODBYE_S: Final = 0.5


@dataclass(slots=True)
class ChildExits:
    """How many children ended, by reason; and what dead and living children have counted, by task name."""

    by_reason: dict[str, int] = field(
        default_factory=lambda: dict.fromkeys(
            ("recycled", "crashed", "time_limit", "rss", "watchdog", "stopped"), 0
        )
    )


class Supervisor:
    """Runs the children of one app until it is told to stop.

    `on_manifest` is called once, with the first manifest (it registers schedules, starts companions …). `on_look`
    is called at each turn of the main loop.
    """

    def __init__(
        self,
        app: str,
        factory: ConnectionFactory,
        options: RunOptions,
        logs: LogOptions,
        *,
        on_manifest: Callable[[Manifest, Client], None] = lambda manifest, client: None,
        on_look: Callable[[], None] = lambda: None,
    ) -> None:
        self._app = app
        self._client = Client(factory, give_up_s=20.0)
        self._options = options
        self._logs = logs
        self._url = factory.url
        #: The app's, known from the first manifest on.
        self.namespace = ""
        self._on_manifest = on_manifest
        self._on_look = on_look
        self._procs = options.procs or os.cpu_count() or 1
        self._slots = slots_for(True, True, options.concurrency or 0)
        self.children: list[ChildProcess] = []
        self.exits = ChildExits()
        self.manifest: Manifest | None = None
        self.queues: list[str] = []
        self.keeper = Keeper(self._client)
        self._counted: dict[str, list[list[float]]] = {}
        self._handled_before = 0
        self._failed_before = 0
        self._stale_before = 0
        self._presence: Presence | None = None
        self._jobs: SimpleQueue[Callable[[], None]] = SimpleQueue()
        self._kept = threading.Event()
        self._stop_wanted = 0
        self._restart_at: dict[int, float] = {}
        self._pauses: dict[int, float] = {}
        self._idle_deaths: dict[int, bool] = {}
        self._recalled: set[tuple[int, str]] = set()
        self._rss_at = 0.0
        self._exit_code = 0
        self._lock = threading.Lock()

    # -- the loop ------------------------------------------------------------------------------

    def run(self) -> int:
        """Start the children and mind them until a signal, a burst's end or a fatal error; returns the exit code.

        Raises `AppLoadError` where the first child cannot import the app.
        """
        keeping = threading.Thread(target=self._keep, name="qworker-keeper", daemon=True)
        keeping.start()
        try:
            self._start_all()
            while self.children or self._restart_at:
                if self._stop_wanted:
                    self._stop_all()
                    break
                self._look()
                time.sleep(_LOOK_S)
        finally:
            for child in self.children:
                child.kill()
            self._kept.set()
            keeping.join(_GOODBYE_S + 2.0)
            self._client.close()
        return self._exit_code

    def stop(self, *_: object) -> None:
        """Stop gracefully; a second call ends the children at once. Fit for a signal handler."""
        self._stop_wanted += 1

    def reload(self) -> None:
        """Replace all children by new ones, gracefully: for development."""
        for child in self.children:
            child.stop("reload")
            self._later(self._recall_all, child)

    @property
    def stopping(self) -> bool:
        """Whether it was told to stop."""
        return self._stop_wanted > 0

    def _look(self) -> None:
        for child in list(self.children):
            manifest = child.read_manifest()
            if manifest is not None:
                self._take_manifest(manifest)
            code = child.ended()
            if code is not None:
                self._bury(child, code)
            else:
                self._check(child)
        now = time.monotonic()
        for number, at in list(self._restart_at.items()):
            if now >= at:
                del self._restart_at[number]
                self._start(number)
        self._on_look()

    def _start_all(self) -> None:
        for number in range(self._procs):
            self._start(number)

    def _start(self, number: int) -> None:
        options = self._options
        config = ChildConfig(
            app=self._app,
            url=self._url,
            number=number,
            board=-1,
            control=-1,
            slots=self._slots,
            concurrency=options.concurrency or 0,
            queues=list(options.queues or options.weights),
            weights={name: float(weight) for name, weight in options.weights.items()},
            burst=options.burst,
            max_messages=options.max_messages,
            max_batch=options.batch or 0,
            visibility_ms=options.visibility_ms,
            takes_suspects=number % 4 == 0,
            log_format=self._logs.log_format,
            log_level=self._logs.log_level,
        )
        child = ChildProcess(config, self._slots)
        child.board.peers = self._procs
        with self._lock:
            self.children.append(child)
        _log.info("child_started", pid=child.pid, number=number)

    def _take_manifest(self, manifest: Manifest) -> None:
        if manifest.error:
            if self.manifest is None:
                raise AppLoadError(manifest.error)
            _log.error("child_start_failed", error=manifest.error)
            return
        if self.manifest is None:
            queues = list(self._options.queues or self._options.weights)
            self.queues = queues or list(dict.fromkeys(task.queue for task in manifest.tasks))
            self.namespace = self.keeper.namespace = manifest.namespace
            self._presence = Presence(self._client, manifest.namespace, self._app)
            self.manifest = manifest
            self._on_manifest(manifest, self._client)
        self.manifest = manifest

    # -- minding -------------------------------------------------------------------------------

    def _check(self, child: ChildProcess) -> None:
        overdue = child.overdue_handlers()
        if overdue and child.ended() is None:
            names = [self._task_name(view.task) for view in overdue]
            _log.warning("time_limit_exceeded", pid=child.pid, tasks=names)
            child.kill(overdue)
            return
        self._recall_behind_slow(child)
        self._check_rss(child)
        self._check_watchdog(child)

    def _recall_behind_slow(self, child: ChildProcess) -> None:
        now = boot_time()
        running = child.board.running()
        if len(running) < self._busy_slots() or not running:
            return
        if min(now - view.started for view in running) < _SLOW_S:
            return
        for lease in child.board.held_leases():
            key = (child.pid, lease.lease_id)
            waits = Mark.UNSTARTED in lease.marks or not lease.count
            if waits and key not in self._recalled:
                self._recalled.add(key)
                self._later(self._recall_slots, child, [lease.slot])

    def _busy_slots(self) -> int:
        """Running handlers from which on a child has no free one."""
        if self.manifest is not None and any(task.is_async for task in self.manifest.tasks):
            return self._options.concurrency or 100
        return self._options.concurrency or 1

    def _check_rss(self, child: ChildProcess) -> None:
        if not self._options.max_rss or time.monotonic() < self._rss_at or child.stopping:
            return
        self._rss_at = time.monotonic() + _RSS_EVERY_S / max(1, len(self.children))
        size = rss_bytes(child.pid)
        if size > self._options.max_rss:
            _log.info("child_too_large", pid=child.pid, rss_bytes=size)
            child.stop("rss")
            self._later(self._recall_all, child)

    def _check_watchdog(self, child: ChildProcess) -> None:
        """End a child that has long stopped to speak to the server although no handler holds it up."""
        limit_s = self._options.watchdog_ms / 1000
        if not limit_s or not child.ready or child.stopping or child.board.running():
            return
        silent_s = boot_time() - child.board.beat
        if silent_s > limit_s and self._server_answers():
            _log.error("child_stalled", pid=child.pid, silent_seconds=round(silent_s, 1))
            child.stopping = "watchdog"
            self._exit_code = EXIT_WATCHDOG
            child.kill()

    def _server_answers(self) -> bool:
        """Whether the keeper has reached the server lately: without it every child is silent."""
        return boot_time() - self._reached < 2 * EVERY_S + 1

    _reached: float = 0.0

    def _task_name(self, number: int) -> str:
        tasks = self.manifest.tasks if self.manifest else []
        return tasks[number].name if number < len(tasks) else "?"

    def _bury(self, child: ChildProcess, code: int) -> None:
        """Settle for an ended child, count it, and start the next one."""
        child.read_manifest()
        if child.manifest is not None and child.manifest.error and self.manifest is None:
            raise AppLoadError(child.manifest.error)
        with self._lock:
            self.children.remove(child)
        reason = self._reason(child, code)
        self.exits.by_reason[reason] = self.exits.by_reason.get(reason, 0) + 1
        running = len(child.board.running())
        log = _log.info if reason in ("stopped", "recycled", "rss") else _log.warning
        log("child_ended", pid=child.pid, code=code, reason=reason, running=running)
        death = Death(
            code,
            child.overdue,
            idle_before=self._idle_deaths.get(child.number, False),
        )
        self._idle_deaths[child.number] = code != 0 and not running
        self._remember(child)
        self._later(self._settle_dead, child, death)
        burst_over = self._options.burst and code == 0 and reason == "stopped"
        if self.stopping or burst_over:
            return
        self._restart_at[child.number] = time.monotonic() + self._pause_s(child, reason)

    def _reason(self, child: ChildProcess, code: int) -> str:
        if child.overdue:
            return "time_limit"
        if child.stopping in ("rss", "watchdog"):
            return child.stopping
        if code != 0:
            return "crashed"
        if self._options.max_messages and not child.stopping and not self._options.burst:
            return "recycled"
        return "stopped"

    def _pause_s(self, child: ChildProcess, reason: str) -> float:
        """Wait before a restart: nothing after work was done, ever longer after a life too short to do any."""
        worked = child.board.handled or time.monotonic() - child.started > _SHORT_LIFE_S
        if reason != "crashed" or worked:
            self._pauses[child.number] = 0.0
            return 0.0
        pause_s = self._pauses[child.number] = min(
            _LONGEST_PAUSE_S, max(0.5, 2 * self._pauses.get(child.number, 0.0))
        )
        return pause_s

    # -- ending --------------------------------------------------------------------------------

    def _stop_all(self) -> None:
        """Give back at once what has not started, wait for what runs, then end what still does."""
        self._restart_at.clear()
        begun = time.monotonic()
        _log.info("worker_stopping", grace_seconds=self._options.grace_ms / 1000)
        for child in self.children:
            child.stop("stopped")
            self._later(self._recall_all, child)
        deadline = begun + self._options.grace_ms / 1000
        asked = self._stop_wanted
        while self.children and time.monotonic() < deadline and self._stop_wanted == asked:
            for child in list(self.children):
                code = child.ended()
                if code is not None:
                    self._bury(child, code)
            self._on_look()
            time.sleep(_LOOK_S / 5)
        for child in list(self.children):
            _log.warning("child_cut_off", pid=child.pid, running=len(child.board.running()))
            child.kill()
            code = child.process.wait()
            with self._lock:
                self.children.remove(child)
            self.exits.by_reason["stopped"] += 1
            self._remember(child)
            self._later(self._settle_dead, child, Death(code, stopping=True))
        self._later(self._withdraw)
        self._drain_jobs()
        _log.info("worker_stopped", seconds=round(time.monotonic() - begun, 2))

    def _drain_jobs(self) -> None:
        done = threading.Event()
        self._later(done.set)
        done.wait(_GOODBYE_S + 2.0)

    # -- what the keeper's thread does ---------------------------------------------------------

    def _later(self, job: Callable[..., None], *args: object) -> None:
        self._jobs.put(lambda: job(*args))

    def _keep(self) -> None:
        next_presence = 0.0
        while not self._kept.is_set():
            try:
                self._jobs.get(timeout=_KEEP_S)()
                continue
            except Empty:
                pass
            except QworkerError as error:
                _log.warning("keeping_failed", error=str(error))
                continue
            try:
                self.keeper.extend_due(self._boards())
                presence = self._presence
                if presence is not None and time.monotonic() >= next_presence:
                    next_presence = time.monotonic() + EVERY_S
                    with self._lock:
                        children = list(self.children)
                        presence.write(
                            children, self.queues, self._options.concurrency or 0, self.handled
                        )
                self._reached = boot_time()
            except ServerError as error:
                _log.warning("lease_extension_failed", error=str(error))

    def _withdraw(self) -> None:
        if self._presence is not None:
            self._presence.withdraw()

    def _boards(self) -> list[tuple[object, Sequence[str]]]:
        with self._lock:
            return [(child.board, self.queues) for child in self.children]

    def _recall_slots(self, child: ChildProcess, slots: Sequence[int]) -> None:
        given_back = self.keeper.recall(child.board, self.queues, slots)
        if given_back:
            _log.info("messages_given_back", pid=child.pid, messages=given_back)

    def _recall_all(self, child: ChildProcess) -> None:
        self._recall_slots(child, [lease.slot for lease in child.board.held_leases()])

    def _settle_dead(self, child: ChildProcess, death: Death) -> None:
        self.keeper.settle_dead(child.board, self.queues, death)
        child.close()

    # -- counts --------------------------------------------------------------------------------

    @property
    def handled(self) -> int:
        """Messages handled by all children, dead ones included."""
        return self._handled_before + sum(child.board.handled for child in self.children)

    def _remember(self, child: ChildProcess) -> None:
        """Keep what a child has counted beyond its death."""
        self._handled_before += child.board.handled
        self._failed_before += child.board.failed
        self._stale_before += child.board.stale
        for number, task in enumerate(child.manifest.tasks if child.manifest else []):
            _add(self._counted.setdefault(task.name, []), child.board.counts(number))

    def counts(self) -> dict[str, list[list[float]]]:
        """Per task: outcomes, run buckets with sum, wait buckets with sum; of all children, dead ones included."""
        with self._lock:
            total = {
                name: [list(each) for each in counts] for name, counts in self._counted.items()
            }
            for child in self.children:
                for number, task in enumerate(child.manifest.tasks if child.manifest else []):
                    _add(total.setdefault(task.name, []), child.board.counts(number))
            return total


def _add(
    total: list[list[float]],
    counts: tuple[list[int], tuple[list[int], float], tuple[list[int], float]],
) -> None:
    outcomes, (run, run_s), (wait, wait_s) = counts
    rows: list[list[float]] = [list(outcomes), [*run, run_s], [*wait, wait_s]]
    if not total:
        total.extend(rows)
        return
    for known, row in zip(total, rows, strict=True):
        for place, amount in enumerate(row):
            known[place] += amount
