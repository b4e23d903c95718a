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
│   ├── ShardDrainingError        a shard that is to run empty, or is not open
│   ├── ShardsChangedError        a queue that others divide at the same time
│   ├── QueueExistsError          a queue to be made is there already
│   ├── QueueNotFoundError        no such queue: no key, and no entry in the registry
│   ├── LeaseUsedError            a lease id that exists already
│   ├── GhostSendError            a send older than one already stored on its lane
│   ├── TooLateError              working on a message whose time to live is half over
│   ├── BulkGapError              a chunk of a bulk write before the rows in front of it
│   ├── BulkChangedError          other rows under the write id of an earlier bulk write
│   └── BrokenQueueError          a key of the queue holds another type
├── NotReplicatedError            stored, but on fewer replicas in time than was asked for
│   └── NotSyncedError            stored, but not on as many disks in time as was asked for
├── ProtectionError               a message that may not be used: its signature, or its encryption
│   ├── BadSignatureError         not signed, or not by this key for this queue, id and body
│   ├── UndecipherableError       encrypted, and changed since, or of another queue or message
│   └── UnknownKeyError           signed or encrypted with a key that is not held here
├── StaleReceiptError             the receipt's lease is gone, or the message was settled before
├── UnknownTaskError              a task name that the app does not have
├── ServerError                   Redis cannot serve the call now; `retry` says what a caller may do
│   ├── UnavailableError          not reached, or the connection broke before the call was sent
│   │   └── ScriptsNotLoadedError the server lacks our scripts, and this user may not load them
│   ├── InDoubtError              the call was sent and its reply never came
│   ├── UnfinishedError           a script failed in its middle: the call may have been done in part
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
├── PipelineError                 the Spark pipeline cannot go on
│   ├── SparkMissingError         pyspark, or what it needs in Python, is missing or too new
│   ├── JavaMissingError          there is no Java that Spark could use
│   └── EventsLostError           events of a journal were asked for and are no longer stored
└── TimeLimitError                a handler ran past its time limit

