"""Every error that qworker raises, in one tree.

QworkerError
├── InvalidError (ValueError)     a value that cannot be accepted: field, problem, limit; nothing was written
│   ├── InvalidNameError          a queue, task, namespace or schedule name
│   ├── InvalidOptionError        an option, attribute or configuration value
│   ├── InvalidBodyError          a message body that cannot be encoded or decoded; names its path
│   ├── ArgumentsError            arguments that do not fit the task's signature
│   └── BodyTooLargeError         a body over the queue's maxsize
├── RefusedError                  the server answered and refused; nothing was written
│   ├── QueueFullError            maxlen reached
│   ├── QueuePausedError          input is paused
│   ├── LeaseUsedError            a lease id that exists already
│   ├── GhostSendError            a send older than one already stored on its lane
│   └── BrokenQueueError          a key of the queue holds another type
├── StaleReceiptError             the receipt's lease is gone, or the message was settled before
├── UnknownTaskError              a task name that the app does not have
├── ServerError                   Redis cannot serve the call now; `retry` says what a caller may do
│   ├── UnavailableError          not reached, or the connection broke before the call was sent
│   ├── InDoubtError              the call was sent and its reply never came
│   ├── LoadingError              the server is loading its data set
│   ├── BusyError                 the server is running a long script
│   ├── ReadOnlyError             the server is a replica
│   ├── ClusterMovingError        the slot is moving (TRYAGAIN, CLUSTERDOWN)
│   ├── NotPersistedError         the server cannot write to disk (MISCONF)
│   ├── NoReplicasError           too few replicas are in touch (NOREPLICAS)
│   ├── OutOfMemoryError          maxmemory is reached
│   ├── AccessDeniedError         wrong password, or a command or key that the ACL forbids
│   └── UnsupportedServerError    the server is older than Redis 7.0
├── StoreError                    the embedded store cannot be started or opened
├── AppLoadError                  the module that holds the app cannot be imported
└── TimeLimitError                a handler ran past its time limit

Control flow of handlers (`Retry`, `Discard`, `Bury`, `Release`, `LetExpire`) is not failure and lives in
`qworker.app.control`.
"""

from __future__ import annotations

from enum import Enum

__all__ = [
    "AccessDeniedError",
    "AppLoadError",
    "ArgumentsError",
    "BodyTooLargeError",
    "BrokenQueueError",
    "BusyError",
    "ClusterMovingError",
    "GhostSendError",
    "InDoubtError",
    "InvalidBodyError",
    "InvalidError",
    "InvalidNameError",
    "InvalidOptionError",
    "LeaseUsedError",
    "LoadingError",
    "NoReplicasError",
    "NotPersistedError",
    "OutOfMemoryError",
    "QueueFullError",
    "QueuePausedError",
    "QworkerError",
    "ReadOnlyError",
    "RefusedError",
    "RetryRule",
    "ServerError",
    "StaleReceiptError",
    "StoreError",
    "TimeLimitError",
    "UnavailableError",
    "UnknownTaskError",
    "UnsupportedServerError",
]


class RetryRule(Enum):
    """What a caller may do after a `ServerError`."""

    NEVER = "never"
    """The same call fails again until somebody changes something."""
    LATER = "later"
    """The call did not run; it may be made again, after a pause, as a new call."""
    REPEAT = "repeat"
    """The call may have run; only the identical call (same lane and number, same lease) may be repeated."""


class QworkerError(Exception):
    """Base of every error that qworker raises."""


class InvalidError(QworkerError, ValueError):
    """Refuse a value: `field` had `problem`; `limit` says what is accepted. Nothing was written."""

    def __init__(self, field: str, problem: str, limit: str) -> None:
        super().__init__(field, problem, limit)
        self.field = field
        self.problem = problem
        self.limit = limit

    def __str__(self) -> str:
        return f"{self.field}: {self.problem}; {self.limit}"


class InvalidNameError(InvalidError):
    """A queue, task, namespace or schedule name that breaks the rules of `qworker.names`."""


class InvalidOptionError(InvalidError):
    """An option, queue attribute or configuration value out of its range or of the wrong type."""


class InvalidBodyError(InvalidError):
    """A body that cannot be encoded or decoded; `field` is the path of the offending value."""


class ArgumentsError(InvalidError):
    """Arguments that do not fit the task's signature; `field` is `task(argument)`."""


class BodyTooLargeError(InvalidError):
    """A body of `size` bytes where `maxsize` bytes are allowed."""

    def __init__(self, field: str, size: int, maxsize: int) -> None:
        super().__init__(field, f"is {size} bytes", f"the limit (maxsize) is {maxsize} bytes")
        self.size = size
        self.maxsize = maxsize

    def __reduce__(self) -> tuple[type[BodyTooLargeError], tuple[str, int, int]]:
        return type(self), (self.field, self.size, self.maxsize)


