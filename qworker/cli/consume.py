"""Puts a worker together: the supervisor of an app's children, its reaper, its metrics and its signals."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Final

import structlog
from prometheus_client import CollectorRegistry, ProcessCollector

from qworker.app.schedule import parse_schedule
from qworker.client.sync import Client
from qworker.consumer.collector import ChildrenCollector
from qworker.consumer.starting import STOPPING
from qworker.consumer.supervisor import Supervisor
from qworker.daemon.embedded import EmbeddedReaper
from qworker.daemon.metrics import export_version, package_version
from qworker.daemon.notify import Notifier
from qworker.daemon.schedules import NewSchedule, register
from qworker.errors import QworkerError
from qworker.store.connection import ConnectionFactory
from qworker.telemetry.http import MetricsListener

if TYPE_CHECKING:
    from qworker.consumer.manifest import Manifest
    from qworker.consumer.options import RunOptions
    from qworker.consumer.starting import Starter
    from qworker.store.url import ServerURL
    from qworker.telemetry.options import LogOptions

__all__ = ["consume"]

_log = structlog.get_logger(__name__)
#: Seconds that the reaper gets beyond the grace time, in which it has been told to end.
_REAPER_S: Final = 0.1
#: Queues and tasks that the first line names.
_NAMED: Final = 20


def _named(field: str, names: Sequence[str]) -> dict[str, Any]:
    more = {f"more_{field}": len(names) - _NAMED} if len(names) > _NAMED else {}
    return {field: list(names[:_NAMED]), **more}


class _Worker:
    """A supervisor and what comes with it."""

    def __init__(
        self, app: str, url: ServerURL, options: RunOptions, logs: LogOptions, starter: Starter
    ) -> None:
        self._options = options
        self._factory = ConnectionFactory(url, name="qworker-worker")
        self._reaper_client = Client(self._factory)
        self._registry = CollectorRegistry()
        ProcessCollector(registry=self._registry)
        self._reaper: EmbeddedReaper | None = None
        self._registering = threading.Lock()
        self._begun = time.monotonic()
        self._told_ready = False
        self._server = str(url)
        self._notifier = Notifier()
        self.supervisor = Supervisor(
            app,
            self._factory,
            options,
            logs,
            on_manifest=self._begin,
            on_schedules=self._register_later,
            on_look=self._look,
            starter=starter,
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

    def _look(self) -> None:
        self._notifier.ping()
        if not self._told_ready and any(child.ready for child in self.supervisor.children):
            self._told_ready = True
            _log.info("worker_ready", after_s=round(time.monotonic() - self._begun, 2))
        # It ends beside the children: after them there is no time left for it.
        if self.supervisor.stopping and self._reaper is not None:
            self._reaper.stop_soon()

    def _begin(self, manifest: Manifest, client: Client) -> None:
        """What can begin once the app is known: its reaper and its schedules."""
        self._tell_start(manifest)
        if self._options.reaper:
            self._reaper = EmbeddedReaper(
                self._reaper_client, manifest.namespace, registry=self._registry
            )
            self._reaper.start()
        else:
            export_version(self._registry)
        self._register_later(manifest, client)
        self._notifier.ready()

    def _tell_start(self, manifest: Manifest) -> None:
        served = set(manifest.queues)
        tasks = [task.name for task in manifest.tasks if task.queue in served]
        _log.info(
            "worker_started",
            app=manifest.app,
            namespace=manifest.namespace,
            server=self._server,
            **_named("queues", manifest.queues),
            **_named("tasks", tasks),
            schedules=len(manifest.schedules),
            processes=self.supervisor.wanted,
            concurrency=self._options.concurrency or "auto",
            reaper=self._options.reaper,
            pid=os.getpid(),
            version=package_version(),
        )

    def _register_later(self, manifest: Manifest, client: Client) -> None:
        # In a thread of its own: with a server that is away, this takes as long as that is.
        threading.Thread(
            target=self._register, args=(manifest, client), name="qworker-schedules", daemon=True
        ).start()

    def _register(self, manifest: Manifest, client: Client) -> None:
        schedules = [
            NewSchedule(
                name=entry.name,
                schedule=parse_schedule(entry.spec),
                task=entry.task,
                queue=entry.queue,
                body=entry.body.encode(),
                priority=entry.priority,
                ttl_ms=entry.ttl_ms,
                max_receives=entry.max_receives,
                signature=entry.signature,
            )
            for entry in manifest.schedules
        ]
        try:
            # One at a time, and never an older set after a newer one.
            with self._registering:
                if manifest.schedules != self._newest(manifest).schedules:
                    return
                done = register(client, manifest.namespace, manifest.app, schedules)
        except QworkerError as error:
            _log.error("schedules_not_registered", error=str(error))
            return
        if done.added or done.changed or done.removed:
            changes = {"added": done.added, "changed": done.changed, "removed": done.removed}
            named = {name: list(each) for name, each in changes.items() if each}
            _log.info("schedules_registered", **named)

    def _newest(self, manifest: Manifest) -> Manifest:
        return self.supervisor.manifest or manifest

    def _healthy(self) -> str | None:
        # Its reaper ends before the last handler does.
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


def consume(
    app: str, url: ServerURL, options: RunOptions, logs: LogOptions, starter: Starter
) -> int:
    """Run the consumers of `app` (`module[:attribute]`); returns the exit code.

    `starter` may have started them. The signals `STOPPING`, which may be blocked before, count from now on. Raises
    `AppLoadError` where the app cannot be imported.
    """
    return _Worker(app, url, options, logs, starter).run()