Control flow of handlers (`Retry`, `Discard`, `Bury`, `Release`, `LetExpire`) is not failure and lives in
`qworker.app.control`.
"""

from __future__ import annotations

from enum import Enum
from typing import Self

__all__ = [
    "AccessDeniedError",
    "AppLoadError",
    "ArgumentsError",
    "BadSignatureError",
    "BodyTooLargeError",
    "BrokenQueueError",
    "BulkChangedError",
    "BulkGapError",
    "BusyError",
    "ClusterMovingError",
    "EventsLostError",
    "GhostSendError",
    "InDoubtError",
    "InvalidBodyError",
    "InvalidError",
    "InvalidNameError",
    "InvalidOptionError",
    "JavaMissingError",
    "LeaseUsedError",
    "LoadingError",
    "NoReplicasError",
    "NotPersistedError",
    "NotReplicatedError",
    "NotSyncedError",
    "OutOfMemoryError",
    "PipelineError",
    "ProtectionError",
    "QueueExistsError",
    "QueueFullError",
    "QueueNotFoundError",
    "QueuePausedError",
    "QworkerError",
    "ReadOnlyError",
    "RefusedError",
    "RetryRule",
    "ScriptsNotLoadedError",
    "ServerError",
    "ShardDrainingError",
    "ShardsChangedError",
    "SparkMissingError",
    "StaleReceiptError",
    "StoreError",
    "TimeLimitError",
    "TooLateError",
    "UnavailableError",
    "UndecipherableError",
    "UnfinishedError",
    "UnknownKeyError",
    "UnknownTaskError",
    "UnsupportedServerError",
    "concerns_the_call",
    "is_answer",
]


class RetryRule(Enum):
    """What a caller may do after a `ServerError`."""

    NEVER = "never"
    """The same call fails again until somebody changes something; `UnfinishedError`: part of it may have been done."""
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

    def at(self, field: str) -> Self:
        """Copy the error for a value that was found at another field."""
        return type(self)(field, self.problem, self.limit)


class InvalidNameError(InvalidError):
    """A queue, task, namespace or schedule name that breaks the rules of `qworker.wire.names`."""


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

    def at(self, field: str) -> Self:
        """Copy the error for a body that was found at another field."""
        return type(self)(field, self.size, self.maxsize)

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


class ShardDrainingError(RefusedError):
    """A shard that is to run empty, or is not open, takes no message; others of its queue do, and a client finds them.

    `active` and `epoch` are those of the division that lets it run empty; `epoch` 0: never opened, or removed.
    """

    def __init__(self, shard: str, active: int = 1, epoch: int = 0) -> None:
        super().__init__(shard)
        self.shard, self.active, self.epoch = shard, active, epoch

    def __str__(self) -> str:
        queue = self.shard.partition("/")[0]
        return (
            f"shard {self.shard!r} is {'to run empty' if self.epoch else 'not open'} and takes no message; nothing was "
            f"sent: send to queue {queue!r} (qworker queue shards {queue})"
        )


class ShardsChangedError(RefusedError):
    """A queue was divided by others at the same time, again and again: it is divided as they say."""

    def __init__(self, queue: str, active: int) -> None:
        super().__init__(queue, active)
        self.queue, self.active = queue, active

    def __str__(self) -> str:
        return (
            f"queue {self.queue!r} is being divided by others, and has {self.active} shards now: look who does it "
            f"(qworker queue shards {self.queue}), and divide it again"
        )


class QueueExistsError(RefusedError):
    """A queue that was to be made is there already; `configure` changes it, or makes it."""

    def __init__(self, queue: str) -> None:
        super().__init__(queue)
        self.queue = queue

    def __str__(self) -> str:
        return (
            f"queue {self.queue!r} exists already; nothing was changed "
            f"(qworker queue set {self.queue} changes its attributes)"
        )


class QueueNotFoundError(RefusedError):
    """No queue has this name: it was never made nor sent to, or it was removed."""

    def __init__(self, queue: str) -> None:
        super().__init__(queue)
        self.queue = queue

    def __str__(self) -> str:
        return (
            f"queue {self.queue!r} does not exist; it comes to be by its first message "
            f"(or qworker queue create {self.queue})"
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


class TooLateError(RefusedError):
    """More time was asked for a message of which half of the time to live was over at `half_ms`, server time."""

    def __init__(self, queue: str, message_id: str, half_ms: int) -> None:
        super().__init__(queue, message_id, half_ms)
        self.queue, self.message_id, self.half_ms = queue, message_id, half_ms

    def __str__(self) -> str:
        return (
            f"message {self.message_id} of queue {self.queue!r} gets no more time: half of its time to live was over "
            f"at {self.half_ms} ms; its deadline stands: end it before that, or use extend, which has no such rule"
        )


class BulkGapError(RefusedError):
    """A chunk of a bulk write begins at row `first` of its stream, of which `taken` rows have been stored."""

    def __init__(self, write_id: str, stream: str, taken: int, first: int) -> None:
        super().__init__(write_id, stream, taken, first)
        self.write_id, self.stream, self.taken, self.first = write_id, stream, taken, first

    def __str__(self) -> str:
        return (
            f"bulk write {self.write_id!r} has stored {self.taken} rows of partition.priority {self.stream} "
            f"and was given row {self.first + 1} next; a failover took the later ones, or the ledger was lost or has "
            "expired: write again under the same id, which goes on there"
        )


class BulkChangedError(RefusedError):
    """Rows brought again under a write id are not those of which `taken` were stored, or come in another order."""

    def __init__(self, write_id: str, stream: str, taken: int) -> None:
        super().__init__(write_id, stream, taken)
        self.write_id, self.stream, self.taken = write_id, stream, taken

    def __str__(self) -> str:
        return (
            f"bulk write {self.write_id!r} has stored {self.taken} rows of partition.priority {self.stream}, "
            "and those brought now are others or in another order; nothing of them was sent: sort the input by a "
            "unique key, name the rows by an id column, or write other rows under another write id"
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


class NotReplicatedError(QworkerError):
    """Messages `ids` are stored, but within `within_ms` only on `replicas` replicas where `wanted` were asked for.

    Sending them again would store them twice: `Queue.replicated` asks again whether they have arrived.
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
            f"{self.within_ms} ms; do not send again, that would store it twice: Queue.replicated asks again"
        )


class ProtectionError(QworkerError):
    """A message whose signature or encryption keeps it from being used; `reason` is that of its dead letter."""

    reason = ""

    def __init__(self, queue: str, message_id: str, problem: str) -> None:
        super().__init__(queue, message_id, problem)
        self.queue, self.message_id, self.problem = queue, message_id, problem

    def __str__(self) -> str:
        return f"message {self.message_id or '?'} of queue {self.queue!r} {self.problem}"


class BadSignatureError(ProtectionError):
    """A message that nobody who holds a key has sent to this queue under this id with this body."""

    reason = "bad_signature"


