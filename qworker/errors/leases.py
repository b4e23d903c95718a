"""Errors of leases and receipts: used, lost, or too late."""

from __future__ import annotations

from qworker.errors.base import QworkerError, RefusedError

__all__ = [
    "LeaseLostError",
    "LeaseUsedError",
    "StaleReceiptError",
    "TooLateError",
]


class LeaseUsedError(RefusedError):
    """The lease id exists already: one call creates a lease."""

    def __init__(self, lease_id: str) -> None:
        super().__init__(lease_id)
        self.lease_id = lease_id

    def __str__(self) -> str:
        return f"lease {self.lease_id!r} exists already; use a new id for each receive"


class TooLateError(RefusedError):
    """Half of the message's time to live was over at `half_ms` (server's clock, since 1970): it gets no more time."""

    def __init__(self, queue: str, message_id: str, half_ms: int) -> None:
        super().__init__(queue, message_id, half_ms)
        self.queue, self.message_id, self.half_ms = queue, message_id, half_ms

    def __str__(self) -> str:
        return (
            f"message {self.message_id} of queue {self.queue!r} gets no more time: half of its time to live was over "
            f"at {self.half_ms} ms; settle it before its deadline, or call extend, which has no such rule"
        )


class StaleReceiptError(QworkerError):
    """The receipt is no longer valid: its lease was reaped or its message settled. Nothing was changed."""

    def __init__(self, queue: str, receipt: str) -> None:
        super().__init__(queue, receipt)
        self.queue, self.receipt = queue, receipt

    def __str__(self) -> str:
        return (
            f"receipt {self.receipt} of queue {self.queue!r} is stale: its visibility timeout ran "
            "out, or the message was settled before; nothing was changed"
        )


class LeaseLostError(StaleReceiptError):
    """The delivery of a run no longer holds its lease, so another worker may run it: its step was not recorded.

    `message_id` names the run. Let it end the function.
    """

    def __init__(self, queue: str, message_id: str) -> None:
        super().__init__(queue, message_id)
        self.message_id = message_id

    def __str__(self) -> str:
        return (
            f"run {self.message_id} of queue {self.queue!r} has lost its lease, and may be running elsewhere; nothing "
            "was recorded"
        )
