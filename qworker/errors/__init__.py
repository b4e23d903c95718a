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
│   ├── GroupFullError            a group has as many waiting messages as its limit allows
│   ├── QueuePausedError          input is paused
│   ├── ShardDrainingError        the shard is draining or not open
│   ├── ShardsChangedError        another client is resharding the queue
│   ├── QueueExistsError          the queue to create exists already
│   ├── QueueNotFoundError        no such queue: no key, and no entry in the registry
│   ├── TooManyLimitsError        the queue has as many limits as it can hold
│   ├── LeaseUsedError            the lease id exists already
│   ├── GhostSendError            a send older than one already stored on its lane
│   ├── TooLateError              an extension when half of the time to live is over
│   ├── BulkGapError              a chunk of a bulk write that does not follow the stored rows
│   ├── BulkChangedError          other rows under the write id of an earlier bulk write
│   ├── RunTooLargeError          a run that has recorded too much
│   ├── RunStartedError           a second start of an id, with other arguments
│   ├── GroupStartedError         a second start of a group of calls, with other calls
│   ├── IdTakenError              a run and a group of calls of one id in a queue
│   ├── RunUnknownError           a signal to a run that does not exist
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
│   │   └── SlotUnservedError     no node has the slot
│   ├── NotPersistedError         the server cannot write to disk (MISCONF)
│   ├── NoReplicasError           the master has too few replicas (NOREPLICAS)
│   ├── OutOfMemoryError          maxmemory is reached
│   ├── AccessDeniedError         a command or key that the ACL forbids
│   │   └── LoginError            wrong user or password, or none
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

The control flow of handlers (`Retry`, `Discard`, `Bury`, `Release`, `LetExpire`) is in `qworker.app.control`: it is not
a failure.
"""

from __future__ import annotations

from qworker.errors.base import QworkerError, RefusedError
from qworker.errors.base import shown as shown
from qworker.errors.invalid import (
    ArgumentsError,
    BodyTooLargeError,
    InvalidBodyError,
    InvalidError,
    InvalidNameError,
    InvalidOptionError,
    InvalidResultError,
    NoResultError,
    WrongNamespaceError,
)
from qworker.errors.leases import LeaseLostError, LeaseUsedError, StaleReceiptError, TooLateError
from qworker.errors.pipeline import (
    ArchiveDamagedError,
    EventsLostError,
    JavaMissingError,
    JournalRolledBackError,
    PipelineError,
    SparkMissingError,
)
from qworker.errors.protection import (
    BadSignatureError,
    ProtectionError,
    UndecipherableError,
    UnknownKeyError,
)
from qworker.errors.queues import (
    BrokenQueueError,
    QueueExistsError,
    QueueNotFoundError,
    ShardDrainingError,
    ShardsChangedError,
    TooManyLimitsError,
)
from qworker.errors.results import (
    ResultError,
    ResultTimeoutError,
    ResultUnknownError,
    TaskEndedError,
    TaskFailedError,
)
from qworker.errors.runs import (
    GroupStartedError,
    IdTakenError,
    RunEndedError,
    RunStartedError,
    RunTooLargeError,
    RunUnknownError,
    SignalGivenError,
    SignalTimeoutError,
    SourceShrankError,
)
from qworker.errors.sending import (
    BulkChangedError,
    BulkGapError,
    GhostSendError,
    GroupFullError,
    NotReplicatedError,
    NotSyncedError,
    QueueFullError,
    QueuePausedError,
)
from qworker.errors.server import (
    AccessDeniedError,
    BusyError,
    ClusterMovingError,
    InDoubtError,
    LoadingError,
    LoginError,
    NoReplicasError,
    NotPersistedError,
    OutOfMemoryError,
    ReadOnlyError,
    RetryRule,
    ScriptsNotLoadedError,
    ServerError,
    SlotUnservedError,
    StoreError,
    UnavailableError,
    UnfinishedError,
    UnsupportedServerError,
    concerns_the_call,
    is_answer,
    is_of_server,
    of_one_slot,
    server_refused,
)
from qworker.errors.tasks import AppLoadError, TimeLimitError, UnknownTaskError

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
    "GroupFullError",
    "GroupStartedError",
    "IdTakenError",
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
    "LoginError",
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
    "SlotUnservedError",
    "SourceShrankError",
    "SparkMissingError",
    "StaleReceiptError",
    "StoreError",
    "TaskEndedError",
    "TaskFailedError",
    "TimeLimitError",
    "TooLateError",
    "TooManyLimitsError",
    "UnavailableError",
    "UndecipherableError",
    "UnfinishedError",
    "UnknownKeyError",
    "UnknownTaskError",
    "UnsupportedServerError",
    "WrongNamespaceError",
    "concerns_the_call",
    "is_answer",
    "is_of_server",
    "of_one_slot",
    "server_refused",
]

# Tracebacks and pickles show the names that you import.
for _name in __all__:
    globals()[_name].__module__ = __name__
