"""What the operations on a queue know of it."""

from __future__ import annotations

import time
from dataclasses import replace
from typing import Final, Protocol

from qworker.client.commands.command import Command
from qworker.client.message import Message, Receipt, Stored
from qworker.client.options import QueueAttributes
from qworker.client.plan import Plan
from qworker.wire.codec import check_size
from qworker.wire.envelope import Envelope
from qworker.wire.ids import IdSource
from qworker.wire.keyring import NO_KEYS, Keyring
from qworker.wire.keys import QueueKeys, queues_key
from qworker.wire.names import check_namespace, check_queue

__all__ = ["HasRef", "QueueRef"]

#: Seconds after which a client that uses a queue writes it into the registry again.
_ANNOUNCE_S: Final = 60.0
_MAXSIZE: Final = QueueAttributes().maxsize


class QueueRef:
    """One queue as its operations see it. Bodies over `maxsize` bytes are refused before anything is sent.

    `keyring` signs and encrypts what is sent, and opens what is received or looked at.
    """

    def __init__(
        self,
        namespace: str,
        queue: str,
        ids: IdSource,
        *,
        maxsize: int = _MAXSIZE,
        keyring: Keyring = NO_KEYS,
    ) -> None:
        self.keys = QueueKeys(check_namespace(namespace), check_queue(queue))
        self.ids = ids
        self.maxsize = maxsize
        self.keyring = keyring
        #: Whether it holds any key. Asked for every message, so it is written down.
        self.protected = bool(keyring)
        self.namespace = namespace
        self.registry = queues_key(namespace)
        self._announced = float("-inf")

    def protect(self, message_id: str, body: bytes, flags: dict[str, str]) -> bytes:
        """Encrypt and sign the body of a message; returns it as it is stored, and sets its flags."""
        stored = self.keyring.protect(self.namespace, self.keys.queue, message_id, body, flags)
        check_size(stored, self.maxsize)
        return stored

    def opened(self, message: Message, item: bytes) -> Message:
        """Verify and decrypt a received message, given as it is stored. Raises `ProtectionError`."""
        envelope = Envelope.parse(self.keyring.open(self.namespace, self.keys.queue, item))
        return message if envelope is None else replace(message, body=envelope.body)

    def stored(
        self, state: str, item: bytes, at_ms: int | None = None, receipt: Receipt | None = None
    ) -> Stored:
        """Read an item to show it: opened where it can be, with `closed` saying why where it cannot."""
        return self.look(Stored.of(self.keys.queue, state, item, at_ms, receipt))

    def look(self, found: Stored) -> Stored:
        """Open a message that is shown, where it is protected."""
        if not (self.protected or "e" in found.flags):
            return found
        item, problem = self.keyring.look(self.namespace, self.keys.queue, found.item)
        envelope = Envelope.parse(item)
        body = found.body if envelope is None else envelope.body
        return replace(found, body=body, closed=problem)

    def announce(self) -> Plan[None]:
        """Write the queue into the registry, at most once a minute."""
        now = time.monotonic()
        if now - self._announced >= _ANNOUNCE_S:
            yield Command(None, (), ("HSET", self.registry, self.keys.queue, 1), int)
            self._announced = now

    def forget(self) -> Plan[None]:
        """Take the queue out of the registry; the next use writes it again."""
        yield Command(None, (), ("HDEL", self.registry, self.keys.queue), int)
        self._announced = float("-inf")


class HasRef(Protocol):
    """A queue, sync or async."""

    @property
    def ref(self) -> QueueRef:
        """What operations know of it."""
