"""Every error that qworker raises, in one tree.

QworkerError
├── InvalidError (ValueError)     a value that is not accepted: field, problem, limit; nothing was written
│   ├── InvalidNameError          a queue, task, namespace or schedule name
│   ├── InvalidOptionError        an option, attribute or configuration value
│   ├── InvalidBodyError          a message body that cannot be encoded or decoded; names its path
│   ├── ArgumentsError            arguments that do not fit the task's signature
│   ├── BodyTooLargeError         a body over the queue's maxsize
│   ├── InvalidResultError        a result that cannot be kept: too large, or not what its task declares
│   ├── NoResultError             the task of a handle keeps no results
│   └── WrongNamespaceError       a handle of another namespace
├── RefusedError                  the server answered and refused; nothing was written
│   ├── QueueFullError            maxlen reached
│   ├── QueuePausedError          input is paused
│   ├── ShardDrainingError        the shard is draining or not open
│   ├── ShardsChangedError        another client is resharding the queue
│   ├── QueueExistsError          the queue to create exists already
│   ├── QueueNotFoundError        no such queue: no key, and no entry in the registry
│   ├── LeaseUsedError            the lease id exists already
│   ├── GhostSendError            a send older than one already stored on its lane
│   ├── TooLateError              more time asked for when half of the time to live is over
│   ├── BulkGapError              a chunk of a bulk write that does not follow the stored rows
│   ├── BulkChangedError          other rows under the write id of an earlier bulk write
│   ├── RunTooLargeError          a run that has recorded too much
│   ├── RunStartedError           a second start of an id, with other arguments
│   ├── GroupStartedError         a second start of a group of calls, with other calls
│   ├── RunUnknownError           a signal to a run that is not there
│   ├── RunEndedError             a signal to a run that has ended
│   ├── SignalGivenError          a signal that was given before, with another value
│   └── BrokenQueueError          a key of the queue holds another type
├── NotReplicatedError            stored, but not on enough replicas in time
│   └── NotSyncedError            stored, but not on enough disks in time
├── ProtectionError               a message whose signature or encryption is not valid
│   ├── BadSignatureError         not signed, or not by this key for this queue, id and body
│   ├── UndecipherableError       does not decrypt: changed, or of another queue or message
│   └── UnknownKeyError           signed or encrypted with a key that this process lacks
├── StaleReceiptError             the receipt's lease is gone, or the message was settled before
│   └── LeaseLostError            a run's delivery lost its lease: its step was not recorded
├── UnknownTaskError              a task name that the app does not have
├── ResultError                   a message has no result to return
│   ├── TaskFailedError           the message is a dead letter
│   ├── TaskEndedError            it ended without a value: cancelled, discarded, expired, purged
│   ├── ResultTimeoutError (TimeoutError)  it has not ended in time
│   └── ResultUnknownError        no result is kept, and the message does not wait or run
├── ServerError                   Redis cannot serve the call now; `retry` says what you may do
│   ├── UnavailableError          not reached, or the connection broke before the call was sent
│   │   └── ScriptsNotLoadedError the server lacks our scripts, and this user may not load them
│   ├── InDoubtError              the call was sent and no reply came
│   ├── UnfinishedError           a script failed midway: part of the call may have run
│   ├── LoadingError              the server is loading its data
│   ├── BusyError                 the server is running a long script
│   ├── ReadOnlyError             the server is a replica
│   ├── ClusterMovingError        the slot is moving (TRYAGAIN, CLUSTERDOWN)
│   ├── NotPersistedError         the server cannot write to disk (MISCONF)
│   ├── NoReplicasError           the master has too few replicas (NOREPLICAS)
│   ├── OutOfMemoryError          maxmemory is reached
│   ├── AccessDeniedError         wrong password, or a command or key that the ACL forbids
│   └── UnsupportedServerError    the server is older than Redis 7.0
├── StoreError                    the embedded store cannot be started or opened
├── AppLoadError                  the module that holds the app cannot be imported
├── PipelineError                 the Spark pipeline cannot continue
│   ├── SparkMissingError         pyspark or one of its Python packages is missing or too new
│   ├── JavaMissingError          no Java that Spark can use
│   ├── ArchiveDamagedError       a file of an archive cannot be read
│   ├── EventsLostError           journal events were trimmed before they were read
│   └── JournalRolledBackError    the journal is older than the part that was read
├── SignalTimeoutError (TimeoutError)  a run's wait for a signal timed out
├── SourceShrankError             a loop of a run whose source has lost items
└── TimeLimitError                a handler ran past its time limit

The control flow of handlers (`Retry`, `Discard`, `Bury`, `Release`, `LetExpire`) is in `qworker.app.control`: it is
not failure.
"""

