"""The reaper as a thread (`EmbeddedReaper`, which `qworker run` carries) and as a process (`Daemon`).

Nothing here must end well: whatever is cut off, every script has run as a whole or not at all, and the next pass of
any reaper goes on from what Redis holds.
"""

from __future__ import annotations

import os
import queue
import signal
import threading
import time
from collections.abc import Callable
from typing import Final

import structlog
from prometheus_client import CollectorRegistry, ProcessCollector

from qworker.client.commands.upkeep import inspect, sweep
from qworker.client.options import QueueAttributes
from qworker.client.sync import Client
from qworker.daemon.durability import Durability, Grade, inspect_server
from qworker.daemon.gauges import MAX_QUEUES, QueueCollector, ReaperMetrics
from qworker.daemon.loop import ReaperLoop
from qworker.daemon.notify import Notifier
from qworker.daemon.options import DaemonOptions, check_tick
from qworker.daemon.reaper import Reaper
from qworker.daemon.tick import Tick
from qworker.errors import InvalidOptionError, QworkerError
from qworker.store.connection import ConnectionFactory
from qworker.store.url import ServerURL
from qworker.telemetry.http import MetricsListener

__all__ = ["EXIT_NOT_DURABLE", "Daemon", "EmbeddedReaper"]

_log = structlog.get_logger(__name__)

#: Exit code where `--durability strict` refuses the server: a check found something.
EXIT_NOT_DURABLE: Final = 3
#: Seconds after which a loop without a pass counts as dead; three ticks where that is more.
_DEAD_AFTER_S: Final = 15.0
#: Seconds between two looks at the server's settings.
_INSPECT_EVERY_S: Final = 600.0
#: Seconds that a thread gets to end its script.
_STOP_S: Final = 0.8
#: Seconds for which the server may be silent before it does not serve; asked twice.
_READY_WITHIN_S: Final = 0.5


