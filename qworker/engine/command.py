"""The command value, and its attempts."""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Sequence
from typing import Any, Final, Generic, TypeVar

import hiredis
import msgspec
from msgspec import structs

from qworker.engine.scripts import Script
from qworker.errors import (
    AccessDeniedError,
    BusyError,
    ClusterMovingError,
    InDoubtError,
    LoadingError,
    NotReplicatedError,
    OutOfMemoryError,
    QworkerError,
    ReadOnlyError,
    RefusedError,
    RetryRule,
    ScriptsNotLoadedError,
    ServerError,
    UnavailableError,
    UnfinishedError,
)
from qworker.store.nodes import Address
from qworker.store.topology import Key, RedirectedError

__all__ = [
    "GIVE_UP_S",
    "LEAST_S",
    "Attempt",
    "Brief",
    "Command",
    "Patience",
    "Pause",
    "PerQueue",
    "Soon",
    "Together",
    "Word",
]

T = TypeVar("T")
Word = bytes | str | int
#: hiredis declares tuples of one word only.
_pack: Final[Callable[[tuple[Word, ...]], bytes]] = hiredis.pack_command  # type: ignore[assignment]


#: A server checks several times a second which blocked calls have timed out.
_UNBLOCKING_S: Final = 0.2
#: Plain commands without a key, and those with the key as second argument.
_KEYLESS: Final = frozenset(
    ("CLUSTER", "CONFIG", "ECHO", "HELLO", "INFO", "KEYS", "PING", "SCAN", "SCRIPT", "TIME", "WAIT")
)
_KEY_SECOND: Final = frozenset(("MEMORY", "OBJECT", "XGROUP", "XINFO"))


class PerQueue(msgspec.Struct, Generic[T], frozen=True):
    """A command over several queues as commands of one queue each, for a Cluster.

    `merge` makes one result of theirs. `unserved` makes the result of a command, by its index, whose server does not
    serve now; without it all fail together.
    """

    commands: Sequence[Command[Any]]
    merge: Callable[[list[Any]], T]
    unserved: Callable[[int, ServerError], Any] | None = None


class Command(msgspec.Struct, Generic[T], frozen=True):
    """One call of a script (or, with `script` None, of a plain Redis command).

    `decode` turns the reply into the result, or raises a `RefusedError`. Every command may be repeated if its reply was
    lost: scripts are idempotent by lane and number, lease id or receipt. `resume_at` is the index of the argument that
    a repetition sets to 1 (a receive that must not create its lease twice); `decode_resumed` reads its reply. `then` is
    a plain command that follows in the same trip; `decode` gets both replies, the second may be the server's error. In
    a Cluster a call goes to the node of its first key, or to `node`; `per_queue` splits a call with keys of several
    queues. `on_full` is asked of a server that refuses the command for want of memory. `settled` makes the command that
    only repeats the settles of this one. `blocks_s`: seconds for which the server may block the call. `awaits_move`:
    while its keys move to another node of a Cluster, it is retried until they are there.
    """

    script: Script | None
    keys: tuple[str, ...]
    args: tuple[Word, ...]
    decode: Callable[[Any], T]
    resume_at: int | None = None
    decode_resumed: Callable[[Any], T] | None = None
    then: tuple[Word, ...] = ()
    node: Address | None = None
    per_queue: Callable[[], PerQueue[T]] | None = None
    settled: Callable[[], Command[Any]] | None = None
    on_full: Command[T] | None = None
    blocks_s: float = 0.0
    awaits_move: bool = True

    def answered_within(self, seconds: float) -> float:
        """Return the timeout of a reply that takes up to `seconds` after the server stops blocking it."""
        return seconds + self.blocks_s + (_UNBLOCKING_S if self.blocks_s else 0.0)

    @property
    def key(self) -> Key | None:
        """The key that decides the node in a Cluster; None if any node will do."""
        if self.keys:
            return self.keys[0]
        if self.script is not None or self.args[0] in _KEYLESS:
            return None
        at = 2 if self.args[0] in _KEY_SECOND else 1
        key = self.args[at] if len(self.args) > at else None
        return None if isinstance(key, int) else key

    def words(self) -> tuple[Word, ...]:
        """Return the command as it goes over the wire."""
        if self.script is None:
            return self.args
        return ("EVALSHA", self.script.sha, len(self.keys), *self.keys, *self.args)

    def packed(self) -> bytes:
        """Encode the command, followed by `then`, as bytes of the protocol. redis-py takes twice as long."""
        packed: bytes = _pack(self.words())
        return packed + _pack(self.then) if self.then else packed

    def name_script(self, error: ServerError) -> None:
        """Set the script's name in an error of it: not every server reports the name."""
        if isinstance(error, UnfinishedError) and self.script is not None:
            error.script = self.script.name

    def repeated(self) -> Command[T]:
        """Return the command to send after this one's reply was lost."""
        if self.resume_at is None:
            return self
        args = (*self.args[: self.resume_at], 1, *self.args[self.resume_at + 1 :])
        decode = self.decode_resumed or self.decode
        return structs.replace(self, args=args, resume_at=None, decode=decode)


class Pause(msgspec.Struct, frozen=True):
    """A step of a plan that only waits."""

    seconds: float


class Together(msgspec.Struct, frozen=True):
    """A step of a plan: commands of one queue each that may be repeated, in one trip per server.

    Its result is a list with the result or the error of each.
    """

    commands: Sequence[Command[Any]]