from __future__ import annotations

from enum import Enum
from typing import Self

__all__ = [
    "AccessDeniedError",
    "AppLoadError",
    "ArchiveDamagedError",
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
    "GroupStartedError",
    "InDoubtError",
    "InvalidBodyError",
    "InvalidError",
    "InvalidNameError",
    "InvalidOptionError",
    "InvalidResultError",
    "JavaMissingError",
    "JournalRolledBackError",
    "LeaseLostError",
    "LeaseUsedError",
    "LoadingError",
    "NoReplicasError",
    "NoResultError",
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
    "ResultError",
    "ResultTimeoutError",
    "ResultUnknownError",
    "RetryRule",
    "RunEndedError",
    "RunStartedError",
    "RunTooLargeError",
    "RunUnknownError",
    "ScriptsNotLoadedError",
    "ServerError",
    "ShardDrainingError",
    "ShardsChangedError",
    "SignalGivenError",
    "SignalTimeoutError",
    "SourceShrankError",
    "SparkMissingError",
    "StaleReceiptError",
    "StoreError",
    "TaskEndedError",
    "TaskFailedError",
    "TimeLimitError",
    "TooLateError",
    "UnavailableError",
    "UndecipherableError",
    "UnfinishedError",
    "UnknownKeyError",
    "UnknownTaskError",
    "UnsupportedServerError",
    "WrongNamespaceError",
    "concerns_the_call",
    "is_answer",
    "server_refused",
]


def shown(value: object, length: int = 80) -> str:
    """Write a value for an error text: escaped, at most `length` characters."""
    text = ascii(value)
    return text if len(text) <= length else text[: length - 3] + "..."


class RetryRule(Enum):
    """Whether you may repeat a call after a `ServerError`."""

    NEVER = "never"
    """The same call will fail again until something is changed; after `UnfinishedError` part of it may have run."""
    LATER = "later"
    """The call did not run; make it again after a pause."""
    REPEAT = "repeat"
    """The call may have run; repeat only the identical call (same lane and number, same lease)."""


class QworkerError(Exception):
    """Base of every error that qworker raises."""


class InvalidError(QworkerError, ValueError):
    """`field` had `problem`; `limit` says what is accepted. Nothing was written."""

    def __init__(self, field: str, problem: str, limit: str) -> None:
        super().__init__(field, problem, limit)
        self.field = field
        self.problem = problem
        self.limit = limit

    def __str__(self) -> str:
        return f"{self.field}: {self.problem}; {self.limit}"

    def at(self, field: str) -> Self:
        """Copy the error for another field."""
        return type(self)(field, self.problem, self.limit)


class InvalidNameError(InvalidError):
    """A queue, task, namespace or schedule name that breaks the rules of `qworker.wire.names`."""


class InvalidOptionError(InvalidError):
    """An option, queue attribute or configuration value out of its range or of the wrong type."""


class InvalidBodyError(InvalidError):
    """A body that cannot be encoded or decoded; `field` is the path of the wrong value, such as `items[3].price`."""


class ArgumentsError(InvalidError):
    """Arguments that do not fit the task's signature; `field` is `task(argument)`."""


class BodyTooLargeError(InvalidError):
    """A body of `size` bytes where `maxsize` bytes are allowed."""

    def __init__(self, field: str, size: int, maxsize: int) -> None:
        super().__init__(field, f"is {size} bytes", f"the limit (maxsize) is {maxsize} bytes")
        self.size = size
        self.maxsize = maxsize

    def at(self, field: str) -> Self:
        """Copy the error for another field."""
        return type(self)(field, self.size, self.maxsize)

    def __reduce__(self) -> tuple[type[BodyTooLargeError], tuple[str, int, int]]:
        return type(self), (self.field, self.size, self.maxsize)


