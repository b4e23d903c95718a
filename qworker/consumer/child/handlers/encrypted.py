"""Verifies and decrypts messages that are signed or encrypted before anything of their bodies is read.

In separate classes, so that apps without keys pay nothing for it.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any, Final

from qworker.consumer.child.handlers.endings import Endings
from qworker.consumer.child.handlers.preparation import Preparer
from qworker.errors import ProtectionError, UnknownKeyError
from qworker.wire.keyring import Keyring, is_encrypted

if TYPE_CHECKING:
    from qworker.consumer.child.leases.delivery import Delivery
    from qworker.wire.envelope import Envelope

__all__ = ["WITHHELD", "EncryptedEndings", "EncryptedPreparer"]

#: What a dead letter has instead of an error's text, which might quote the body.
WITHHELD: Final = "the text is in the log of the worker only: the message is encrypted"


class EncryptedPreparer(Preparer):
    """Opens messages with a keyring."""

    def __init__(self, keyring: Keyring, namespace: str, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self._open = partial(keyring.open, namespace)

    def prepare(self, delivery: Delivery) -> bool:
        """Open a message, then find task and arguments; False if it has ended without them. Raises nothing."""
        try:
            # The item as it is stored is not needed again: a message is settled by its index in the lease.
            delivery.item = self._open(delivery.lease.queue.name, delivery.item)
        except UnknownKeyError as error:
            return self.unknown_key(delivery, error)
        except ProtectionError as error:
            return self.rejected(delivery, error)
        return super().prepare(delivery)

    def _prepare_encrypted(self, delivery: Delivery, envelope: Envelope) -> bool:
        # It has been decrypted.
        return self._prepare_body(delivery, envelope.body)


class EncryptedEndings(Endings):
    """Keeps text of errors out of dead letters of encrypted messages."""

    def end(self, delivery: Delivery, kind: str, reason: str = "") -> bool:
        """Note how a message ends, without the text of its error; returns False."""
        name, text = delivery.error
        if text and is_encrypted(delivery.envelope()):
            delivery.error = (name, WITHHELD)
        return super().end(delivery, kind, reason)
