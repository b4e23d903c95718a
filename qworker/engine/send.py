"""Commands that store messages."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Final

import msgspec

from qworker.durations import Duration
from qworker.engine.arguments import given
from qworker.engine.command import Command, Word
from qworker.engine.message import NEVER_MS
from qworker.engine.options import SendOptions
from qworker.engine.replies import accepted
from qworker.engine.scripts import load_script
from qworker.errors import NotReplicatedError, NotSyncedError
from qworker.wire.envelope import head
from qworker.wire.keys import QueueKeys
from qworker.wire.shards import WHOLE, Shards

__all__ = ["MAX_PER_CALL", "Copies", "NewMessage", "SendCall", "Sent", "confirm", "send"]

#: Messages that one call stores atomically.
MAX_PER_CALL: Final = 1000


#: A unique key is held until its message has ended.
UNTIL_END: Final = str(NEVER_MS)


class NewMessage(msgspec.Struct, frozen=True):
    """A message to store: its id and its envelope from the flags on, see `qworker.wire.envelope.tail`.

    `unique` is a key that keeps other messages out, held as `held` says: see `lua/send/send.lua`. `group`: of flag g.
    """

    id: str
    tail: bytes
    unique: str = ""
    held: str = UNTIL_END
    group: str = ""

    @property
    def size(self) -> int:
        """Bytes of the body as stored."""
        return len(self.tail) - self.tail.find(b"\n") - 1


class Sent(msgspec.Struct, frozen=True):
    """The result of a send: `ids` in the order of the messages.

    If a unique key kept a message out, its id is that of the message that holds the key; `duplicates` are the positions
    of those. `shards`: the shards of the queue as its first shard reports them; other shards report nothing.
    """

    ids: tuple[str, ...]
    duplicates: tuple[int, ...]
    now_ms: int
    repeated: bool
    shards: Shards = WHOLE


class Copies(msgspec.Struct, frozen=True):
    """The wait of a send: until `replicas` have the messages, with `fsync` on their disks and on the server's."""

    replicas: int = 0
    within_ms: int = 0
    fsync: bool = False

    def __bool__(self) -> bool:
        return self.fsync or self.replicas > 0

    @property
    def then(self) -> tuple[Word, ...]:
        """The command that waits, behind the one that stores; empty if there is nothing to wait for."""
        if self.fsync:
            return ("WAITAOF", 1, self.replicas, self.within_ms)
        return ("WAIT", self.replicas, self.within_ms) if self.replicas else ()

    @property
    def blocks_s(self) -> float:
        """For how long it may block the connection."""
        return self.within_ms / 1000 if self else 0.0

    def check(self, queue: str, ids: list[str], reply: Any) -> None:
        """Raise `NotReplicatedError` or `NotSyncedError` if there are fewer; the messages are stored nevertheless."""
        refused = reply if isinstance(reply, Exception) else None
        if self.fsync:
            here, there = (0, 0) if refused else map(int, reply)
            if here < 1 or there < self.replicas:
                raise NotSyncedError(
                    queue, ids, there, self.replicas, self.within_ms, here == 1
                ) from refused
        elif (number := 0 if refused else int(reply)) < self.replicas:
            raise NotReplicatedError(queue, ids, number, self.replicas, self.within_ms) from refused


class SendCall(msgspec.Struct, frozen=True):
    """A send that waits for its lane: `make(lane=, sequence=)` makes the command, for the node of `key`.

    `elsewhere`: raise an error at once if nothing was stored for certain, since another shard can take the messages.
    """

    make: Callable[..., Command[Sent]]
    key: str
    elsewhere: bool = False


def confirm(keys: QueueKeys, replicas: int, within: Duration) -> Command[int]:
    """Wait until `replicas` have everything that the queue's server has stored so far; returns how many have."""
    options = SendOptions(replicas=replicas, within=within)
    # WAIT waits for the last command of its connection; a PING makes that the present.
    return Command(
        None,
        (keys.meta,),
        ("PING",),
        lambda replies: int(replies[1]),
        then=("WAIT", options.replicas, options.within_ms),
        blocks_s=options.within_ms / 1000,
    )


def send(
    keys: QueueKeys,
    messages: Sequence[NewMessage],
    *,
    lane: str,
    sequence: int,
    delay_ms: int | None = None,
    due_ms: int | None = None,
    ttl_ms: int | None = None,
    priority: int = 0,
    maxlen: int | None = None,
    replicas: int = 0,
    within_ms: int = 0,
    fsync: bool = False,
    earlier: Sequence[str] = (),
    now_ms: int | None = None,
) -> Command[Sent]:
    """Store up to `MAX_PER_CALL` messages in one atomic call, once for each (lane, sequence).

    `delay_ms` and `ttl_ms` None take the queue's; `due_ms` is a time by the server's clock, instead of a delay. A queue
    with `maxlen` messages refuses more. With `replicas` it waits up to `within_ms` for that many to have the messages
    (and `earlier`, ids of calls before them), with `fsync` for their disks and the server's; after that it raises
    `NotReplicatedError` or `NotSyncedError`, and all are stored. If nothing was stored, the reply raises
    `QueueFullError`, `QueuePausedError`, `GhostSendError`, `BodyTooLargeError` or `BrokenQueueError`.
    """
    copies = Copies(replicas, within_ms, fsync)

    def decode(reply: Any) -> Sent:
        stored = reply[0] if copies else reply
        fields = None if isinstance(stored, bytes) else accepted(stored, keys.queue, lane, sequence)
        sent = _sent([message.id for message in messages], stored, fields)
        if copies:
            copies.check(keys.queue, [*earlier, *sent.ids], reply[1])
        return sent

    return Command(
        load_script("send"),
        (
            keys.ready[priority],
            keys.delayed,
            keys.wake,
            keys.meta,
            keys.stats,
            keys.producers,
            keys.unique,
            keys.journal,
        ),
        (
            given(now_ms),
            lane,
            sequence,
            given(delay_ms) if due_ms is None else f"@{due_ms}",
            given(ttl_ms),
            priority,
            *_words(messages, maxlen),
        ),
        decode,
        then=copies.then,
        blocks_s=copies.blocks_s,
    )


def _words(messages: Sequence[NewMessage], maxlen: int | None) -> list[Word]:
    """The messages, their unique keys, and limits, as the script takes them."""
    words: list[Word] = [len(messages)]
    uniques: list[Word] = []
    for number, message in enumerate(messages, 1):
        words.append(head(message.id))
        words.append(message.tail)
        if message.unique:
            uniques += (number, message.unique, message.held)
    words.append(len(uniques) // 3 or "")
    words += uniques
    if any(message.group for message in messages):
        words += (given(maxlen or None), 1)
    elif maxlen:
        words.append(maxlen)
    return words


def _sent(ids: list[str], reply: Any, fields: Sequence[Any] | None) -> Sent:
    """The result for messages with `ids`: of a reply that is the time alone, or of its fields."""
    if fields is None:
        return Sent(tuple(ids), (), int(reply), False)
    duplicates = []
    for at in range(4, len(fields) - 1, 2):
        position = int(fields[at]) - 1
        ids[position] = fields[at + 1].decode()
        duplicates.append(position)
    shards = Shards.parse(fields[-1]) if len(fields) % 2 else None
    repeated = fields[0] == b"DUPLICATE"
    return Sent(tuple(ids), tuple(duplicates), int(fields[2]), repeated, shards or WHOLE)