class Soon(msgspec.Struct, Generic[T], frozen=True):
    """A step of a plan: a command that must not hold up others if its server does not answer.

    It is given up after `within_s` seconds. A server that failed such a call is left alone for a while: the step then
    raises `LeftAloneError` at once, unless the failure was before `since` (by `time.monotonic`).
    """

    command: Command[T]
    within_s: float
    since: float = float("-inf")


class Brief(msgspec.Struct, Generic[T], frozen=True):
    """A step of a plan that may fail: it is given up after a fraction of a second, and its result is None then.

    `index_write`: after a failure none is tried for a minute or more, see `IndexWrites`.
    """

    command: Command[T]
    index_write: bool = False


#: Errors that pass by themselves; others are raised at once.
_TRANSIENT: Final = (
    UnavailableError,
    InDoubtError,
    LoadingError,
    BusyError,
    ReadOnlyError,
    ClusterMovingError,
)
#: Errors of a script that cannot be called.
_CANNOT_CALL: Final = (AccessDeniedError, ScriptsNotLoadedError)
#: Seconds after which a failing call is given up.
GIVE_UP_S: Final = 60.0
_FIRST_PAUSE_S: Final = 0.01
_LONGEST_PAUSE_S: Final = 0.5
#: The least seconds that a server gets to answer.
LEAST_S: Final = 0.05
#: Redirections that are followed at once; after more of them the nodes disagree.
_AT_ONCE: Final = 5


class Patience(msgspec.Struct, frozen=True):
    """How long a call is tried: attempts begin for `give_up_s` seconds.

    `within_s`: the longest wait for each reply, connecting included; None for that of the connection. `ends_waits`: no
    wait lasts longer than the rest of `give_up_s`, either.
    """

    give_up_s: float
    within_s: float | None = None
    ends_waits: bool = True

    def waits_s(self, usual_s: float) -> float | None:
        """Return how long a trip to several servers waits for replies; None for `usual_s`."""
        if not self.ends_waits:
            return self.within_s
        return max(self.give_up_s, LEAST_S) if 0 < self.give_up_s < usual_s else None

    def is_over(self, waited_s: float) -> bool:
        """Whether a server gets no other attempt after a wait of this long."""
        return waited_s >= self.give_up_s

    def after(self, waited_s: float) -> Patience:
        """Return the seconds that are left."""
        if not waited_s:
            return self
        left_s = max(0.0, self.give_up_s - waited_s)
        return Patience(left_s, self.within_s, ends_waits=self.ends_waits)


class Attempt(Generic[T]):
    """The attempts at one command until it succeeds, is refused, or `give_up_s` seconds are over."""

    __slots__ = (
        "_deadline",
        "_doubt",
        "_elsewhere",
        "_full",
        "_give_up_s",
        "_pause_s",
        "_redirected",
        "command",
        "detour",
    )

    def __init__(self, command: Command[T], give_up_s: float, *, elsewhere: bool = False) -> None:
        """`elsewhere`: the caller has an alternative, so definite errors are raised at once."""
        self.command = command
        self._give_up_s = give_up_s
        self._elsewhere = elsewhere
        self._deadline = time.monotonic() + give_up_s
        self._doubt: InDoubtError | None = None
        self._full: OutOfMemoryError | None = None
        self._pause_s = _FIRST_PAUSE_S
        self._redirected = 0
        #: The node to ask the next time, and only then, while the slot moves there.
        self.detour: Address | None = None

    def within_s(self, usual_s: float) -> float | None:
        """Return the timeout of each reply of the next attempt; None for the usual one, also for a single attempt."""
        if not self._give_up_s:
            return None
        left_s = self._deadline - time.monotonic()
        return None if left_s >= usual_s else max(left_s, LEAST_S)

    def failed(self, error: QworkerError) -> float:
        """Return the seconds to wait before the next attempt, or raise the error for the caller.

        After doubt a refusal proves nothing (an earlier attempt may have run), so the doubt is raised.
        """
        if isinstance(error, NotReplicatedError):
            raise error  # The messages are stored, by this attempt or an earlier one.
        if isinstance(error, UnfinishedError):
            self.command.name_script(error)
            raise error  # A repetition would do the first part twice.
        self.detour = None
        if isinstance(error, OutOfMemoryError) and self.command.on_full is not None:
            self._full, self.command = error, self.command.on_full
            return 0.0
        if self._full is not None and isinstance(error, _CANNOT_CALL):
            raise self._full from error  # A server that has not got the script yet, or an ACL of an older version.
        if isinstance(error, RedirectedError):
            self.detour = error.address if error.asking else None
            self._redirected += 1
            if self._redirected <= _AT_ONCE:
                return 0.0
        elif isinstance(error, ClusterMovingError) and not self.command.awaits_move:
            raise error
        if isinstance(error, InDoubtError):
            self._doubt = error
            self.command = self.command.repeated()
        if isinstance(error, RefusedError):
            if self._doubt is not None:
                raise self._doubt from error
            raise error
        if self._elsewhere and self._doubt is None and not isinstance(error, RedirectedError):
            raise error
        transient = isinstance(error, _TRANSIENT) or (
            self._doubt is not None
            and isinstance(error, ServerError)
            and error.retry is not RetryRule.NEVER
        )
        if not transient or time.monotonic() + self._pause_s > self._deadline:
            if self._doubt is not None and self._doubt is not error:
                raise self._doubt from error
            if isinstance(error, ClusterMovingError):
                raise UnavailableError(f"no node took the call in time: {error}") from error
            raise error
        pause_s = self._pause_s * random.uniform(0.5, 1.0)  # noqa: S311 - spreading, not secrecy
        self._pause_s = min(self._pause_s * 2, _LONGEST_PAUSE_S)
        return pause_s
