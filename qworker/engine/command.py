"""The command value, and the steps of a plan that hold commands."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Final, Generic, TypeVar

import hiredis
import msgspec
from msgspec import structs

from qworker.engine.scripts import Script
from qworker.errors import ServerError, UnfinishedError
from qworker.store.nodes import Address
from qworker.store.topology import Key

__all__ = [
    "Brief",
    "Command",
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
#: Plain commands that change nothing.
_READS: Final = frozenset(
    (
        *("EXISTS", "GET", "INFO", "MGET", "PING", "PTTL", "SCAN", "TIME", "TYPE"),
        *("HEXISTS", "HGET", "HGETALL", "HKEYS", "HLEN", "HMGET", "HSCAN", "HVALS"),
        *("LLEN", "LRANGE", "XINFO", "XLEN", "XRANGE", "XREVRANGE"),
        *("ZCARD", "ZCOUNT", "ZRANGE", "ZREVRANGE", "ZSCAN", "ZSCORE"),
    )
)


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

    @property
    def only_reads(self) -> bool:
        """Whether the call changes nothing, so that a lost reply leaves nothing in doubt."""
        if self.then:
            return False
        return self.args[0] in _READS if self.script is None else self.script.only_reads

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

    def at_once(self) -> Command[T]:
        """Return the command as one that fails at once while its keys move, or no node of a Cluster serves them."""
        return structs.replace(self, awaits_move=False)

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
