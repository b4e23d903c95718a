"""Runs messages that are signed or encrypted: nothing of a body is read before it is verified and decrypted.

A runner of its own, so that who uses neither pays for neither.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any, Final

from qworker.consumer.runner import Runner
from qworker.errors import ProtectionError, UnknownKeyError
from qworker.wire.keyring import Keyring, is_encrypted

if TYPE_CHECKING:
    from qworker.consumer.delivery import Delivery
    from qworker.wire.envelope import Envelope

__all__ = ["WITHHELD", "ProtectedRunner"]

#: What a dead letter has instead of an error's text, which might quote the body.
WITHHELD: Final = "the text is in the log of the worker only: the message is encrypted"


class ProtectedRunner(Runner):
    """A runner that opens messages with a keyring."""

    def __init__(self, keyring: Keyring, namespace: str, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self._open = partial(keyring.open, namespace)

    def prepare(self, delivery: Delivery) -> bool:
        """Open a message, then find task and arguments; False where it has ended without them. Raises nothing."""
        try:
            # What is settled is named by its place in the lease: the item as it is stored is not needed again.
            delivery.item = self._open(delivery.lease.queue.name, delivery.item)
        except UnknownKeyError as error:
            return self.unknown_key(delivery, error)
        except ProtectionError as error:
            return self.refuse(delivery, error)
        return super().prepare(delivery)

    def _prepare_encrypted(self, delivery: Delivery, envelope: Envelope) -> bool:
        # It has been decrypted.
        return self._prepare_any(delivery, envelope.body)

    def _end(self, delivery: Delivery, kind: str, reason: str = "") -> bool:
        name, text = delivery.error
        if text and is_encrypted(delivery.envelope()):
            delivery.error = (name, WITHHELD)
        return super()._end(delivery, kind, reason)
