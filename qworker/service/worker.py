"""Puts a worker together: the supervisor of an app's children, a reaper, metrics and signals."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Final

import structlog
from prometheus_client import CollectorRegistry, ProcessCollector

from qworker.client.execute.sync import Client
from qworker.consumer.supervisor.hooks import Hooks
from qworker.consumer.supervisor.metrics import ChildrenCollector
from qworker.consumer.supervisor.processes.spawn import STOPPING
from qworker.consumer.supervisor.supervisor import Supervisor
from qworker.daemon.reaper_metrics import export_version, package_version
from qworker.daemon.systemd import SystemdNotifier
from qworker.daemon.thread import EmbeddedReaper
from qworker.service.registration import Registration
from qworker.store.connections import ConnectionFactory
from qworker.telemetry.http import MetricsListener

if TYPE_CHECKING:
    from qworker.consumer.manifest import Manifest
    from qworker.consumer.supervisor.processes.spawn import Starter

__all__ = ["consume"]

_log = structlog.get_logger(__name__)
#: Time that the reaper gets beyond the grace time; it was asked to stop when that began.
_REAPER_S: Final = 0.1
#: Queues and tasks named in the first line of the log.
_NAMED: Final = 20


def _named(field: str, names: Sequence[str]) -> dict[str, Any]:
    more = {f"more_{field}": len(names) - _NAMED} if len(names) > _NAMED else {}
    return {field: list(names[:_NAMED]), **more}


class _Worker:
    """A supervisor with its reaper, metrics and signals."""

    def __init__(self, starter: Starter, server_from: str) -> None:
        self._options = options = starter.options
        self._factory = ConnectionFactory(starter.url, name="qworker-worker")
        self._reaper_client = Client(self._factory)
        self._registry = CollectorRegistry()
        ProcessCollector(registry=self._registry)
        self._reaper: EmbeddedReaper | None = None
        self._begun = starter.begun
        self._was_ready = False
        self._server = {"server": str(starter.url), "server_from": server_from}
        self._notifier = SystemdNotifier()
        self._registration = Registration(self._factory, lambda: self.supervisor.manifest)
        self.supervisor = Supervisor(
            starter.app,
            self._factory,
            options,
            starter.logs,
            Hooks(self._begin, self._registration.begin, self._after_turn),
            starter,
        )
        self._registry.register(ChildrenCollector(self.supervisor))
        self._listener = MetricsListener(
            self._registry,
            healthy=self._healthy,
            ready=self._ready,
            host=options.metrics_host,
            port=options.metrics_port,
        )

    def run(self) -> int:
        """Run until a signal or a burst's end; returns the exit code."""
        for signum in STOPPING:
            if signum != signal.SIGHUP or signal.getsignal(signum) != signal.SIG_IGN:
                signal.signal(signum, self._stop)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, STOPPING)
        self._listener.start()
        try:
            return self.supervisor.run()
        finally:
            if self._reaper is not None:
                self._reaper.stop(_REAPER_S)
            self._listener.stop()
            self._reaper_client.close()

    def _stop(self, *_: object) -> None:
        self._notifier.stopping()
        self.supervisor.stop()

    def _after_turn(self) -> None:
        self._notifier.ping()
        if not self._was_ready and any(child.ready for child in self.supervisor.children):
            self._was_ready = True
            _log.info("worker_ready", after_s=round(time.monotonic() - self._begun, 2))
        # The reaper ends together with the children: after them no time is left.
        if self.supervisor.stopping and self._reaper is not None:
            self._reaper.stop_soon()

    def _begin(self, manifest: Manifest) -> None:
        """Start what needs the app: its reaper and its schedules."""
        self._log_start(manifest)
        if self._options.reaper:
            self._reaper = EmbeddedReaper(
                self._reaper_client,
                manifest.namespace,
                registry=self._registry,
                metrics_queues=self._options.metrics_queues,
            )
            self._reaper.start()
        else:
            export_version(self._registry)
        self._registration.begin(manifest)
        self._notifier.ready()

    def _log_start(self, manifest: Manifest) -> None:
        served = set(manifest.queues)
        tasks = [task.name for task in manifest.tasks if task.queue in served]
        _log.info(
            "worker_started",
            app=manifest.app,
            namespace=manifest.namespace,
            **self._server,
            **_named("queues", manifest.queues),
            **_named("tasks", tasks),
            schedules=len(manifest.schedules),
            processes=self.supervisor.wanted,
            concurrency=self._options.concurrency or "auto",
            reaper=self._options.reaper,
            pid=os.getpid(),
            version=package_version(),
        )

    def _healthy(self) -> str | None:
        # The reaper ends before the last handler does.
        if self._reaper is None or self.supervisor.stopping:
            return None
        return self._reaper.healthy()

    def _ready(self) -> str | None:
        if self.supervisor.stopping:
            return "the worker is stopping"
        if not any(child.ready for child in self.supervisor.children):
            return "no child is ready"
        if not self.supervisor.served:
            return "the server does not answer"
        return self._reaper.ready() if self._reaper is not None else None


def consume(starter: Starter, server_from: str) -> int:
    """Run the consumers of an app; returns the exit code.

    `starter` may have started them; `server_from`: the source of their URL. The signals `STOPPING`, which may be
    blocked before, have an effect from now on. Raises `AppLoadError` if the app cannot be imported.
    """
    return _Worker(starter, server_from).run()