class InvalidResultError(InvalidError):
    """A result that is too large, that JSON cannot carry, or that is not of the type which its task declares."""


class NoResultError(InvalidError):
    """The task keeps no results: it was declared without `result`, or the message is acked before it runs."""


class WrongNamespaceError(InvalidError):
    """A handle of another namespace: its message is not there."""


class RefusedError(QworkerError):
    """The server refused the call: nothing was written."""


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


class TooManyLimitsError(RefusedError):
    """The queue has as many limits as it can: one for `*` or `acme/*` holds for many groups."""

    def __init__(self, queue: str, limits: int) -> None:
        super().__init__(queue, limits)
        self.queue, self.limits = queue, limits

    def __str__(self) -> str:
        return (
            f"queue {self.queue!r} has {self.limits} limits, which is the most; set one for many groups, such as "
            "acme/*, or remove some (qworker limit rm)"
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
    """The shard is draining or not open; other shards of its queue take the message, and `Queue.send` finds them.

    `active` and `epoch` are those of the reshard that drains it; `epoch` 0: never opened, or removed.
    """

    def __init__(self, shard: str, active: int = 1, epoch: int = 0) -> None:
        super().__init__(shard)
        self.shard, self.active, self.epoch = shard, active, epoch

    def __str__(self) -> str:
        queue = self.shard.partition("/")[0]
        return (
            f"shard {self.shard!r} is {'draining' if self.epoch else 'not open'} and takes no messages; nothing was "
            f"sent: send to queue {queue!r} (qworker queue shards {queue})"
        )


class ShardsChangedError(RefusedError):
    """Other clients kept resharding the queue at the same time; it now has their `active` shards."""

    def __init__(self, queue: str, active: int) -> None:
        super().__init__(queue, active)
        self.queue, self.active = queue, active

    def __str__(self) -> str:
        return (
            f"queue {self.queue!r} is being resharded by another client and has {self.active} shards now; check it "
            f"(qworker queue shards {self.queue}) and try again"
        )


class QueueExistsError(RefusedError):
    """The queue exists already; `configure` changes or creates it."""

    def __init__(self, queue: str) -> None:
        super().__init__(queue)
        self.queue = queue

    def __str__(self) -> str:
        return (
            f"queue {self.queue!r} exists already; nothing was changed "
            f"(qworker queue set {self.queue} changes its attributes)"
        )


class QueueNotFoundError(RefusedError):
    """No queue has this name: it was never created or sent to, or was removed."""

    def __init__(self, queue: str) -> None:
        super().__init__(queue)
        self.queue = queue

    def __str__(self) -> str:
        return (
            f"queue {self.queue!r} does not exist; its first message creates it "
            f"(or qworker queue create {self.queue})"
        )


class LeaseUsedError(RefusedError):
    """The lease id exists already: one call creates a lease."""

    def __init__(self, lease_id: str) -> None:
        super().__init__(lease_id)
        self.lease_id = lease_id

    def __str__(self) -> str:
        return f"lease {self.lease_id!r} exists already; use a new id for each receive"


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
            "and the rows given now differ or are in another order; none of them was sent: sort the input by a "
            "unique key, give the rows an id column, or use another write id"
        )


class RunTooLargeError(RefusedError):
    """The steps of a run would take more than a run may keep."""

    def __init__(self, queue: str, message_id: str, size: int) -> None:
        super().__init__(queue, message_id, size)
        self.queue, self.message_id, self.size = queue, message_id, size

    def __str__(self) -> str:
        return (
            f"run {self.message_id} of queue {self.queue!r} would have {self.size:,} bytes of recorded steps; at most "
            "64 MiB: store values elsewhere and return references to them, or continue in another run"
        )


class RunStartedError(RefusedError):
    """A run of this id was started with other arguments, or by another workflow; nothing was sent."""

    def __init__(self, queue: str, message_id: str) -> None:
        super().__init__(queue, message_id)
        self.queue, self.message_id = queue, message_id

    def __str__(self) -> str:
        return (
            f"run {self.message_id} of queue {self.queue!r} was already started with another call: start this one "
            "under another id. An id is free again when the steps of its run have expired (result=, after its end)"
        )


