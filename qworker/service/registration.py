"""Registers the schedules of a worker's app, in its own thread and over its own connection."""

from __future__ import annotations

import threading
import time
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
#: The pauses after failures: the first one, which doubles up to the longest.
_FIRST_PAUSE_S: Final = 1.0
_LONGEST_PAUSE_S: Final = 60.0


class Registration:
    """Registers what manifests name. `newest` returns the newest manifest, None before there is one."""

    def __init__(self, factory: ConnectionFactory, newest: Callable[[], Manifest | None]) -> None:
        self._factory = factory
        self._newest = newest
        self._lock = threading.Lock()

    def begin(self, manifest: Manifest) -> None:
        """Register the schedules of a manifest in a thread, which tries until it succeeds.

        A server may be away or full when its workers start, and the schedules of a new app would never fire.
        """
        threading.Thread(
            target=self._run, args=(manifest,), name="qworker-schedules", daemon=True
        ).start()

    def _run(self, manifest: Manifest) -> None:
        pause_s = _FIRST_PAUSE_S
        while True:
            try:
                return self.register(manifest)
            except QworkerError as error:
                _log.error("schedules_not_registered", error=str(error), next_try_seconds=pause_s)
            time.sleep(pause_s)
            pause_s = min(pause_s * 2, _LONGEST_PAUSE_S)

    def register(self, manifest: Manifest) -> None:
        """Register the schedules of a manifest, unless a newer one has others. Raises `QworkerError`.

        It opens a connection and closes it: over the worker's client, whose lease thread makes calls at the same time,
        a second connection would stay open for as long as the worker runs.
        """
        # One at a time, and never an older set of schedules after a newer one.
        with self._lock, Client(self._factory, give_up_s=_GIVE_UP_S) as client:
            newest = self._newest() or manifest
            if manifest.schedules != newest.schedules:
                return
            done = register(client, manifest.namespace, manifest.app, manifest.schedules)
        if done.added or done.changed or done.removed:
            changes = {"added": done.added, "changed": done.changed, "removed": done.removed}
            named = {change: list(names) for change, names in changes.items() if names}
            _log.info("schedules_registered", **named)
