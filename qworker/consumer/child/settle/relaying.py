"""Relays messages of a child's acks to other queues, right after the acks counted.

In its own thread: a destination that does not answer must not hold up the child. A reaper relays whatever it leaves
behind.
"""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Final

from qworker.client.execute.recurring import RecurringCalls
from qworker.client.plan import run_plan
from qworker.client.relay import relay
from qworker.errors import QworkerError
from qworker.telemetry.guarded import guarded

if TYPE_CHECKING:
    from qworker.client.execute.sync import Client
    from qworker.wire.keys import QueueKeys

__all__ = ["ChildRelay"]

_log = guarded(__name__)

_GIVE_UP_S: Final = 0.5
#: How long an ending child waits for messages that are being relayed.
_LAST_S: Final = 2.0


class ChildRelay:
    """Relays the outboxes of queues that were passed to it. Its thread starts with the first one."""

    def __init__(self, client: Client, namespace: str) -> None:
        self._calls = RecurringCalls(client, give_up_s=_GIVE_UP_S)
        self._namespace = namespace
        self._changed = threading.Condition()
        self._waiting: dict[str, QueueKeys] = {}
        self._thread: threading.Thread | None = None
        self._ended = False
        self._relays = False
        self._announced: dict[str, float] = {}

    @property
    def busy(self) -> bool:
        """Whether it relays, or is about to."""
        return self._relays or bool(self._waiting)

    def tell(self, keys: QueueKeys) -> None:
        """Relay the outboxes of a queue (or shard) soon."""
        with self._changed:
            self._waiting[keys.queue] = keys
            self._changed.notify()
            if self._thread is None:
                self._thread = threading.Thread(target=self._run, name="qworker-relay", daemon=True)
                self._thread.start()

    def close(self) -> None:
        """Relay the rest, for up to two seconds."""
        with self._changed:
            self._ended = True
            self._changed.notify()
        if self._thread is not None:
            self._thread.join(_LAST_S)

    def _run(self) -> None:
        while (keys := self._next()) is not None:
            try:
                run_plan(
                    self._calls.execute, relay(self._namespace, keys, announced=self._announced)
                )
            except QworkerError as error:
                _log.info("outbox_left", queue=keys.queue, problem=str(error))

    def _next(self) -> QueueKeys | None:
        with self._changed:
            self._relays = False
            while not self._waiting and not self._ended:
                self._changed.wait()
            if not self._waiting:
                return None
            self._relays = True
            return self._waiting.pop(next(iter(self._waiting)))
