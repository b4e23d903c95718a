"""The reaper in a thread: that of `qworker daemon`, and the one inside `qworker run`.

It may be killed at any time: every script runs as a whole or not at all, and the next pass of any reaper continues from
what Redis holds.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Final

import structlog
from prometheus_client import CollectorRegistry

from qworker.client.execute.sync import Client
from qworker.daemon.durability import Durability, Grade, inspect_server
from qworker.daemon.loop import ReaperLoop
from qworker.daemon.memory import NEARLY_FULL
from qworker.daemon.options import DaemonOptions, check_tick
from qworker.daemon.preloading import Preloader
from qworker.daemon.queue_metrics import MAX_QUEUES, QueueCollector
from qworker.daemon.reaper import Reaper
from qworker.daemon.reaper_metrics import ReaperMetrics
from qworker.daemon.tick import Tick
from qworker.engine.inspect import inspect
from qworker.engine.options import QueueAttributes
from qworker.engine.reap import sweep
from qworker.errors import InDoubtError, InvalidOptionError, QworkerError, UnavailableError
from qworker.store.connections import ConnectionFactory

__all__ = ["EmbeddedReaper"]

_log = structlog.get_logger(__name__)

#: Seconds after which a loop without a pass counts as dead, or three ticks if that is more.
_DEAD_AFTER_S: Final = 15.0
#: Seconds between two checks of the server's settings.
_INSPECT_EVERY_S: Final = 600.0
#: The share of maxmemory that must come free before a server that was nearly full may be logged again.
_ROOM_AGAIN: Final = 0.05
#: Seconds that the thread has to end its script.
_STOP_S: Final = 0.8
#: Seconds after which a silent server counts as not serving; it is asked twice.
_READY_WITHIN_S: Final = 0.5


class EmbeddedReaper:
    """A reaper in its own thread, with its metrics. Installs no signal handlers.

    `registry` gets the metrics of the reaper and of the queues. `durability` is strict, warn or off: with strict, a
    server that may lose messages stops the reaper before its first pass (`refused`). `on_pass` gets each pass in the
    reaper's thread, None for a failed one, and must not raise. `metrics_queues`: the number of queues with their own
    label.
    """

    def __init__(
        self,
        client: Client,
        namespace: str,
        *,
        tick_ms: int = 1000,
        durability: str = "warn",
        registry: CollectorRegistry | None = None,
        on_pass: Callable[[Tick | None], None] | None = None,
        metrics_queues: int = MAX_QUEUES,
    ) -> None:
        self.reaper = Reaper(client, namespace, tick_ms=tick_ms)
        registry = CollectorRegistry() if registry is None else registry
        self.metrics = ReaperMetrics(registry)
        registry.register(
            QueueCollector(client, lambda: self.reaper.registry.queues, max_queues=metrics_queues)
        )
        #: Why it refused to start, with durability strict; else None.
        self.refused: Durability | None = None
        #: The result of the last check of the server.
        self.durability: Durability | None = None
        self._client = client
        # A separate client: a readiness probe waits for less time than a pass.
        self._probe = Client(
            ConnectionFactory(
                client.factory.url,
                connect_timeout_s=_READY_WITHIN_S,
                reply_timeout_s=_READY_WITHIN_S,
                name="qworker-ready",
            )
        )
        self._mode = durability
        self._on_pass = on_pass
        self._preloader = Preloader(client)
        self._inspect_at = 0.0
        self._check_ticks_at = 0.0
        self._nearly_full = False
        self._loop = ReaperLoop(
            self.reaper,
            before=None if durability == "off" else self._inspect,
            after=self._passed,
        )
        self._passing = False
        self._stopped = False
        self._thread = threading.Thread(target=self._run, name="qworker-reaper", daemon=True)

    def start(self) -> None:
        """Start the thread; returns at once, whether or not the server answers."""
        self._thread.start()

    def stop_soon(self) -> None:
        """Stop after the running script, without waiting for it. From any thread, but not from a signal handler."""
        self._stopped = True
        self._loop.stop()

    def stop(self, within_s: float = _STOP_S) -> bool:
        """Stop after the running script. Returns False if that takes too long: the thread ends with the process."""
        self.stop_soon()
        self._probe.close()
        if self._thread.is_alive():
            self._thread.join(within_s)
        if self._thread.is_alive():
            _log.warning("reaper_abandoned", reaper=self.reaper.presence.name)
            return False
        return True

    @property
    def alive(self) -> bool:
        """Whether its thread runs."""
        return self._thread.is_alive()

    def healthy(self) -> str | None:
        """Return None while passes are made, failed ones included; else the problem, which a restart would solve."""
        if not self._thread.is_alive():
            return "the reaper has stopped"
        age_s = self._loop.age_s()
        if age_s is not None and age_s > max(_DEAD_AFTER_S, 3 * self.reaper.tick_ms / 1000):
            return f"the reaper made its last pass {age_s:.0f} s ago"
        return None

    def ready(self) -> str | None:
        """Return None if the server runs scripts (PING alone does not show that), or the problem, within 1.5 s."""
        try:
            self._probe.execute(sweep([], self.reaper.tick_ms), give_up_s=_READY_WITHIN_S)
        except (UnavailableError, InDoubtError) as error:
            return f"the server does not answer: {error}"
        except QworkerError as error:
            return f"the server does not run scripts: {error}"
        return None

    def _run(self) -> None:
        self._loop.run()
        # With a server that does not answer, this would outlast every grace time.
        if self._passing:
            self.reaper.close()

    def _passed(self, tick: Tick | None) -> None:
        self._passing = tick is not None
        self.metrics.passed(tick, self.reaper.scheduler.known.tasks)
        if self._stopped:
            return  # the process waits for this thread, and not for long
        if tick is not None and self._mode != "off" and time.monotonic() >= self._inspect_at:
            try:
                self._inspect()
            except QworkerError as error:
                _log.info("durability_unread", problem=str(error))
        if tick is not None:
            self._check_memory()
            try:
                self._preloader.keep()
            except QworkerError as error:
                _log.info("scripts_not_loaded", problem=str(error))
        if tick is not None and time.monotonic() >= self._check_ticks_at:
            self._check_ticks_at = time.monotonic() + _INSPECT_EVERY_S
            self._check_ticks()
        if self._on_pass is not None:
            self._on_pass(tick)

    def _check_memory(self) -> None:
        """Export how full the fullest server is, and log when one becomes nearly full."""
        fullest = self.reaper.fullest
        ratio = None if fullest is None else fullest.ratio
        self.metrics.memory(ratio)
        before = self._nearly_full
        self._nearly_full = (ratio or 0.0) >= NEARLY_FULL - (_ROOM_AGAIN if before else 0.0)
        if fullest is not None and self._nearly_full and not before:
            _log.warning(
                "server_nearly_full",
                server=str(fullest.node),
                used_bytes=fullest.used_bytes,
                limit_bytes=fullest.limit_bytes,
                next_step="drain queues, drop dead letters, or raise maxmemory: a full server refuses sends",
            )

    def _check_ticks(self) -> None:
        """Warn of queues whose visibility is short for a tick that is longer than the default."""
        if self.reaper.tick_ms <= DaemonOptions().tick_ms:
            return
        try:
            for keys in self.reaper.registry.queues[:MAX_QUEUES]:
                meta = self._client.execute(inspect(keys), give_up_s=_READY_WITHIN_S).meta
                self._check_tick(keys.queue, QueueAttributes.of_meta(meta))
        except QworkerError as error:
            _log.info("attributes_unread", problem=str(error))

    def _check_tick(self, queue: str, attributes: QueueAttributes) -> None:
        try:
            check_tick(self.reaper.tick_ms, attributes.visibility_ms, queue)
        except InvalidOptionError as error:
            _log.warning("tick_too_long", queue=queue, problem=str(error))

    def _inspect(self) -> None:
        before, server = self.durability, inspect_server(self._client)
        self._inspect_at = time.monotonic() + _INSPECT_EVERY_S
        self.durability = server
        self.metrics.server(server.engine, server.version, server.durable)
        if before is None and self._mode == "strict" and (server.open or not server.durable):
            self.refused = server
            self._loop.stop()
        for finding in server.findings:
            if before is not None and finding in before.findings:
                continue
            log = _log.info if finding.grade is Grade.RISK else _log.warning
            log(
                "durability_problem_found",
                name=finding.name,
                grade=finding.grade.value,
                problem=finding.problem,
                setting=finding.setting,
            )
