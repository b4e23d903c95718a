"""pauses: how long one call keeps other clients waiting, in a queue of a million messages and with large bodies.

The server counts the microseconds of each command, those of scripts in full, and is asked after every call. What the
socket takes is not among them, but the time in which other processes had its core is. The CPU time of the server's
thread has it the other way round. The smaller of the two counts: neither is less than what others wait on an idle
machine. A prober, which calls meanwhile, waits for all of it.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any

from benchmarks.figures import Figure, at_most, measured, ratio
from benchmarks.prober import probing
from benchmarks.rounds import interleave
from benchmarks.spread import quantile
from benchmarks.stand import NAMESPACE, PAD, Plan, Stand
from qworker.client.execute.sync import Client
from qworker.client.message import Message
from qworker.client.queue import Queue
from qworker.engine.command import Command
from qworker.engine.reap import sweep
from qworker.engine.scripts import Script
from qworker.wire.keys import QueueKeys

__all__ = ["pauses"]

_SMALL = "small"
#: Sizes of large bodies, in bytes.
_LARGE = {"1 MiB": 2**20, "4 MiB": 4 * 2**20}
_LARGEST, _BODIES = max(_LARGE.values()), 32
#: How often what leaves the queue as it was is done with the large bodies, of which there are few.
_PASSES = 4
_SPOTS = 20
_BATCH, _LEASE = 1000, 100
_SWEPT = 100
#: Plain commands that are reported: those that read or write messages.
_PLAIN = (
    "ZADD",
    "HGETALL",
    "LMOVE",
    "LPOP",
    "LRANGE",
    "RPUSH",
    "SET",
    "XRANGE",
    "XREVRANGE",
    "ZRANGE",
    "ZRANGEBYSCORE",
)
_FLOOR = "floor: script that copies one"
_COPY = Script(
    "script that copies one",
    b"return redis.call('RPUSH', KEYS[2], redis.call('LINDEX', KEYS[1], 0))",
)
_MEASURES = {"p50": None, "p99": at_most(5), "max": at_most(20)}


class _Watch(Client):
    """A client that notes how many milliseconds each of its calls took the server, by verb, and script or command."""

    def __init__(self, stand: Stand) -> None:
        super().__init__(stand.factory)
        self.verb = ""
        self.took_ms: dict[tuple[str, str], list[float]] = {}
        self._redis = stand.redis
        self._thread_s = stand.thread_s
        self._before = self._read()

    def _attempt(self, lane: Any, command: Command[Any], *args: Any, **options: Any) -> Any:
        began_s = self._thread_s()
        result = super()._attempt(lane, command, *args, **options)
        name = command.script.name if command.script else str(command.args[0])
        called, after = "evalsha" if command.script else name.lower(), self._read()
        if self.verb and (command.script or name in _PLAIN):
            took_ms = (after[called] - self._before.get(called, 0)) / 1000
            # The thread sleeps again: it has answered what was asked after the call.
            took_ms = min(took_ms, 1000 * (self._thread_s() - began_s))
            self.took_ms.setdefault((self.verb, name), []).append(took_ms)
        self._before = after
        return result

    def _read(self) -> dict[str, int]:
        """Read how many microseconds each command has taken so far."""
        stats = self._redis.info("commandstats")
        return {name.removeprefix("cmdstat_"): stat["usec"] for name, stat in stats.items()}


@dataclass(frozen=True, slots=True)
class _Load:
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
        batches = len(self.ids) if self.large else min(_SPOTS, len(self.ids) // batch // 2)
        for _ in range(max(1, round(share * batches))):
            yield self.queue.receive(batch)

    def spots(self, shift: int = 0) -> list[str]:
        """Choose ids from all over the queue, near both ends and the middle among them."""
        most = min(_SPOTS, len(self.ids))
        return [self.ids[at * (len(self.ids) - 1) // (most - 1) - shift] for at in range(most)]


def pauses(plan: Plan) -> list[Figure]:
    """Measure how long the server is busy with each script and command of each verb."""
    large = min(_BODIES, max(8, plan.messages // 100))
    contenders = {_SMALL: lambda: _measure(plan.messages)}
    contenders |= {name: partial(_measure, large, _LARGE[name]) for name in _LARGE}
    samples = interleave(contenders, plan.rounds, plan.say)
    figures = []
    for size in contenders:
        called = f"{plan.messages:,} small" if size == _SMALL else size
        for name in samples.measures(size):
            call, _, measure = name.rpartition(": ")
            of_floor = call.startswith("floor: ")
            goal = None if of_floor else _MEASURES.get(measure)
            took = samples.of(size, name)
            figures.append(measured("pauses", f"{called}, {name}", took, "ms", goal))
            if size in _LARGE and measure == "p50" and not of_floor:
                least = samples.of(size, f"{_FLOOR}: p50")
                figures.append(ratio("pauses", f"{called}, {call}: to the copy", took, least, None))
    return figures


def _measure(messages: int, body_bytes: int = 0) -> dict[str, float]:
    """Measure with small messages, or with bodies of this size."""
    with Stand() as stand:
        watch = _Watch(stand)
        queue = Queue(watch, NAMESPACE, "work")
        queue.create(visibility="1h", maxsize=2 * _LARGEST, max_receives=1000)
        watch.verb = "send"
        load = _Load(stand, watch, queue, _fill(queue, messages, body_bytes), body_bytes > 0)
        with probing(stand) as probes:
            begun = time.monotonic()
            for verb, run in _VERBS.items():
                watch.verb = verb
                run(load)
            ended = time.monotonic()
        watch.close()
        left = stand.queue().inspect()
        if left.ready + left.suspect + left.delayed + left.leases + left.dead:
            raise RuntimeError(f"{left} of {messages} messages")
    found = {}
    for (verb, name), took_ms in watch.took_ms.items():
        found[f"{verb}: {name}: p50"] = quantile(took_ms, 0.5)
        found[f"{verb}: {name}: p99"] = quantile(took_ms, 0.99)
        found[f"{verb}: {name}: max"] = max(took_ms)
    found["another client waited at most"] = probes.longest_ms(begun, ended)
    return found


def _fill(queue: Queue, messages: int, body_bytes: int) -> list[str]:
    if body_bytes:
        # Text, as what is sent often is: who searches it for a space stops at every word.
        words = b'{"text":"' + b"a word " * (body_bytes // 7) + b'"}'
        return [queue.send(words) for _ in range(messages)]
    return queue.send_all({"number": number, "pad": PAD} for number in range(messages))


def _floor(load: _Load) -> None:
    """Read, write and move one with plain commands, copy it by a script that does nothing else."""
    ready, middle = load.queue.keys.ready[0], len(load.ids) // 2
    last = middle if load.large else middle + 499

    def call(*words: Any, script: Script | None = None) -> Any:
        keys = (ready, "copied") if script else words[1:2]
        return load.client.execute(Command(script, keys, words, lambda reply: reply))

    for score in range(_SPOTS):
        [item, *_] = call("LRANGE", ready, middle, last)
        call("SET", "plain", item)
        call("RPUSH", "plain list", item)
        call("LMOVE", "plain list", "moved", "LEFT", "RIGHT")
        call("LPOP", "moved")
        call("ZADD", "plain set", score, b"%d %s" % (score, item))
        call(script=_COPY)
    load.stand.redis.unlink("plain", "plain set", "copied")


def _inspect(load: _Load) -> None:
    for _ in range(_SPOTS):
        load.queue.inspect()
        load.queue.stat()


def _peek(load: _Load) -> None:
    for count in (10, -10, min(_BATCH, len(load.ids))):
        load.queue.peek(count)


def _show(load: _Load) -> None:
    for message_id in (load.ids[0], load.ids[len(load.ids) // 2], load.ids[-1], "not-there"):
        load.queue.show(message_id)


def _hold(load: _Load) -> None:
    """Hold messages from all over the queue, and enqueue them again."""
    for _ in range(load.passes):
        load.queue.enqueue(*load.queue.hold(*load.spots()))


def _sweep(load: _Load) -> None:
    """Look at many queues that have a message at their head, as a daemon does."""
    redis = load.stand.redis
    others = [QueueKeys(NAMESPACE, f"other-{number}") for number in range(_SWEPT)]
    head: Any = redis.lindex(load.queue.keys.ready[0], 0)
    for keys in others[: len(load.ids)]:
        redis.rpush(keys.ready[0], head)
    for _ in range(_SPOTS):
        load.client.execute(sweep([load.queue.keys, *others], 1000))
    redis.unlink(*(keys.ready[0] for keys in others))


def _settled(verb: str, share: float = 1.0, *, undone: bool = True) -> Callable[[_Load], None]:
    """Receive messages, and say of all of them what they came to."""

    def run(load: _Load) -> None:
        for _ in range(load.passes if undone else 1):
            for batch in [*load.received(share)]:
                getattr(load.queue, verb)(*batch)

    return run


def _reap(load: _Load) -> None:
    """Let leases of one message and of many run out, and take them back."""
    redis, keys = load.stand.redis, load.queue.keys
    for count in (1, _LEASE) * load.passes:
        for _ in range(min(5 * _SPOTS, len(load.ids) // count or 1)):
            load.queue.receive(count)
        leases: Any = redis.zrange(keys.unacked, 0, -1)
        redis.zadd(keys.unacked, dict.fromkeys(leases, 1), xx=True)
        while redis.zcard(keys.unacked):
            load.queue.reap()


def _promote(load: _Load) -> None:
    """Delay messages, let them all be due, and promote them."""
    redis, keys = load.stand.redis, load.queue.keys
    for _ in range(load.passes):
        for batch in [*load.received()]:
            load.queue.nack(*batch, delay="1h")
        waiting: Any = redis.zrange(keys.delayed, 0, -1)
        redis.zadd(keys.delayed, dict.fromkeys(waiting, 1), xx=True)
        while redis.zcard(keys.delayed):
            load.queue.reap()


def _redrive(load: _Load) -> None:
    for _ in range(load.passes):
        for batch in [*load.received()]:
            load.queue.bury(*batch)
        load.queue.redrive(everything=True)


def _dead(load: _Load) -> None:
    """Look at dead letters, as does who chooses some of them."""
    load.queue.dead(_BATCH)
    load.queue.peek(_BATCH, state="dead")
    load.queue.tally_dead()


def _drop(load: _Load) -> None:
    load.queue.drop_dead(everything=True)


def _delete(load: _Load) -> None:
    for message_id in load.spots(shift=1)[::4]:
        load.queue.delete(message_id)


def _purge(load: _Load) -> None:
    for batch in [*load.received(0.2)]:
        load.queue.bury(*batch)
    for batch in [*load.received(0.2)]:
        load.queue.nack(*batch, delay="1h")
    for state in ("ready", "delayed", "dead"):
        load.queue.purge(state)


_VERBS: dict[str, Callable[[_Load], None]] = {
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
