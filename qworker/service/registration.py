"""Registers the schedules of a worker's app, in its own thread and over its own connection."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import TYPE_CHECKING, Final

import structlog

from qworker.client.execute.sync import Client
from qworker.daemon.schedules import register
from qworker.errors import QworkerError

if TYPE_CHECKING:
    from qworker.consumer.manifest import Manifest
    from qworker.store.connections import ConnectionFactory

__all__ = ["Registration"]

_log = structlog.get_logger(__name__)

#: How long a call is tried while the server is away.
_GIVE_UP_S: Final = 20.0


class Registration:
    """Registers what manifests name. `newest` returns the newest manifest, None before there is one."""

    def __init__(self, factory: ConnectionFactory, newest: Callable[[], Manifest | None]) -> None:
        self._factory = factory
        self._newest = newest
        self._lock = threading.Lock()

    def begin(self, manifest: Manifest) -> None:
        """Register the schedules of a manifest in a thread: that waits for a server that is away."""
        threading.Thread(
            target=self.register, args=(manifest,), name="qworker-schedules", daemon=True
        ).start()

    def register(self, manifest: Manifest) -> None:
        """Register the schedules of a manifest, unless a newer one has others; an error is logged.

        It opens a connection and closes it: over the worker's client, whose lease thread makes calls at the same time,
        a second connection would stay open for as long as the worker runs.
        """
        try:
            # One at a time, and never an older set of schedules after a newer one.
            with self._lock, Client(self._factory, give_up_s=_GIVE_UP_S) as client:
                newest = self._newest() or manifest
                if manifest.schedules != newest.schedules:
                    return
                done = register(client, manifest.namespace, manifest.app, manifest.schedules)
        except QworkerError as error:
            _log.error("schedules_not_registered", error=str(error))
            return
        if done.added or done.changed or done.removed:
            changes = {"added": done.added, "changed": done.changed, "removed": done.removed}
            named = {change: list(names) for change, names in changes.items() if names}
            _log.info("schedules_registered", **named)
