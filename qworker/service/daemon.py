"""The process `qworker daemon`: the embedded reaper with metrics, signals and systemd notifications."""

from __future__ import annotations

import os
import queue
import signal
from typing import Final

import structlog
from prometheus_client import CollectorRegistry, ProcessCollector

from qworker.client.execute.sync import Client
from qworker.daemon.options import DaemonOptions
from qworker.daemon.systemd import SystemdNotifier
from qworker.daemon.thread import EmbeddedReaper
from qworker.daemon.tick import Tick
from qworker.store.connections import ConnectionFactory
from qworker.store.url import ServerURL
from qworker.telemetry.http import MetricsListener

__all__ = ["EXIT_NOT_DURABLE", "Daemon"]

_log = structlog.get_logger(__name__)

#: Exit code if `--durability strict` refuses the server: a check found a problem.
EXIT_NOT_DURABLE: Final = 3


class Daemon:
    """The process `qworker daemon`: a reaper, its metrics, systemd and signals."""

    def __init__(
        self,
        url: str | ServerURL,
        namespace: str,
        options: DaemonOptions | None = None,
        *,
        notifier: SystemdNotifier | None = None,
    ) -> None:
        """Wire it up; nothing is connected or started. `url` names a server, not an embedded store."""
        options = DaemonOptions() if options is None else options
        registry = CollectorRegistry()
        ProcessCollector(registry=registry)
        self._namespace = namespace
        self._url = ServerURL.parse(url)
        self._client = Client(ConnectionFactory(self._url, name="qworker-daemon"))
        self._notifier = SystemdNotifier() if notifier is None else notifier
        self._reaper = EmbeddedReaper(
            self._client,
            namespace,
            tick_ms=options.tick_ms,
            durability=options.durability,
            registry=registry,
            on_pass=self._passed,
            metrics_queues=options.metrics_queues,
        )
        # As a separate process it leaves on request; the reaper of a worker leaves with its worker.
        self._reaper.reaper.presence.may_leave = True
        self._listener = MetricsListener(
            registry,
            healthy=self._reaper.healthy,
            ready=self._reaper.ready,
            host=options.metrics_host,
            port=options.metrics_port,
        )
        self._ready = False
        # Its `put` may be called by a signal handler at any time; an Event's `set` may not.
        self._signals: queue.SimpleQueue[int] = queue.SimpleQueue()

    @property
    def metrics_port(self) -> int | None:
        """The port of the metrics listener; None if it does not listen."""
        return self._listener.port

    def run(self) -> int:
        """Run until SIGTERM, SIGINT or SIGHUP, or until asked to leave; returns the exit code. Only in the main thread.

        0 after these, `EXIT_NOT_DURABLE` if the server is refused, 1 if the reaper's thread died. Ends within a
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
                problem="it may lose messages or is open to others, and durability is strict",
                findings=[str(finding) for finding in self._reaper.refused.findings],
            )
            return EXIT_NOT_DURABLE
        if died:
            _log.error("reaper_died")
            return 1
        _log.info("daemon_stopped", signal=signal.Signals(signum).name if signum else "")
        return 0

    def _wait(self) -> int | None:
        """Return the signal received, 0 if asked to leave, None if the reaper's thread has ended."""
        while self._reaper.alive:
            try:
                return self._signals.get(timeout=0.5)
            except queue.Empty:
                if self._reaper.reaper.presence.leaving:
                    return 0
        return None

    def _passed(self, tick: Tick | None) -> None:
        # Only in the loop's thread: the watchdog of systemd must see passes, not a process that merely exists.
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
