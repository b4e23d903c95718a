"""The supervisor: holds no user code, starts the children that do, and minds them.

The main thread watches processes: exits, time limits, memory, stalls, signals. A second thread (keeping.py) speaks to
the server: it extends leases, takes back what waits behind slow handlers, and settles what dead children had in hand.
Neither waits for the other.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

import structlog

from qworker.client import Client
from qworker.consumer.assembly import slots_for
from qworker.consumer.death import Death, death_of
from qworker.consumer.keeping import Keeping
from qworker.consumer.manifest import ChildConfig, Manifest
from qworker.consumer.presence import Presence
from qworker.consumer.process import ChildProcess
from qworker.consumer.reload import Reloader
from qworker.consumer.totals import Totals
from qworker.consumer.watch import Watch
from qworker.errors import AppLoadError

if TYPE_CHECKING:
    from qworker.config import LogOptions, RunOptions
    from qworker.connection import ConnectionFactory
    from qworker.consumer.keeper import Keeper

__all__ = ["EXIT_WATCHDOG", "ChildExits", "Supervisor"]

_log = structlog.get_logger(__name__)

EXIT_WATCHDOG: Final = 70
_LOOK_S: Final = 0.05
#: A child that ends sooner than this did not work; the next one is started later and later.
_SHORT_LIFE_S: Final = 2.0
_FIRST_PAUSE_S: Final = 0.5
_LONGEST_PAUSE_S: Final = 30.0
#: What telling the server how things ended may take beyond the grace time.
_GOODBYE_S: Final = 0.7


@dataclass(slots=True)
class ChildExits:
    """How many children ended, by reason."""

    by_reason: dict[str, int] = field(
        default_factory=lambda: dict.fromkeys(
            ("recycled", "crashed", "time_limit", "rss", "watchdog", "stopped"), 0
        )
    )


@dataclass(slots=True)
class _Place:
    """One of the children's places: what became of those who held it."""

    restart_at: float | None = None
    pause_s: float = 0.0
    #: The last one died with nothing started.
    idle_death: bool = False
    #: Ended by the watchdog so often in a row.
    stalls: int = 0


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
        self.totals = Totals()
        self.exits = ChildExits()
        self.manifest: Manifest | None = None
        self._keeping = Keeping(self._client, lambda: self.totals.children, self._write_presence)
        self._presence: Presence | None = None
        self._watch = Watch(options)
        self._reloader = Reloader(self.reload) if options.reload else None
        self._slots = slots_for(options.concurrency or 0)
        self._places = [_Place() for _ in range(options.procs or os.cpu_count() or 1)]
        self._stop_wanted = 0
        self._reload_wanted = False
        self._exit_code = 0

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
        """Whether it was told to stop."""
        return self._stop_wanted > 0

    def stop(self, *_: object) -> None:
        """Stop gracefully; a second call ends the children at once. Fit for a signal handler."""
        self._stop_wanted += 1

    def reload(self) -> None:
        """Replace all children by new ones, gracefully: for development. From any thread."""
        self._reload_wanted = True

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
            while not self._stop_wanted and self._is_alive():
                self._look()
                time.sleep(_LOOK_S)
            if self.children:
                self._stop_all()
        finally:
            for child in self.children:
                child.kill()
            if self._reloader is not None:
                self._reloader.stop()
            if self._presence is not None:
                self._keeping.later(self._presence.withdraw)
            # Without a server there is nobody to say goodbye to.
            self._keeping.end(_GOODBYE_S if self._keeping.answering_since else _LOOK_S)
            self._client.close()
        return self._exit_code

    def _is_alive(self) -> bool:
        return bool(self.children) or any(place.restart_at is not None for place in self._places)

    def _look(self) -> None:
        if self._reload_wanted:
            self._reload_wanted = False
            self._reload_all()
        stuck = []
        for child in self.children:
            self._listen(child)
            code = child.ended()
            if code is not None:
                self._bury(child, code)
            elif not self._ends_badly(child) and (leases := self._watch.stuck_leases(child)):
                stuck.append((child, leases))
        if stuck:
            self._keeping.recall_leases(stuck)
        now = time.monotonic()
        for number, place in enumerate(self._places):
            if place.restart_at is not None and now >= place.restart_at:
                place.restart_at = None
                self._start(number)
        self._on_look()

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
        try:
            child = ChildProcess(config, self._slots)
        except OSError as error:
            _log.error("child_not_started", number=number, error=str(error))
            self._restart_later(number)
            return
        child.board.peers = len(self._places)
        self.totals.add(child)
        _log.info("child_started", pid=child.pid, number=number)

    def _restart_later(self, number: int) -> None:
        """Start a child again after a pause that grows with every one that did not work."""
        place = self._places[number]
        place.pause_s = min(_LONGEST_PAUSE_S, max(_FIRST_PAUSE_S, 2 * place.pause_s))
        place.restart_at = time.monotonic() + place.pause_s

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
        first = self.manifest is None
        self.manifest = manifest
        self.namespace = manifest.namespace
        if first:
            self._presence = Presence(self._client, manifest.namespace, self._app)
            self._on_manifest(manifest, self._client)

    # -- minding -------------------------------------------------------------------------------

    def _ends_badly(self, child: ChildProcess) -> bool:
        """Whether the child was told to end, because of a limit."""
        overdue = child.overdue_handlers()
        if overdue:
            names = [child.task_name(view.task) for view in overdue]
            _log.warning("time_limit_exceeded", pid=child.pid, tasks=names)
            child.kill(overdue)
            return True
        if child.stopping:
            return False
        if size := self._watch.is_too_large(child):
            _log.info("child_too_large", pid=child.pid, rss_bytes=size)
            child.stop("rss")
            self._keeping.recall([child])
            return True
        if silent_s := self._watch.silent_s(child, self._keeping.answering_since):
            _log.error("child_stalled", pid=child.pid, silent_seconds=round(silent_s, 1))
            child.stopping = "watchdog"
            child.kill()
            self._note_stall(child)
            return True
        return False

    def _note_stall(self, child: ChildProcess) -> None:
        """The first stall in a place costs the child; a second one in a row says that a new one does not help."""
        place = self._places[child.number]
        place.stalls = 1 if child.board.handled else place.stalls + 1
        if place.stalls > 1:
            self._exit_code = EXIT_WATCHDOG
            self.stop()

    def _bury(self, child: ChildProcess, code: int) -> None:
        """Settle for an ended child, count it, and see that another one takes its place."""
        self._listen(child)
        place = self._places[child.number]
        death = death_of(
            child.board, child.tasks, code, overdue=child.overdue, idle_before=place.idle_death
        )
        running = len(child.board.running())
        place.idle_death = code != 0 and not running
        reason = self._reason(child, code)
        log = _log.info if reason in ("stopped", "recycled", "rss") else _log.warning
        fields = {"stack": death.stack} if death.stack else {}
        log("child_ended", pid=child.pid, code=code, reason=reason, running=running, **fields)
        # A message that kills its worker is stopped by its receive count, not by pauses that hold up the others.
        lived_s = time.monotonic() - child.started
        worked = child.board.handled or running or lived_s > _SHORT_LIFE_S
        self._let_go(child, reason, death)
        if self.stopping or (self._options.burst and reason == "stopped"):
            return
        if reason == "crashed" and not worked:
            self._restart_later(child.number)
        else:
            place.pause_s = 0.0
            place.restart_at = time.monotonic()

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

    def _let_go(self, child: ChildProcess, reason: str, death: Death) -> None:
        self.exits.by_reason[reason] += 1
        self._watch.forget(child)
        self.totals.bury(child)
        self._keeping.settle_dead(child, death)

    # -- ending --------------------------------------------------------------------------------

    def _stop_all(self) -> None:
        """Give back at once what has not started, wait for what runs, then end what still does."""
        begun = time.monotonic()
        _log.info("worker_stopping", grace_seconds=self._options.grace_ms / 1000)
        children = self.children
        for child in children:
            self._listen(child)
            child.stop("stopped")
            if child.starting:
                child.kill()  # it has nothing in hand, and may be long in importing
        self._keeping.recall(children)
        deadline = begun + self._options.grace_ms / 1000
        asked = self._stop_wanted
        while self.children and time.monotonic() < deadline and self._stop_wanted == asked:
            for child in self.children:
                code = child.ended()
                if code is not None:
                    self._end(child, code)
            self._on_look()
            time.sleep(_LOOK_S / 5)
        for child in self.children:
            _log.warning("child_cut_off", pid=child.pid, running=len(child.board.running()))
            child.kill()
        for child in self.children:
            self._end(child, child.process.wait())
        _log.info("worker_stopped", seconds=round(time.monotonic() - begun, 2))

    def _end(self, child: ChildProcess, code: int) -> None:
        reason = child.stopping if child.stopping in ("rss", "watchdog") else "stopped"
        _log.info("child_ended", pid=child.pid, code=code, reason=reason)
        self._let_go(child, reason, Death(code, stopping=True))

    def _write_presence(self) -> None:
        if self._presence is not None:
            self._presence.write(
                self.children, self.queues, self._options.concurrency or 0, self.totals.handled
            )
