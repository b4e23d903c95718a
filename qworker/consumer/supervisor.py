"""The supervisor: holds no user code, starts the children that do, and minds them.

The main thread watches processes: exits, time limits, memory, stalls, signals. A second thread (keeping.py) speaks to
the server: it extends leases, takes back what waits behind slow handlers, and settles what dead children had in hand.
Neither waits for the other.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING, Final

import structlog

from qworker.client.sync import Client
from qworker.consumer.control import Control
from qworker.consumer.death import Death, death_of, ending_of
from qworker.consumer.descendants import adopts, reap_adopted
from qworker.consumer.keeping import Keeping
from qworker.consumer.limits import Limits
from qworker.consumer.paused import PausedTasks
from qworker.consumer.places import SHORT_LIFE_S, Place
from qworker.consumer.presence import Presence
from qworker.consumer.reapers import ReaperWatch
from qworker.consumer.reload import Reloader
from qworker.consumer.shards import ShardWatch
from qworker.consumer.starting import Starter
from qworker.consumer.totals import Totals
from qworker.consumer.verbs import operator_verbs
from qworker.consumer.watch import Watch
from qworker.errors import AppLoadError

if TYPE_CHECKING:
    from qworker.consumer.keeper import Keeper
    from qworker.consumer.manifest import Manifest
    from qworker.consumer.options import RunOptions
    from qworker.consumer.process import ChildProcess
    from qworker.store.connection import ConnectionFactory
    from qworker.telemetry.options import LogOptions

__all__ = ["EXIT_WATCHDOG", "Supervisor"]

_log = structlog.get_logger(__name__)

EXIT_WATCHDOG: Final = 70
_LOOK_S: Final = 0.05
#: Children in a row that may end while they start, before a burst is given up.
_BURST_STARTS: Final = 3
#: What telling the server how things ended may take beyond the grace time.
_GOODBYE_S: Final = 0.5


class Supervisor:
    """Runs the children of one app until it is told to stop.

    `on_manifest` is called once, with the first manifest (it registers schedules, starts companions …), `on_schedules`
    with each later one whose schedules are others: the app was changed under `--reload`, or under a worker. `on_look`
    is called at each turn of the main loop. `starter` may have started the first children already.
    """

    def __init__(
        self,
        app: str,
        factory: ConnectionFactory,
        options: RunOptions,
        logs: LogOptions,
        *,
        on_manifest: Callable[[Manifest, Client], None] = lambda manifest, client: None,
        on_schedules: Callable[[Manifest, Client], None] = lambda manifest, client: None,
        on_look: Callable[[], None] = lambda: None,
        starter: Starter | None = None,
    ) -> None:
        self._client = Client(factory, give_up_s=20.0)
        self._options = options
        #: The app's, known from the first manifest on.
        self.namespace = ""
        self._on_manifest = on_manifest
        self._on_schedules = on_schedules
        self._on_look = on_look
        self.totals = Totals()
        self.manifest: Manifest | None = None
        self._keeping = Keeping(
            self._client,
            lambda: self.totals.children,
            self._write_presence,
            self.totals.note_fates,
        )
        self._presence: Presence | None = None
        self._control: Control | None = None
        self._paused: PausedTasks | None = None
        self._shards: ShardWatch | None = None
        self._reapers: ReaperWatch | None = None
        self._watch = Watch(options)
        self._limits = Limits(self._watch, self._keeping)
        self._reloader = Reloader(self.reload) if options.reload else None
        self._starter = starter or Starter(app, factory.url, options, logs)
        self._places = [Place() for _ in range(self._starter.places)]
        #: Children that are wanted: an operator may change it, see `scale`.
        self.wanted = self._starter.places
        #: Children whose places were given up: nobody follows them, even if there are as many places again.
        self._surplus: set[int] = set()
        self._stop_wanted = 0
        self._stop_by = 0.0
        self._leave_wanted = False
        self._reload_wanted = False
        self._exit_code = 0
        self._adopts = adopts()

    @property
    def children(self) -> list[ChildProcess]:
        """The living children."""
        return self.totals.children

    @property
    def queues(self) -> list[str]:
        """The queues that are received from; none before the first manifest."""
        return self.manifest.queues if self.manifest is not None else []

    @property
    def keeper(self) -> Keeper:
        """Who keeps the leases."""
        return self._keeping.keeper

    @property
    def stopping(self) -> bool:
        """Whether it was told to stop, or to leave."""
        return self._stop_wanted > 0 or self._leave_wanted

    @property
    def served(self) -> bool:
        """Whether the server has answered in the last seconds."""
        return self._keeping.answering_since is not None

    @property
    def reapers_seen(self) -> int | None:
        """Reapers that came by lately; None where that is not known, or one belongs to this process."""
        return self._reapers.seen if self._reapers is not None else None

    def stop(self, *_: object) -> None:
        """Stop gracefully; a second call ends the children at once. Fit for a signal handler."""
        self._stop_wanted += 1

    def leave(self) -> None:
        """Take nothing new and end when what runs has ended, however long that takes. From any thread."""
        self._leave_wanted = True

    def reload(self) -> None:
        """Replace all children by new ones, gracefully: for development. From any thread."""
        self._reload_wanted = True

    def scale(self, wanted: int) -> None:
        """Have another number of children, at least 1, until the worker ends. From any thread.

        Those that are too many take nothing new, and end when what runs has ended.
        """
        self.wanted = wanted

    # -- the loop ------------------------------------------------------------------------------

    def run(self) -> int:
        """Start the children and mind them until a signal, a burst's end or a fatal error; returns the exit code.

        Raises `AppLoadError` where the first child cannot import the app.
        """
        self._keeping.start()
        if self._reloader is not None:
            self._reloader.start()
        try:
            for number in range(len(self._places)):
                self._start(number)
            while not self.stopping and self._is_alive():
                self._look()
                time.sleep(_LOOK_S)
            if self.children:
                self._stop_all()
        finally:
            for child in self.children:
                child.kill("stopped")
            for child in self.children:
                child.wait(_GOODBYE_S)
            if self._reloader is not None:
                self._reloader.stop()
            if self._presence is not None:
                self._keeping.later(self._presence.withdraw)
            self._keeping.end(max(0.0, self._stop_by - time.monotonic()) + _GOODBYE_S)
            self._client.close()
        return self._exit_code

    def _is_alive(self) -> bool:
        return bool(self.children) or any(place.restart_at is not None for place in self._places)

    def _look(self) -> None:
        if self._reload_wanted:
            self._reload_wanted = False
            self._reload_all()
        stuck = []
        idle = any(self._watch.is_idle(child) for child in self.children)
        for child in self.children:
            if self._mind(child) and (leases := self._watch.stuck_leases(child, beside_idle=idle)):
                stuck.append((child, leases))
        if stuck:
            self._keeping.recall_leases(stuck)
        if self.wanted != len(self._places):
            self._scale()
        now = time.monotonic()
        for number, place in enumerate(self._places):
            if place.is_due(now):
                self._start(number)
        self._reap()
        self._on_look()

    def _reap(self) -> None:
        if self._adopts:
            reap_adopted(child.pid for child in self.children)

    def _scale(self) -> None:
        """Make or give up places; a child in one that is given up ends, and nobody follows it."""
        before, wanted = len(self._places), self.wanted
        _log.info("worker_scaled", processes=wanted, before=before)
        for _ in range(before, wanted):
            self._places.append(Place(restart_at=0.0))
        del self._places[wanted:]
        self._starter.places = wanted
        leaving = []
        for child in self.children:
            child.board.peers = wanted
            if child.number >= wanted and child.pid not in self._surplus:
                self._surplus.add(child.pid)
                child.stop("scaled")
                leaving.append(child)
        self._keeping.recall(leaving)

    def _reload_all(self) -> None:
        _log.info("worker_reloading")
        children = self.children
        for child in children:
            child.stop("reload")
        self._keeping.recall(children)
        for place in self._places:
            if place.restart_at is not None:
                place.restart_at = 0.0

    def _start(self, number: int) -> None:
        place = self._places[number]
        place.restart_at = None
        try:
            child = self._starter.start(number)
        except OSError as error:
            _log.error("child_not_started", number=number, error=str(error))
            place.restart_later(time.monotonic())
            return
        self.totals.add(child)
        _log.info("child_started", pid=child.pid, number=number)

    def _listen(self, child: ChildProcess) -> None:
        """Take a child's manifest, if it has come: nothing can be settled without it."""
        manifest = child.read_manifest()
        if manifest is None:
            return
        if manifest.error:
            if self.manifest is None:
                raise AppLoadError(manifest.error)
            _log.error("child_start_failed", error=manifest.error)
            return
        first, before = self.manifest is None, self.manifest
        self.manifest = manifest
        self.namespace = manifest.namespace
        if first and not self.stopping:
            self._presence = Presence(
                self._client,
                manifest.namespace,
                manifest.app,
                [task.name for task in manifest.tasks],
                owns=bool(manifest.schedules),
            )
            self._paused = PausedTasks(self._client, manifest.namespace)
            verbs = operator_verbs(self)
            self._control = Control(self._client, manifest.namespace, self._presence.name, verbs)
            self._shards = ShardWatch(
                self._client, manifest.namespace, manifest.queues, manifest.shards
            )
            if not self._options.reaper:
                self._reapers = ReaperWatch(self._client, manifest.namespace)
            self._on_manifest(manifest, self._client)
        elif before is not None and self._presence is not None:
            self._presence.name_tasks([task.name for task in manifest.tasks])
            if manifest.schedules != before.schedules:
                self._presence.own(schedules=bool(manifest.schedules))
                self._on_schedules(manifest, self._client)

    # -- minding -------------------------------------------------------------------------------

    def _mind(self, child: ChildProcess) -> bool:
        """Look at one child; returns whether it goes on."""
        self._listen(child)
        code = child.ended()
        if code is not None:
            self._bury(child, code)
            return False
        if child.killed:
            return False
        reason = self._limits.enforce(child)
        if reason == "watchdog":
            self._note_stall(child)
        return not reason

    def _note_stall(self, child: ChildProcess) -> None:
        """The first stall in a place costs the child; a second one in a row says that a new one does not help."""
        if child.pid in self._surplus:
            return
        if self._places[child.number].stalled(child.board.handled) and not self.stopping:
            self._exit_code = EXIT_WATCHDOG
            self.stop()

    def _bury(self, child: ChildProcess, code: int) -> None:
        """Settle for an ended child, count it, and see that another one takes its place."""
        self._listen(child)
        surplus = child.pid in self._surplus
        self._surplus.discard(child.pid)
        place = Place() if surplus else self._places[child.number]
        reason = child.reason(code)
        running = len(child.board.running())
        death = self._death_of(child, code, idle_before=place.died_idle)
        place.died_idle = not running and reason in ("crashed", "watchdog")
        if reason != "watchdog":
            place.stalls = 0
        log = _log.info if reason in ("stopped", "recycled", "rss") else _log.warning
        fields: dict[str, object] = {"stack": death.stack} if death.stack else {}
        if child.left:
            fields["processes_ended"] = child.left
        log("child_ended", pid=child.pid, code=code, reason=reason, running=running, **fields)
        self._watch.forget(child)
        self.totals.bury(child, reason)
        self._keeping.settle_dead(child, death)
        if self.stopping or surplus or (self._options.burst and reason == "stopped"):
            return
        # A message that kills its worker is stopped by its receive count, not by pauses that hold up the others.
        now = time.monotonic()
        worked = child.board.handled or running or now - child.started > SHORT_LIFE_S
        if reason != "crashed" or not child.starting:
            place.failed_starts = 0
        if reason == "crashed" and child.starting:
            place.failed_starts += 1
            self._fail_start(child, code, place, place.restart_later(now))
        elif reason == "crashed" and not worked:
            place.restart_later(now)
        else:
            place.restart(now)

    def _fail_start(self, child: ChildProcess, code: int, place: Place, pause_s: float) -> None:
        """A child ended before it had imported the app: say so; a burst gives up after three in a row."""
        words = f"the process of a child {ending_of(code)} while it imported the app"
        _log.error(
            "child_died_starting",
            pid=child.pid,
            error=words,
            tries=place.failed_starts,
            next_try_seconds=pause_s,
        )
        if self._options.burst and place.failed_starts >= _BURST_STARTS:
            if self.manifest is None:
                raise AppLoadError(f"{words}, {place.failed_starts} times")
            self._exit_code = 1
            self.stop()

    def _death_of(self, child: ChildProcess, code: int, *, idle_before: bool) -> Death:
        death = death_of(
            child.board,
            child.tasks,
            code,
            pid=child.pid,
            overdue=child.overdue,
            idle_before=idle_before,
            stopping=child.killed == "stopped",
            stacks=child.stacks,
        )
        if child.killed == "cancelled":
            return replace(death, cancelled=frozenset(death.accused))
        return death

    # -- ending --------------------------------------------------------------------------------

    def _stop_all(self) -> None:
        """Give back at once what has not started, wait for what runs, then end what still does."""
        begun = time.monotonic()
        grace_s = self._options.grace_ms / 1000
        # Who leaves has all the time of its handlers, until it is told to stop.
        leaving = not self._stop_wanted
        _log.info("worker_stopping", grace_seconds=None if leaving else grace_s)
        children = self.children
        for child in children:
            self._listen(child)
            child.stop("stopped")
            if child.starting:
                child.kill("stopped")  # it has nothing in hand, and may be long in importing
        self._keeping.recall(children)
        self._stop_by = math.inf if leaving else begun + grace_s
        while self.children and time.monotonic() < self._stop_by and self._stop_wanted < 2:
            for child in self.children:
                self._mind(child)
            self._reap()
            self._on_look()
            time.sleep(_LOOK_S / 5)
            if leaving and self._stop_wanted:
                leaving, self._stop_by = False, time.monotonic() + grace_s
        self._stop_by = min(self._stop_by, time.monotonic() + grace_s)
        if self._stop_wanted > 1:
            self._stop_by = time.monotonic()
        for child in self.children:
            _log.warning("child_cut_off", pid=child.pid, running=len(child.board.running()))
            child.kill("stopped")
        for child in self.children:
            code = child.wait()
            assert code is not None
            self._bury(child, code)
        _log.info("worker_stopped", seconds=round(time.monotonic() - begun, 2))

    def _write_presence(self) -> None:
        if self._shards is not None and not self._options.burst and self._shards.changed():
            _log.info("shards_changed", queues=self.queues)
            self.reload()
        if self._presence is not None and self._presence.write(
            self.children,
            self.queues,
            self._options.concurrency or 0,
            self.totals.handled,
            leaving=self._leave_wanted,
        ):
            self.leave()
        if self._presence is not None and self._control is not None:
            self._control.look(self._presence.seen_ms)
        if self._presence is not None and self._paused is not None:
            self._paused.look(self.children, self._presence.seen_ms)
        if self._reapers is not None:
            self._reapers.look()