class RefusedError(QworkerError):
    """The server answered and refused the call: definite, nothing was written."""


class QueueFullError(RefusedError):
    """The queue holds `stored` messages and `maxlen` allows no more; consume, or raise maxlen."""

    def __init__(self, queue: str, stored: int, maxlen: int) -> None:
        super().__init__(queue, stored, maxlen)
        self.queue, self.stored, self.maxlen = queue, stored, maxlen

    def __str__(self) -> str:
        return (
            f"queue {self.queue!r} is full: it stores {self.stored} messages and maxlen is "
            f"{self.maxlen}; nothing was sent"
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


class LeaseUsedError(RefusedError):
    """A lease id that exists already: two calls may not create the same lease."""

    def __init__(self, lease_id: str) -> None:
        super().__init__(lease_id)
        self.lease_id = lease_id

    def __str__(self) -> str:
        return f"lease {self.lease_id!r} exists already; a lease id is used by one call only"


class GhostSendError(RefusedError):
    """A send whose number is older than the last one stored on its lane arrived too late."""

    def __init__(self, lane: str, sequence: int) -> None:
        super().__init__(lane, sequence)
        self.lane, self.sequence = lane, sequence

    def __str__(self) -> str:
        return (
            f"send {self.sequence} of lane {self.lane} came after a newer one and was refused; "
            "send the message again"
        )


class BrokenQueueError(RefusedError):
    """`key` holds `found` where the data model wants another type; the queue is left untouched."""

    def __init__(self, key: str, found: str) -> None:
        super().__init__(key, found)
        self.key, self.found = key, found

    def __str__(self) -> str:
        return (
            f"key {self.key!r} holds a {self.found}, which is not what qworker keeps there; "
            "nothing was changed: rename or delete that key"
        )


class StaleReceiptError(QworkerError):
    """The receipt proves nothing any more: its lease was reaped, or its message settled. Nothing changed."""

    def __init__(self, queue: str, receipt: str) -> None:
        super().__init__(queue, receipt)
        self.queue, self.receipt = queue, receipt

    def __str__(self) -> str:
        return (
            f"receipt {self.receipt} of queue {self.queue!r} is stale: its visibility timeout ran "
            "out, or the message was settled before; nothing was changed"
        )


class UnknownTaskError(QworkerError):
    """A message or call names a task that this app does not have."""

    def __init__(self, task: str, near: str | None = None) -> None:
        super().__init__(task, near)
        self.task, self.near = task, near

    def __str__(self) -> str:
        hint = f"; did you mean {self.near!r}?" if self.near else ""
        return f"no task is named {self.task!r}{hint}"


class ServerError(QworkerError):
    """Redis cannot serve the call now."""

    retry: RetryRule = RetryRule.NEVER


class UnavailableError(ServerError):
    """The server was not reached, or the connection broke before the call was sent: it did not run."""

    retry = RetryRule.LATER


class InDoubtError(ServerError):
    """The call was sent and its reply never came: it may or may not have run."""

    retry = RetryRule.REPEAT


class LoadingError(ServerError):
    """The server is loading its data set into memory."""

    retry = RetryRule.LATER


class BusyError(ServerError):
    """The server is busy with a long-running script."""

    retry = RetryRule.LATER


class ReadOnlyError(ServerError):
    """The server is a replica: the client follows a master that was replaced."""

    retry = RetryRule.LATER


class ClusterMovingError(ServerError):
    """The keys' slot is being moved or has no master."""

    retry = RetryRule.LATER


class NotPersistedError(ServerError):
    """The server cannot write to its disk and takes no writes (MISCONF)."""

    retry = RetryRule.LATER


class NoReplicasError(ServerError):
    """Too few replicas are in touch with the master for it to take writes (NOREPLICAS)."""

    retry = RetryRule.LATER


class OutOfMemoryError(ServerError):
    """maxmemory is reached: sends are refused, receiving and settling go on."""

    retry = RetryRule.LATER


class AccessDeniedError(ServerError):
    """Wrong user or password, or a command or key that the user's ACL forbids."""


class UnsupportedServerError(ServerError):
    """The server is older than Redis 7.0 or lacks a feature that qworker needs."""


class StoreError(QworkerError):
    """The embedded store cannot be started, opened or stopped; the text says why and what to do."""


class AppLoadError(QworkerError):
    """The module that holds the app cannot be imported, or holds no app."""


class TimeLimitError(QworkerError):
    """A handler ran past its time limit of `limit_s` seconds."""

    def __init__(self, task: str, limit_s: float) -> None:
        super().__init__(task, limit_s)
        self.task, self.limit_s = task, limit_s

    def __str__(self) -> str:
        return f"task {self.task!r} ran past its time limit of {self.limit_s:g} s"