class UndecipherableError(ProtectionError):
    """An encrypted body that does not open: it was changed, or moved here from another message or queue."""

    reason = "undecipherable"


class UnknownKeyError(ProtectionError):
    """A message that was signed or encrypted with a key that is not held here."""

    reason = "unknown_key"


class NotSyncedError(NotReplicatedError):
    """Messages `ids` are stored, but not on the disks that were asked for: the server's (`synced`) and replicas'.

    The cause tells where a server cannot say: one older than Redis 7.2, or without an append-only file.
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
            else "not known to be on the server's disk"
        )
        cause = f" (the server said: {self.__cause__})" if self.__cause__ else ""
        return (
            f"{named} of queue {self.queue!r}: stored, but {where} within {self.within_ms} ms{cause}; "
            "do not send again, that would store it twice"
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


class ScriptsNotLoadedError(UnavailableError):
    """The server lacks scripts that this user may not load, or forgets them as fast as they are loaded: nothing ran.

    It passes by itself where a daemon runs, which loads them each second; else `qworker scripts load` does it.
    """


class InDoubtError(ServerError):
    """The call was sent and its reply never came: it may or may not have run."""

    retry = RetryRule.REPEAT


class UnfinishedError(ServerError):
    """A script failed at line `line`, and what it had written by then stays: the call may have been done in part.

    Such as a right that its user lost while it ran. Nobody repeats it: that would do the first part twice. `script` is
    its name, '' where that is not known; lines are those of its text with all parts put in.
    """

    def __init__(self, problem: str, line: int, script: str = "") -> None:
        super().__init__(problem, line, script)
        self.problem, self.line, self.script = problem, line, script

    def __str__(self) -> str:
        named = f"script {self.script}" if self.script else "the script"
        return (
            f"{named} failed in its middle, at line {self.line}: the call may have been done in part "
            f"and is not repeated; see to what the server names, then to the queue: qworker fsck "
            f"(the server said: {self.problem})"
        )


def concerns_the_call(error: BaseException) -> bool:
    """Say whether an error is about the call that met it, and not about a server that serves nobody now."""
    return not isinstance(error, ServerError) or type(error) in (ServerError, UnfinishedError)


def is_answer(error: BaseException) -> bool:
    """Say whether a server that cannot serve now has answered so: asking it again costs a trip, not a time limit."""
    return (
        isinstance(error, ServerError)
        and error.retry is not RetryRule.NEVER
        and (
            not isinstance(error, UnavailableError | InDoubtError)
            or isinstance(error, ScriptsNotLoadedError)
        )
    )


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


class PipelineError(QworkerError):
    """The Spark pipeline cannot go on."""


class SparkMissingError(PipelineError):
    """pyspark, or what it needs in Python, is missing or too new; the text says what and what to install."""


class JavaMissingError(PipelineError):
    """There is no Java that Spark could use; `refused` says what was found, and why it was of no use."""

    def __init__(self, refused: list[str]) -> None:
        super().__init__(refused)
        self.refused = refused

    def __str__(self) -> str:
        found = f" ({'; '.join(self.refused)})" if self.refused else ""
        return (
            f"Spark needs Java 17 or newer, and there is none{found}; install one (Debian: apt install "
            "openjdk-17-jre-headless), or set JAVA_HOME to one, or get it as a wheel: "
            "pip install 'qworker-redis[jre]'"
        )


class EventsLostError(PipelineError):
    """Entries `first` to `last` of an epoch of a queue's journal were asked for and are no longer stored."""

    def __init__(self, queue: str, epoch: int, first: int, last: int) -> None:
        super().__init__(queue, epoch, first, last)
        self.queue, self.epoch, self.first, self.last = queue, epoch, first, last

    def __str__(self) -> str:
        return (
            f"journal of queue {self.queue!r}: entries {self.first} to {self.last} of epoch {self.epoch} "
            "were trimmed or deleted before they were read; read more often or raise the cap "
            f"(qworker queue set {self.queue} journal_cap=…), and go on with failOnDataLoss=false, "
            "which puts a row 'gap' in their place"
        )


class TimeLimitError(QworkerError):
    """A handler ran past its time limit of `limit_s` seconds."""

    def __init__(self, task: str, limit_s: float) -> None:
        super().__init__(task, limit_s)
        self.task, self.limit_s = task, limit_s

    def __str__(self) -> str:
        return f"task {self.task!r} ran past its time limit of {self.limit_s:g} s"