class GroupStartedError(RefusedError):
    """A group of calls of this id was started with other calls; nothing was sent."""

    def __init__(self, queue: str, group_id: str) -> None:
        super().__init__(queue, group_id)
        self.queue, self.group_id = queue, group_id

    def __str__(self) -> str:
        return (
            f"group of calls {self.group_id} of queue {self.queue!r} was already started with other calls: start this "
            "one under another id. An id is free a day after the end of its callback, or when its result has expired"
        )


class RunUnknownError(RefusedError):
    """No run has this id, or it ended long ago."""

    def __init__(self, queue: str, message_id: str) -> None:
        super().__init__(queue, message_id)
        self.queue, self.message_id = queue, message_id

    def __str__(self) -> str:
        return f"run {self.message_id} of queue {self.queue!r} is unknown: it ended long ago, or the id is wrong"


class RunEndedError(RefusedError):
    """The run has ended: it takes no more signals."""

    def __init__(self, queue: str, message_id: str) -> None:
        super().__init__(queue, message_id)
        self.queue, self.message_id = queue, message_id

    def __str__(self) -> str:
        return f"run {self.message_id} of queue {self.queue!r} has ended; it takes no more signals"


class SignalGivenError(RefusedError):
    """The run already has this signal with another value, or its wait has timed out. The first one counts."""

    def __init__(self, queue: str, message_id: str, signal: str) -> None:
        super().__init__(queue, message_id, signal)
        self.queue, self.message_id, self.signal = queue, message_id, signal

    def __str__(self) -> str:
        return (
            f"run {self.message_id} of queue {self.queue!r} already has the signal {self.signal!r} with another "
            "value, or no longer waits for it"
        )


