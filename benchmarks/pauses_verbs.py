"""The verbs whose pauses are measured, each carried out on a queue that was filled."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from benchmarks.stand import NAMESPACE, Stand
from qworker.client.execute.sync import Client
from qworker.client.message import Message
from qworker.client.queue import Queue
from qworker.engine.command import Command
from qworker.engine.reap import sweep
from qworker.engine.scripts import Script
from qworker.wire.keys import QueueKeys

__all__ = ["VERBS", "Load"]

#: How often what leaves the queue as it was is done with the large bodies, of which there are few.
_PASSES = 4
_SAMPLES = 20
_BATCH, _LEASE = 1000, 100
_SWEPT = 100
_COPY = Script(
    "script that copies one",
    b"return redis.call('RPUSH', KEYS[2], redis.call('LINDEX', KEYS[1], 0))",
)


@dataclass(frozen=True, slots=True)
class Load:
    """A queue that was filled with messages of these ids, and is worked on by batches."""

    stand: Stand
    client: Client
    queue: Queue
    ids: list[str]
    large: bool

    @property
    def passes(self) -> int:
        """How often what leaves the queue as it was is done."""
        return _PASSES if self.large else 1

    def received(self, share: float = 1.0) -> Iterator[list[Message]]:
        """Take a share of the large bodies one by one, or some batches of the small ones."""
        batch = 1 if self.large else min(_BATCH, len(self.ids) // 10)
        batches = len(self.ids) if self.large else min(_SAMPLES, len(self.ids) // batch // 2)
        for _ in range(max(1, round(share * batches))):
            yield self.queue.receive(batch)

    def samples(self, shift: int = 0) -> list[str]:
        """Choose ids from all over the queue, near both ends and the middle among them."""
        most = min(_SAMPLES, len(self.ids))
        return [self.ids[at * (len(self.ids) - 1) // (most - 1) - shift] for at in range(most)]


def _floor(load: Load) -> None:
    """Read, write and move one with plain commands, copy it by a script that does nothing else."""
    ready, middle = load.queue.keys.ready[0], len(load.ids) // 2
    last = middle if load.large else middle + 499

    def call(*words: Any, script: Script | None = None) -> Any:
        keys = (ready, "copied") if script else words[1:2]
        return load.client.execute(Command(script, keys, words, lambda reply: reply))

    for score in range(_SAMPLES):
        [item, *_] = call("LRANGE", ready, middle, last)
        call("SET", "plain", item)
        call("RPUSH", "plain list", item)
        call("LMOVE", "plain list", "moved", "LEFT", "RIGHT")
        call("LPOP", "moved")
        call("ZADD", "plain set", score, b"%d %s" % (score, item))
        call(script=_COPY)
    load.stand.redis.unlink("plain", "plain set", "copied")


def _inspect(load: Load) -> None:
    for _ in range(_SAMPLES):
        load.queue.inspect()
        load.queue.stat()


def _peek(load: Load) -> None:
    for count in (10, -10, min(_BATCH, len(load.ids))):
        load.queue.peek(count)


def _show(load: Load) -> None:
    for message_id in (load.ids[0], load.ids[len(load.ids) // 2], load.ids[-1], "not-there"):
        load.queue.show(message_id)


def _hold(load: Load) -> None:
    """Hold messages from all over the queue, and enqueue them again."""
    for _ in range(load.passes):
        load.queue.enqueue(*load.queue.hold(*load.samples()))


def _sweep(load: Load) -> None:
    """Look at many queues that have a message at their head, as a daemon does."""
    redis = load.stand.redis
    others = [QueueKeys(NAMESPACE, f"other-{number}") for number in range(_SWEPT)]
    head: Any = redis.lindex(load.queue.keys.ready[0], 0)
    for keys in others[: len(load.ids)]:
        redis.rpush(keys.ready[0], head)
    for _ in range(_SAMPLES):
        load.client.execute(sweep([load.queue.keys, *others], 1000))
    redis.unlink(*(keys.ready[0] for keys in others))


def _settled(verb: str, share: float = 1.0, *, undone: bool = True) -> Callable[[Load], None]:
    """Receive messages, and say of all of them what they came to."""

    def run(load: Load) -> None:
        for _ in range(load.passes if undone else 1):
            for batch in [*load.received(share)]:
                getattr(load.queue, verb)(*batch)

    return run


def _reap(load: Load) -> None:
    """Let leases of one message and of many run out, and take them back."""
    redis, keys = load.stand.redis, load.queue.keys
    for count in (1, _LEASE) * load.passes:
        for _ in range(min(5 * _SAMPLES, len(load.ids) // count or 1)):
            load.queue.receive(count)
        leases: Any = redis.zrange(keys.unacked, 0, -1)
        redis.zadd(keys.unacked, dict.fromkeys(leases, 1), xx=True)
        while redis.zcard(keys.unacked):
            load.queue.reap()


def _promote(load: Load) -> None:
    """Delay messages, let them all be due, and promote them."""
    redis, keys = load.stand.redis, load.queue.keys
    for _ in range(load.passes):
        for batch in [*load.received()]:
            load.queue.nack(*batch, delay="1h")
        waiting: Any = redis.zrange(keys.delayed, 0, -1)
        redis.zadd(keys.delayed, dict.fromkeys(waiting, 1), xx=True)
        while redis.zcard(keys.delayed):
            load.queue.reap()


def _redrive(load: Load) -> None:
    for _ in range(load.passes):
        for batch in [*load.received()]:
            load.queue.bury(*batch)
        load.queue.redrive(everything=True)


def _dead(load: Load) -> None:
    """Look at dead letters, as does who chooses some of them."""
    load.queue.dead(_BATCH)
    load.queue.peek(_BATCH, state="dead")
    load.queue.tally_dead()


def _drop(load: Load) -> None:
    load.queue.drop_dead(everything=True)


def _delete(load: Load) -> None:
    for message_id in load.samples(shift=1)[::4]:
        load.queue.delete(message_id)


def _purge(load: Load) -> None:
    for batch in [*load.received(0.2)]:
        load.queue.bury(*batch)
    for batch in [*load.received(0.2)]:
        load.queue.nack(*batch, delay="1h")
    for state in ("ready", "delayed", "dead"):
        load.queue.purge(state)


VERBS: dict[str, Callable[[Load], None]] = {
    "floor": _floor,
    "inspect": _inspect,
    "peek": _peek,
    "show": _show,
    "hold": _hold,
    "sweep": _sweep,
    "release": _settled("release"),
    "nack": _settled("nack"),
    "reap": _reap,
    "promote": _promote,
    "redrive": _redrive,
    "bury": _settled("bury", 0.2, undone=False),
    "dead": _dead,
    "drop": _drop,
    "ack": _settled("ack", 0.2, undone=False),
    "delete": _delete,
    "purge": _purge,
}
