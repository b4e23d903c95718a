"""Errors of sends: refused, or stored with less safety than was asked for."""

from __future__ import annotations

from qworker.errors.base import QworkerError, RefusedError

__all__ = [
    "BulkChangedError",
    "BulkGapError",
    "GhostSendError",
    "GroupFullError",
    "NotReplicatedError",
    "NotSyncedError",
    "QueueFullError",
    "QueuePausedError",
]


class QueueFullError(RefusedError):
    """The queue stores `stored` messages (ready, delayed and unacked), and `maxlen` allows no more."""

    def __init__(self, queue: str, stored: int, maxlen: int) -> None:
        super().__init__(queue, stored, maxlen)
        self.queue, self.stored, self.maxlen = queue, stored, maxlen

    def __str__(self) -> str:
        return (
            f"queue {self.queue!r} is full: it stores {self.stored} messages and maxlen is "
            f"{self.maxlen}; nothing was sent"
        )


class GroupFullError(RefusedError):
    """The group has as many waiting messages as its limit allows."""

    def __init__(self, queue: str, group: str, waiting: int) -> None:
        super().__init__(queue, group, waiting)
        self.queue, self.group, self.waiting = queue, group, waiting

    def __str__(self) -> str:
        return (
            f"group {self.group!r} of queue {self.queue!r} is full: its limit is {self.waiting} waiting messages; "
            "nothing was sent"
        )


class QueuePausedError(RefusedError):
    """Input of the queue is paused; `qworker queue resume` opens it."""

    def __init__(self, queue: str) -> None:
        super().__init__(queue)
        self.queue = queue

    def __str__(self) -> str:
        return (
            f"queue {self.queue!r} is paused for input; nothing was sent "
            f"(qworker queue resume {self.queue})"
        )


class GhostSendError(RefusedError):
    """A send arrived after a newer one of its lane was stored."""

    def __init__(self, lane: str, sequence: int) -> None:
        super().__init__(lane, sequence)
        self.lane, self.sequence = lane, sequence

    def __str__(self) -> str:
        return (
            f"send {self.sequence} of lane {self.lane} came after a newer one and was refused; "
            "send the message again"
        )


class BulkGapError(RefusedError):
    """A chunk of a bulk write begins at row `first` of its stream, but only `taken` rows are stored."""

    def __init__(self, write_id: str, stream: str, taken: int, first: int) -> None:
        super().__init__(write_id, stream, taken, first)
        self.write_id, self.stream, self.taken, self.first = write_id, stream, taken, first

    def __str__(self) -> str:
        return (
            f"bulk write {self.write_id!r} has stored {self.taken} rows of partition.priority {self.stream} "
            f"and was given row {self.first + 1} next; a failover lost rows, or the ledger was lost or has expired: "
            "write again under the same id, which continues there"
        )


class BulkChangedError(RefusedError):
    """Rows under a known write id differ from the `taken` rows that it stored, or are in another order."""

    def __init__(self, write_id: str, stream: str, taken: int) -> None:
        super().__init__(write_id, stream, taken)
        self.write_id, self.stream, self.taken = write_id, stream, taken

    def __str__(self) -> str:
        return (
            f"bulk write {self.write_id!r} has stored {self.taken} rows of partition.priority {self.stream}, "
            "and the rows given now differ or are in another order; none of them was sent: cut and sort the input "
            "as before, by a unique key; another write id, or rows with ids, would send all of them again"
        )


class NotReplicatedError(QworkerError):
    """Messages `ids` are stored, but within `within_ms` only on `replicas` of `wanted` replicas.

    Sending them again would store them twice: check with `Queue.replicated` whether they have arrived.
    """

    def __init__(
        self, queue: str, ids: list[str], replicas: int, wanted: int, within_ms: int
    ) -> None:
        super().__init__(queue, ids, replicas, wanted, within_ms)
        self.queue, self.ids, self.replicas, self.wanted = queue, ids, replicas, wanted
        self.within_ms = within_ms

    def __str__(self) -> str:
        named = f"message {self.ids[0]}" if len(self.ids) == 1 else f"{len(self.ids)} messages"
        return (
            f"{named} of queue {self.queue!r}: stored, but on {self.replicas} of {self.wanted} replicas within "
            f"{self.within_ms} ms; check with Queue.replicated: sending again would store it twice"
        )


class NotSyncedError(NotReplicatedError):
    """Messages `ids` are stored, but not on all disks that were asked for: the server's (`synced`) and its replicas'.

    A server that is older than Redis 7.2 or has no append-only file cannot say: then its reply is the cause.
    """

    def __init__(
        self,
        queue: str,
        ids: list[str],
        replicas: int,
        wanted: int,
        within_ms: int,
        synced: bool = False,
    ) -> None:
        super().__init__(queue, ids, replicas, wanted, within_ms)
        self.args = (queue, ids, replicas, wanted, within_ms, synced)
        self.synced = synced

    def __str__(self) -> str:
        named = f"message {self.ids[0]}" if len(self.ids) == 1 else f"{len(self.ids)} messages"
        where = (
            f"on the disks of {self.replicas} of {self.wanted} replicas"
            if self.synced
            else "not confirmed on the server's disk"
        )
        cause = f" (the server said: {self.__cause__})" if self.__cause__ else ""
        return (
            f"{named} of queue {self.queue!r}: stored, but {where} within {self.within_ms} ms{cause}; "
            "sending again would store it twice"
        )