class BrokenQueueError(RefusedError):
    """`key` holds the type `found`, not the one of the data model; the queue was not changed."""

    def __init__(self, key: str, found: str) -> None:
        super().__init__(key, found)
        self.key, self.found = key, found

    def __str__(self) -> str:
        return (
            f"key {self.key!r} holds a {self.found}, not what qworker stores there; "
            "nothing was changed: rename or delete the key"
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


class UnknownTaskError(QworkerError):
    """A message or call names a task that this app does not have."""

    def __init__(self, task: str, near: str | None = None) -> None:
        super().__init__(task, near)
        self.task, self.near = task, near

    def __str__(self) -> str:
        hint = f"; did you mean {self.near!r}?" if self.near else ""
        return f"no task is named {self.task!r}{hint}"


class ResultError(QworkerError):
    """A message has no result to return. `queue` and `message_id` name the message."""

    def __init__(self, queue: str, message_id: str) -> None:
        super().__init__(queue, message_id)
        self.queue, self.message_id = queue, message_id


class TaskFailedError(ResultError):
    """The message is a dead letter: `reason`, class (`error`) and `text` of its last error are those of the letter.

    Of a chain, queue and id are those of the dead step, and `step` is its task. A redriven message can still succeed:
    ask again.
    """

    def __init__(
        self,
        queue: str,
        message_id: str,
        reason: str,
        error: str,
        text: str,
        step: str | None = None,
    ) -> None:
        super().__init__(queue, message_id)
        self.args = (queue, message_id, reason, error, text, step)
        self.reason, self.error, self.text, self.step = reason, error, text, step

    def __str__(self) -> str:
        last = self.text.rstrip().rpartition("\n")[2].strip()
        cause = f": {last or self.error}" if last or self.error else ""
        step = f"step {self.step!r} of the chain, " if self.step else ""
        return (
            f"{step}message {self.message_id} of queue {self.queue!r} is dead ({self.reason}){cause}; "
            f"qworker message show {self.queue} {self.message_id}"
        )


class TaskEndedError(ResultError):
    """The message ended without a value; `state` is cancelled, discarded, expired or purged."""

    def __init__(self, queue: str, message_id: str, state: str, step: str | None = None) -> None:
        super().__init__(queue, message_id)
        self.args = (queue, message_id, state, step)
        self.state, self.step = state, step

    def __str__(self) -> str:
        step = f"step {self.step!r} of the chain, " if self.step else ""
        return f"{step}message {self.message_id} of queue {self.queue!r} was {self.state}: it has no result"


class ResultTimeoutError(ResultError, TimeoutError):
    """The message has not ended within `waited_s` seconds. It may end later: ask again."""

    def __init__(self, queue: str, message_id: str, waited_s: float) -> None:
        super().__init__(queue, message_id)
        self.args = (queue, message_id, waited_s)
        self.waited_s = waited_s

    def __str__(self) -> str:
        return (
            f"message {self.message_id} of queue {self.queue!r} has no result after {self.waited_s:g} s: it waits or "
            "runs, or its result has expired"
        )


class ResultUnknownError(ResultError):
    """No result is kept, and no message of this id waits or runs: the result has expired, or there never was one."""

    def __str__(self) -> str:
        return (
            f"message {self.message_id} of queue {self.queue!r} is unknown: its result has expired, its worker kept "
            "none, or the id is wrong"
        )


class ServerError(QworkerError):
    """Redis cannot serve the call now."""

    retry: RetryRule = RetryRule.NEVER


class UnavailableError(ServerError):
    """The server was not reached, or the connection broke before the call was sent: it did not run."""

    retry = RetryRule.LATER


class ScriptsNotLoadedError(UnavailableError):
    """The server lacks scripts that this user may not load, or forgets them as fast as they are loaded: nothing ran.

    A running daemon loads them within seconds; without one, run `qworker scripts load`.
    """


class InDoubtError(ServerError):
    """The call was sent and no reply came: it may or may not have run."""

    retry = RetryRule.REPEAT


class UnfinishedError(ServerError):
    """A script failed at line `line`, and its earlier writes stay: part of the call may have run.

    For example, its user lost a right while it ran. It is not retried: that would repeat the first part. `script` is
    its name, '' if unknown; lines are counted in its text with all includes.
    """

    def __init__(self, problem: str, line: int, script: str = "") -> None:
        super().__init__(problem, line, script)
        self.problem, self.line, self.script = problem, line, script

    def __str__(self) -> str:
        named = f"script {self.script}" if self.script else "the script"
        return (
            f"{named} failed midway, at line {self.line}: part of the call may have run, and it is not retried; "
            f"fix what the server names, then run qworker fsck on the queue (the server said: {self.problem})"
        )


def server_refused(error: BaseException) -> bool:
    """Say whether the server refused a command for a reason that has no class here, mostly a key of another type."""
    return type(error) is ServerError


def concerns_the_call(error: BaseException) -> bool:
    """Say whether an error is about this call, not about a server that cannot serve any call now."""
    return (
        not isinstance(error, ServerError)
        or isinstance(error, UnfinishedError)
        or server_refused(error)
    )


def is_answer(error: BaseException) -> bool:
    """Say whether a server replied that it cannot serve now: asking again costs a round trip, not a timeout."""
    return (
        isinstance(error, ServerError)
        and error.retry is not RetryRule.NEVER
        and (
            not isinstance(error, UnavailableError | InDoubtError)
            or isinstance(error, ScriptsNotLoadedError)
        )
    )


class LoadingError(ServerError):
    """The server is loading its data into memory."""

    retry = RetryRule.LATER


class BusyError(ServerError):
    """The server is busy with a long-running script."""

    retry = RetryRule.LATER


class ReadOnlyError(ServerError):
    """The server is a replica, mostly after a failover."""

    retry = RetryRule.LATER


class ClusterMovingError(ServerError):
    """The slot of the keys is being moved or has no master."""

    retry = RetryRule.LATER


class NotPersistedError(ServerError):
    """The server cannot write to its disk and refuses writes (MISCONF)."""

    retry = RetryRule.LATER


class NoReplicasError(ServerError):
    """The master has too few connected replicas and refuses writes (NOREPLICAS)."""

    retry = RetryRule.LATER


class OutOfMemoryError(ServerError):
    """maxmemory is reached: sends are refused; receiving and settling still work."""

    retry = RetryRule.LATER


class AccessDeniedError(ServerError):
    """Wrong user or password, or a command or key that the user's ACL forbids."""


class UnsupportedServerError(ServerError):
    """The server is older than Redis 7.0, or lacks a feature that qworker needs."""


class StoreError(QworkerError):
    """The embedded store cannot be started, opened or stopped."""


class AppLoadError(QworkerError):
    """The module that holds the app cannot be imported, or holds no app."""


class PipelineError(QworkerError):
    """The Spark pipeline cannot continue."""


class SparkMissingError(PipelineError):
    """pyspark or one of its Python packages is missing or too new."""


class JavaMissingError(PipelineError):
    """No Java that Spark can use; `refused` lists the candidates and why each was rejected."""

    def __init__(self, refused: list[str]) -> None:
        super().__init__(refused)
        self.refused = refused

    def __str__(self) -> str:
        found = f" ({'; '.join(self.refused)})" if self.refused else ""
        return (
            f"Spark needs Java 17 or newer, and none was found{found}; install one (Debian: apt install "
            "openjdk-17-jre-headless), set JAVA_HOME to one, or run: pip install 'qworker-redis[jre]'"
        )


class EventsLostError(PipelineError):
    """Entries `first` to `last` of an epoch of a queue's journal were trimmed or deleted before they were read."""

    def __init__(self, queue: str, epoch: int, first: int, last: int) -> None:
        super().__init__(queue, epoch, first, last)
        self.queue, self.epoch, self.first, self.last = queue, epoch, first, last

    def __str__(self) -> str:
        return (
            f"journal of queue {self.queue!r}: entries {self.first} to {self.last} of epoch {self.epoch} "
            "were trimmed or deleted before they were read; read more often or raise the cap "
            f"(qworker queue set {self.queue} journal_cap=…), and continue with failOnDataLoss=false, "
            "which puts a 'gap' row in their place"
        )


class JournalRolledBackError(PipelineError):
    """A queue's journal was read up to an entry, and Redis has an older or another journal now."""

    def __init__(self, queue: str, epoch: int, entry: int, now_epoch: int, now_entry: int) -> None:
        super().__init__(queue, epoch, entry, now_epoch, now_entry)
        self.queue, self.epoch, self.entry = queue, epoch, entry
        self.now_epoch, self.now_entry = now_epoch, now_entry

    def __str__(self) -> str:
        went = (
            f"entries {self.now_entry} to {self.entry - 1} of epoch {self.epoch} were read, and are not in Redis any "
            "more"
            if self.now_epoch == self.epoch and self.now_entry < self.entry
            else f"the entries up to {self.entry - 1} of epoch {self.epoch} that were read differ from those in Redis"
        )
        return (
            f"journal of queue {self.queue!r}: {went}: the server came back with older data (a failover or a restored "
            "copy), or the queue was removed; continue with failOnDataLoss=false, which puts a 'gap' row there and "
            "reads all that is stored"
        )


class ArchiveDamagedError(PipelineError):
    """A file of an archive cannot be read."""

    def __init__(self, file: str, problem: str) -> None:
        super().__init__(file, problem)
        self.file, self.problem = file, problem

    def __str__(self) -> str:
        return (
            f"{self.file}: {self.problem}; restore it from a copy, or move it out of the archive: `qworker spark "
            "audit` then names the events that are missing"
        )


class SignalTimeoutError(QworkerError, TimeoutError):
    """The wait of a run for a signal has timed out. The run may continue, and will not get the signal."""

    def __init__(self, signal: str) -> None:
        super().__init__(signal)
        self.signal = signal

    def __str__(self) -> str:
        return f"the signal {self.signal!r} was not given in time"


class SourceShrankError(QworkerError):
    """A loop of a run has done `done` items, and its source now has fewer items than before: `length`.

    Items before its position are gone, so the next one is not known.
    """

    def __init__(self, loop: str, done: int, length: int) -> None:
        super().__init__(loop, done, length)
        self.loop, self.done, self.length = loop, done, length

    def __str__(self) -> str:
        return (
            f"loop {self.loop!r} has done {self.done:,} items, but its source has only {self.length:,} now, fewer than "
            "before; only let it grow at its end, or loop over a function that takes the key of the last item"
        )


class TimeLimitError(QworkerError):
    """A handler ran past its time limit of `limit_s` seconds."""

    def __init__(self, task: str, limit_s: float) -> None:
        super().__init__(task, limit_s)
        self.task, self.limit_s = task, limit_s

    def __str__(self) -> str:
        return f"task {self.task!r} ran past its time limit of {self.limit_s:g} s"
