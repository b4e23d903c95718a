"""Commands that store messages."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Final

import msgspec

from qworker.durations import Duration
from qworker.engine.arguments import given
from qworker.engine.command import Command, Word
from qworker.engine.options import SendOptions
from qworker.engine.replies import accepted
from qworker.engine.scripts import load_script
from qworker.errors import NotReplicatedError, NotSyncedError
from qworker.wire.envelope import head
from qworker.wire.keys import QueueKeys
from qworker.wire.shards import WHOLE, Shards

__all__ = ["MAX_PER_CALL", "NewMessage", "SendCall", "Sent", "confirm", "send"]

#: Messages that one call stores atomically.
MAX_PER_CALL: Final = 1000


class NewMessage(msgspec.Struct, frozen=True):
    """A message to store: its id and its envelope from the flags on, see `qworker.wire.envelope.tail`.

    `unique` is a key that keeps other messages out while this one lives, for `unique_ms` at most.
    """

    id: str
    tail: bytes
    unique: str = ""
    unique_ms: int = 0

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


class SendCall(msgspec.Struct, frozen=True):
    """A send that waits for its lane: `make(lane=, sequence=)` makes the command.

    `elsewhere`: raise an error at once if nothing was stored for certain, since another shard can take the messages.
    """

    make: Callable[..., Command[Sent]]
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

    `delay_ms` and `ttl_ms` None take the queue's; `due_ms` is a time by the server's clock, instead of a delay. The
    send is refused if the queue would hold more than `maxlen`. With `replicas` it waits up to `within_ms` until that
    many have the messages (and `earlier`, ids of calls before it), or raises `NotReplicatedError`: all are stored. With
    `fsync` it waits for the disks of the server and of that many replicas, or raises `NotSyncedError`. The reply raises
    `QueueFullError`, `QueuePausedError`, `GhostSendError`, `BodyTooLargeError` or `BrokenQueueError` if nothing was
    stored.
    """
    args: list[Word] = [
        given(now_ms),
        lane,
        sequence,
        given(delay_ms) if due_ms is None else f"@{due_ms}",
        given(ttl_ms),
        priority,
        len(messages),
    ]
    uniques: list[Word] = []
    for number, message in enumerate(messages, 1):
        args.append(head(message.id))
        args.append(message.tail)
        if message.unique:
            uniques += (number, message.unique, message.unique_ms)
    args.append(len(uniques) // 3)
    args += uniques
    if maxlen:
        args.append(maxlen)

    def decode(reply: Any) -> Sent:
        if not (replicas or fsync):
            return decode_sent(reply)
        sent, confirmed = decode_sent(reply[0]), reply[1]
        refused = confirmed if isinstance(confirmed, Exception) else None
        ids = [*earlier, *sent.ids]
        if fsync:
            here, there = (0, 0) if refused else map(int, confirmed)
            if here < 1 or there < replicas:
                raise NotSyncedError(
                    keys.queue, ids, there, replicas, within_ms, here == 1
                ) from refused
        elif (number := 0 if refused else int(confirmed)) < replicas:
            raise NotReplicatedError(keys.queue, ids, number, replicas, within_ms) from refused
        return sent

    def decode_sent(reply: Any) -> Sent:
        fields = accepted(reply, keys.queue, lane, sequence)
        if len(fields) == 4:
            plain = tuple([message.id for message in messages])
            return Sent(plain, (), int(fields[2]), fields[0] == b"DUPLICATE")
        ids = [message.id for message in messages]
        duplicates = []
        for at in range(4, len(fields) - 1, 2):
            position = int(fields[at]) - 1
            ids[position] = fields[at + 1].decode()
            duplicates.append(position)
        shards = Shards.parse(fields[-1]) if len(fields) % 2 else None
        repeated = fields[0] == b"DUPLICATE"
        return Sent(tuple(ids), tuple(duplicates), int(fields[2]), repeated, shards or WHOLE)

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
        tuple(args),
        decode,
        then=_waits(replicas, within_ms, fsync=fsync),
        blocks_s=within_ms / 1000 if replicas or fsync else 0.0,
    )


def _waits(replicas: int, within_ms: int, *, fsync: bool) -> tuple[Word, ...]:
    if fsync:
        return ("WAITAOF", 1, replicas, within_ms)
    return ("WAIT", replicas, within_ms) if replicas else ()