class EmbeddedReaper:
    """A reaper in a thread of its own, with its metrics. Installs no signal handlers.

    `registry` gets the reaper's and the queues' metrics. `durability` is strict, warn or off: with strict a server
    that may lose messages stops the reaper before its first pass (`refused`). `on_pass` is told of every pass in
    the reaper's thread, None of a failed one, and must not raise.
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
    ) -> None:
        self.reaper = Reaper(client, namespace, tick_ms=tick_ms)
        registry = CollectorRegistry() if registry is None else registry
        self.metrics = ReaperMetrics(registry)
        registry.register(QueueCollector(client, lambda: self.reaper.registry.queues))
        #: The findings that stopped it; None where nothing did.
        self.refused: Durability | None = None
        #: What was seen of the server at the last look.
        self.durability: Durability | None = None
        self._client = client
        # Of its own: whoever asks whether we are ready waits for less than a pass may.
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
        self._inspect_at = 0.0
        self._warn_at = 0.0
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
        """Let the running script be the last one, and do not wait for it. From any thread, but no signal handler."""
        self._stopped = True
        self._loop.stop()

    def stop(self, within_s: float = _STOP_S) -> bool:
        """Stop after the running script. Returns False if that took too long: the thread ends with the process."""
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
        """Return None while passes are made, failed ones included, or what is wrong: a restart would help."""
        if not self._thread.is_alive():
            return "the reaper has stopped"
        age_s = self._loop.age_s()
        if age_s is not None and age_s > max(_DEAD_AFTER_S, 3 * self.reaper.tick_ms / 1000):
            return f"the reaper made its last pass {age_s:.0f} s ago"
        return None

    def ready(self) -> str | None:
        """Return None where the server runs scripts (PING succeeds where they do not), or what is wrong, in 1.5 s."""
        try:
            self._probe.execute(sweep([], self.reaper.tick_ms), give_up_s=_READY_WITHIN_S)
        except QworkerError as error:
            return f"the server does not run scripts: {error}"
        return None

    def _run(self) -> None:
        self._loop.run()
        # With a server that does not answer this would take longer than anybody waits.
        if self._passing:
            self.reaper.close()

    def _passed(self, tick: Tick | None) -> None:
        self._passing = tick is not None
        self.metrics.passed(tick, self.reaper.scheduler.tasks)
        if tick is not None and self._mode != "off" and time.monotonic() >= self._inspect_at:
            try:
                self._inspect()
            except QworkerError as error:
                _log.info("durability_unread", problem=str(error))
        if tick is not None and time.monotonic() >= self._warn_at:
            self._warn_at = time.monotonic() + _INSPECT_EVERY_S
            self._warn_of_tick()
        if self._on_pass is not None and not self._stopped:
            self._on_pass(tick)

    def _warn_of_tick(self) -> None:
        """Warn of queues whose messages come back late: a tick beyond the default is long beside their visibility."""
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
        before, seen = self.durability, inspect_server(self._client)
        self._inspect_at = time.monotonic() + _INSPECT_EVERY_S
        self.durability = seen
        self.metrics.server(seen.engine, seen.version, seen.durable)
        if before is None and self._mode == "strict" and seen.durable is not True:
            self.refused = seen
            self._loop.stop()
        for finding in seen.findings:
            if before is not None and finding in before.findings:
                continue
            tell = _log.info if finding.grade is Grade.RISK else _log.warning
            tell(
                "durability_problem_found",
                name=finding.name,
                grade=finding.grade.value,
                problem=finding.problem,
                setting=finding.setting,
            )


class Daemon:
    """The process `qworker daemon`: a reaper, its metrics, systemd and signals."""

    def __init__(
        self,
        url: str | ServerURL,
        namespace: str,
        options: DaemonOptions | None = None,
        *,
        notifier: Notifier | None = None,
    ) -> None:
        """Wire it up; nothing is connected or started. `url` names a server, not an embedded store."""
        options = DaemonOptions() if options is None else options
        registry = CollectorRegistry()
        ProcessCollector(registry=registry)
        self._namespace = namespace
        self._url = ServerURL.parse(url)
        self._client = Client(ConnectionFactory(self._url, name="qworker-daemon"))
        self._notifier = Notifier() if notifier is None else notifier
        self._reaper = EmbeddedReaper(
            self._client,
            namespace,
            tick_ms=options.tick_ms,
            durability=options.durability,
            registry=registry,
            on_pass=self._passed,
        )
        self._listener = MetricsListener(
            registry,
            healthy=self._reaper.healthy,
            ready=self._reaper.ready,
            host=options.metrics_host,
            port=options.metrics_port,
        )
        self._ready = False
        # Its `put` may be called by a signal handler, whatever the handler has interrupted; an Event's `set` may not.
        self._signals: queue.SimpleQueue[int] = queue.SimpleQueue()

    @property
    def metrics_port(self) -> int | None:
        """The port of the metrics listener; None where it does not listen."""
        return self._listener.port

    def run(self) -> int:
        """Run until SIGTERM, SIGINT or SIGHUP; returns the exit code. Only in the main thread.

        0 after a signal, `EXIT_NOT_DURABLE` where the server is refused, 1 if the reaper's thread died. Ends within a
        second of the signal.
        """
        before = {number: signal.getsignal(number) for number in _SIGNALS}
        for number, handler in before.items():
            if handler is not signal.SIG_IGN:  # nohup
                signal.signal(number, lambda signum, _: self._signals.put(signum))
        try:
            return self._run()
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)

    def _run(self) -> int:
        _log.info(
            "daemon_started",
            namespace=self._namespace,
            url=str(self._url),
            reaper=self._reaper.reaper.presence.name,
            pid=os.getpid(),
        )
        self._listener.start()
        self._reaper.start()
        signum = self._wait()
        self._notifier.stopping()
        died = signum is None and self._reaper.refused is None
        self._reaper.stop()
        self._listener.stop()
        self._client.close()
        if self._reaper.refused is not None:
            _log.error(
                "server_refused",
                problem="it may lose messages, and durability is strict",
                findings=[str(finding) for finding in self._reaper.refused.findings],
            )
            return EXIT_NOT_DURABLE
        if died:
            _log.error("reaper_died")
            return 1
        _log.info("daemon_stopped", signal=signal.Signals(signum).name if signum else "")
        return 0

    def _wait(self) -> int | None:
        """Return the signal that came, or None when the reaper's thread has ended by itself."""
        while self._reaper.alive:
            try:
                return self._signals.get(timeout=0.5)
            except queue.Empty:
                continue
        return None

    def _passed(self, tick: Tick | None) -> None:
        # In the loop's thread and nowhere else: systemd hears of passes, not of a process that merely exists.
        if not self._ready:
            self._ready = True
            self._notifier.ready()
        self._notifier.ping()
        self._notifier.status(
            "the server does not answer"
            if tick is None
            else f"queues={tick.queues} reapers={tick.reapers}"
        )


_SIGNALS: Final = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)
