"""Errors of signatures and encryption."""

from __future__ import annotations

from qworker.errors.base import QworkerError

__all__ = [
    "BadSignatureError",
    "ProtectionError",
    "UndecipherableError",
    "UnknownKeyError",
]


class ProtectionError(QworkerError):
    """A message whose signature or encryption is not valid; `reason` is that of its dead letter."""

    reason = ""

    def __init__(self, queue: str, message_id: str, problem: str) -> None:
        super().__init__(queue, message_id, problem)
        self.queue, self.message_id, self.problem = queue, message_id, problem

    def __str__(self) -> str:
        return f"message {self.message_id or '?'} of queue {self.queue!r} {self.problem}"


class BadSignatureError(ProtectionError):
    """A message without a signature, or with one that does not match its queue, id and body."""

    reason = "bad_signature"


class UndecipherableError(ProtectionError):
    """An encrypted body that does not decrypt: it was changed, or moved here from another message or queue."""

    reason = "undecipherable"


class UnknownKeyError(ProtectionError):
    """A message that was signed or encrypted with a key that this process lacks."""

    reason = "unknown_key"
