"""What may stand in the keys of a queue that qworker did not write, or that only a part is left of."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator
from typing import Any

import pytest
from redis import Redis

from qworker import QWorker, Retry
from qworker.client.queue import Queue
from qworker.daemon.reaper import Reaper
from qworker.engine.extend import extend
from qworker.engine.options import QueueAttributes
from qworker.errors import BrokenQueueError
from qworker.fsck.check import check
from qworker.fsck.damage import Damage, DamageKind
from qworker.wire.envelope import tail
from qworker.wire.keyring import NO_KEYS, Keyring
from qworker.wire.keys import QueueKeys
from tests.consumer.driving import drain, history_of, make_due, redis_of
from tests.lua.drive import NOW, Drive, own

#: Part → its type, of all that a send, a receive or its settle may write.
PARTS = {
    **dict.fromkeys(["ready", "ready:5", "suspect"], "list"),
    **dict.fromkeys(["delayed", "unacked", "cancelled"], "zset"),
    **dict.fromkeys(["meta", "stats", "unique"], "hash"),
    **dict.fromkeys(["dead", "journal"], "stream"),
}
#: Part → the send that needs it, where a receive of messages that wait in order does not.
SENDS: dict[str, dict[str, Any]] = {"delayed": {"delay": "1h"}, "unique": {"unique": "k"}}
#: Type → the words that make a key of it.
MADE: dict[str, tuple[str, ...]] = {
    "string": ("SET", "x"),
    "list": ("RPUSH", "x"),
    "set": ("SADD", "x"),
    "zset": ("ZADD", "5", "x"),
    "hash": ("HSET", "f", "x"),
    "stream": ("XADD", "*", "f", "x"),
}
#: What no number is, or none that can be meant.
NONSENSE = ["abc", "", "-1", "nan", "inf", "1e400", str(2**63), "9" * 400, "٥", "1 2"]


@pytest.fixture
def redis(app: QWorker) -> Iterator[Redis]:
    """A plain client to the server of `app`."""
    with redis_of(app) as client:
        yield client


@pytest.fixture
def queue(app: QWorker) -> Queue:
    """The queue of the tasks of `app`."""
    return app.queue("default")


@pytest.fixture
def handled(app: QWorker) -> list[Any]:
    """What the task `note` of `app` was called with."""
    calls: list[Any] = []
    app.task(name="note")(calls.append)
    return calls


@pytest.fixture
def drive(store_url: str, namespace: str, queue_name: str) -> Iterator[Drive]:
    """A queue at given times."""
    drive = Drive(store_url, namespace, queue_name)
    yield drive
    drive.close()


def put(app: QWorker, *items: bytes) -> None:
    """Push items to ready, as any program may."""
    with redis_of(app) as redis:
        redis.rpush(QueueKeys(app.namespace, "default").ready[0], *items)


def taken(app: QWorker) -> bytes:
    """Take the first item of ready, byte for byte."""
    with redis_of(app) as redis:
        item = redis.lpop(QueueKeys(app.namespace, "default").ready[0])
        assert isinstance(item, bytes)
        return item


def findings(app: QWorker, *, repair: bool = False) -> list[DamageKind]:
    """What fsck finds in the namespace of `app`."""
    results = check(app.client, app.namespace, repair=repair)
    return [result.kind for result in results if isinstance(result, Damage)]


# -- keys of another type ------------------------------------------------------------------------


@pytest.mark.bad_input("data found: key of another type")
@pytest.mark.parametrize("part", PARTS)
def test_a_key_of_any_other_type_stops_its_queue_alone(
    app: QWorker, redis: Redis, part: str
) -> None:
    """Nothing is written by what needs the key, and it is named; the neighbour works, and later the queue."""
    queue, neighbour = app.queue("orders"), app.queue("healthy")
    queue.configure(QueueAttributes(journal="all"))
    queue.send_many([b"1", b"2", b"3"])
    queue.send({"n": 4}, priority=5)
    queue.receive(1)
    key = QueueKeys(app.namespace, "orders").ready[0].removesuffix("ready") + part
    reaper = Reaper(app.client, app.namespace)
    kept = redis.exists(key) and redis.rename(key, key + "-kept")
    for kind, (verb, *words) in MADE.items():
        if kind == PARTS[part]:
            continue
        redis.execute_command(verb, key, *words)
        before = _content(redis, app, "orders")
        with pytest.raises(BrokenQueueError) as caught:
            queue.send({"n": 5}, **SENDS[part]) if part in SENDS else queue.receive(1)
        assert (caught.value.key, caught.value.found) == (key, kind)
        reaper.tick()
        neighbour.send({"n": 1})
        assert len(neighbour.receive(1)) == 1
        assert _content(redis, app, "orders") == before
        redis.delete(key)
    if kept:
        redis.rename(key + "-kept", key)
    reaper.close()
    assert len(queue.receive(9)) == 3


@pytest.mark.bad_input("data found: key of another type")
@pytest.mark.parametrize("kind", [kind for kind in MADE if kind != "list"])
def test_a_doorbell_of_any_other_type_stops_no_message(
    app: QWorker, redis: Redis, kind: str
) -> None:
    """A producer goes on and what waits is received: their scripts do not need it. `inspect` names it for `doctor`."""
    queue = app.queue("orders")
    queue.configure(QueueAttributes(journal="all"))
    queue.send({"n": 1})
    key = QueueKeys(app.namespace, "orders").wake
    redis.delete(key)
    verb, *words = MADE[kind]
    redis.execute_command(verb, key, *words)
    before = redis.dump(key)
    queue.send({"n": 2})
    assert [message.body for message in (*queue.receive(1), *queue.receive(1))] == [
        b'{"n":1}',
        b'{"n":2}',
    ]
    assert redis.dump(key) == before
    with pytest.raises(BrokenQueueError) as caught:
        queue.inspect()
    assert (caught.value.key, caught.value.found) == (key, kind)


@pytest.mark.bad_input("data found: key of another type")
@pytest.mark.parametrize("verb", ["ack", "nack", "release", "bury"])
def test_a_doorbell_of_another_type_stops_no_outcome(app: QWorker, redis: Redis, verb: str) -> None:
    """What a handler has done counts, with a journal as well; what comes back waits for the next look."""
    queue = app.queue("orders")
    queue.configure(QueueAttributes(journal="all"))
    queue.send_many([{"n": 1}, {"n": 2}])
    held = queue.receive(2)
    key = QueueKeys(app.namespace, "orders").wake
    redis.set(key, "not ours")
    assert len(getattr(queue, verb)(*held)) == 2
    assert redis.get(key) == b"not ours"
    redis.delete(key)
    state = queue.inspect()
    at_end = {"ack": (0, 0), "nack": (2, 0), "release": (2, 0), "bury": (0, 2)}[verb]
    assert (state.ready, state.dead, state.unacked) == (*at_end, 0)


def _content(redis: Redis, app: QWorker, name: str) -> dict[bytes, Any]:
    """What stands in the keys of a queue, byte for byte; when a reaper passed does not matter."""
    keys = redis.scan_iter(match=f"{app.namespace}:{{{name}}}:*", count=1_000_000)
    results: dict[bytes, Any] = {key: redis.dump(key) for key in keys}
    stats = QueueKeys(app.namespace, name).stats
    if redis.type(stats) == b"hash":
        results[stats.encode()] = {**redis.hgetall(stats), b"reaped_ms": b""}
    return results


# -- items that are cut, foreign, or large ---------------------------------------------------------


@pytest.mark.bad_input("data found: envelope cut at any byte")
@pytest.mark.slow
def test_an_envelope_cut_at_any_byte_is_dead_and_harms_no_message(
    app: QWorker, queue: Queue, handled: list[int]
) -> None:
    """Cut in its header it is foreign, with its bytes; cut in its body it has bad arguments; the whole one runs."""
    note = app.tasks["note"]
    note.options(priority=0, ttl="1h").send(1)
    whole = taken(app)
    start = whole.index(b"\n") + 1
    put(app, *(whole[:at] for at in range(len(whole) + 1)))
    note.send(2)

    drain(app)

    assert handled == [1, 2]
    dead_letters = queue.dead(1000)
    assert Counter(dead_letter.reason for dead_letter in dead_letters) == {
        "foreign": start,
        "bad_arguments": len(whole) - start,
    }
    bytes_of_foreign = {each.message.body for each in dead_letters if each.reason == "foreign"}
    assert bytes_of_foreign == {whole[:at] for at in range(start)}
    assert (queue.inspect().ready, queue.inspect().unacked, queue.inspect().delayed) == (0, 0, 0)


@pytest.mark.bad_input("data found: envelope cut at any byte")
def test_an_envelope_cut_at_any_byte_does_not_stop_the_reaper(drive: Drive) -> None:
    """Lost with its worker: what is cut in its header is buried with its bytes, all else comes back."""
    whole = own("abc", receives=1, nacks=1, flags=" m=9 f=1", body="body")
    start = whole.index("\n") + 1
    cuts = [whole[:at] for at in range(len(whole) + 1)]
    drive.redis.hset(drive.keys.lease("L"), mapping=dict(enumerate(cuts, 1)))
    drive.redis.zadd(drive.keys.unacked, {"L": NOW})
    drive.redis.hset(f"{drive.namespace}:queues", drive.keys.queue, 1)
    reaper = Reaper(drive.client, drive.namespace)
    tick = reaper.tick(NOW)
    reaper.close()
    assert (tick.leases, tick.errors, tick.set_aside) == (1, 0, 0)
    dead = drive.state("dead")["dead"]
    assert [dead_letter["envelope"] for dead_letter in dead] == cuts[:start]
    assert {dead_letter["reason"] for dead_letter in dead} == {"foreign"}
    assert len(drive.state("ready")["ready"]) == len(cuts) - start


@pytest.mark.slow
@pytest.mark.bad_input(
    "data found: foreign push",
    "data found: body that is none",
    "data found: body that is very large",
)
@pytest.mark.parametrize(
    ("item", "reason"),
    [
        pytest.param(b"", "foreign", id="empty"),
        pytest.param(b"hello", "foreign", id="text"),
        pytest.param(b"\x80\x04\x95\x05\x00\x00\x00\x00\x00\x00\x00K\x01.", "foreign", id="pickle"),
        pytest.param(b"\xff" * 2**25, "foreign", id="32 MiB of bytes"),
        pytest.param(b"{}", "bad_arguments", id="empty object"),
        pytest.param(b"[" * 2**16, "bad_arguments", id="brackets without end"),
        pytest.param(b'{"task": "note", "args": [', "bad_arguments", id="half a call"),
        pytest.param(b'{"task": "note", "args": {}}', "bad_arguments", id="args that are none"),
        pytest.param(
            b'{"' + b"x" * 2**25,
            "bad_arguments",
            marks=pytest.mark.nightly("test_foreign_items_are_dead_and_harm_no_message"),
            id="32 MiB of half an object",
        ),
    ],
)
def test_foreign_items_are_dead_and_harm_no_message(
    app: QWorker, queue: Queue, handled: list[int], item: bytes, reason: str
) -> None:
    """Whatever it is, and however large: dead at once with its bytes; the messages around it are handled."""
    app.tasks["note"].send(1)
    put(app, item)
    app.tasks["note"].send(2)

    drain(app)

    assert handled == [1, 2]
    (dead_letter,) = queue.dead()
    assert (dead_letter.reason, dead_letter.message.body) == (reason, item)


@pytest.mark.bad_input("data found: unknown codec or key")
@pytest.mark.parametrize(
    "keys", [NO_KEYS, Keyring(encryption={"k1": bytes(32)})], ids=["without keys", "with keys"]
)
@pytest.mark.parametrize(
    "body",
    [b"\x28\xb5\x2f\xfd\x20\x00", b'{"task": "note", "args": [1]}'],
    ids=["packed", "like a call"],
)
def test_an_unknown_codec_is_left_to_other_workers_for_a_while(
    store_url: str, namespace: str, keys: Keyring, body: bytes
) -> None:
    """The body is not read: the message is given back for others, and in the end dead as it was stored."""
    app = QWorker(namespace, url=store_url, keys=keys)
    handled: list[int] = []
    app.task(name="note")(handled.append)
    put(app, b"q1 abc 1 0 0 0 0" + tail(body, {"e": "zstd.k1", "m": "2"}))

    drain(app)
    make_due(app)
    drain(app, unknown_wait_ms=0)

    (dead_letter,) = app.queue("default").dead()
    assert (dead_letter.reason, dead_letter.error_class) == ("unknown_key", "UnknownKeyError")
    assert (dead_letter.message.body, dead_letter.message.unreadable) == (body, True)
    history = history_of(app.queue("default"))
    assert (history["released"], history["unknown"]) == (1, 1)
    assert handled == []
    app.close()


# -- one message in two places ---------------------------------------------------------------------


@pytest.mark.bad_input("data found: the same item twice")
def test_an_item_that_stands_twice_in_ready_is_two_deliveries(
    app: QWorker, queue: Queue, handled: list[int]
) -> None:
    """Each is settled by its own receipt, no count of the queue is below nothing, and fsck corrects the counters."""
    app.tasks["note"].send(1)
    item = taken(app)
    put(app, item, item)

    drain(app)

    assert handled == [1, 1]
    seen = queue.inspect()
    assert (seen.stored, seen.ready, seen.unacked, seen.dead) == (0, 0, 0, 0)
    findings(app, repair=True)
    assert findings(app) == []


@pytest.mark.bad_input("data found: a message in two places")
@pytest.mark.parametrize("hours", [1, -1], ids=["due later", "overdue"])
def test_of_ready_and_delayed_the_earlier_place_stays(
    app: QWorker, queue: Queue, handled: list[int], redis: Redis, hours: int
) -> None:
    """The repair leaves one message, which is ready; whatever its other place said of its time."""
    app.tasks["note"].send(1)
    item = taken(app)
    put(app, item)
    due_ms = queue.inspect().now_ms + hours * 3_600_000
    redis.zadd(QueueKeys(app.namespace, "default").delayed, {item: due_ms})

    assert findings(app, repair=True)[0] is DamageKind.TWO_PLACES
    assert findings(app) == []
    assert (queue.inspect().ready, queue.inspect().delayed) == (1, 0)
    drain(app)
    assert handled == [1]


# -- numbers that are none -------------------------------------------------------------------------


@pytest.mark.bad_input("data found: nonsense in meta", "data found: nonsense in stats")
@pytest.mark.parametrize("value", NONSENSE)
def test_nonsense_among_attributes_and_counters_counts_as_the_default(
    app: QWorker, queue: Queue, redis: Redis, value: str
) -> None:
    """A message is sent, received, fails and dies of the default of 5, whatever meta and stats say."""
    runs: list[int] = []

    @app.task(name="fail", retry=Retry.fixed(0))
    def fail(n: int) -> None:
        runs.append(n)
        raise ValueError

    keys = QueueKeys(app.namespace, "default")
    attributes = ("visibility_ms", "delay_ms", "ttl_ms", "maxsize", "maxlen", "max_receives")
    others = ("paused", "levels", "journal", "journal_cap", "journal_epoch", "journal_shed")
    redis.hset(keys.meta, mapping=dict.fromkeys((*attributes, *others), value))
    counters = ("stored", "unacked", "sent", "received", "nacked", "dead", "reaped_ms", "gaps")
    redis.hset(keys.stats, mapping=dict.fromkeys(counters, value))
    fail.send(1)

    drain(app)
    Reaper(app.client, app.namespace).tick()

    assert runs == [1] * 5
    assert [dead_letter.reason for dead_letter in queue.dead()] == ["max_receives"]


@pytest.mark.bad_input("data found: nonsense in a header")
@pytest.mark.parametrize(
    ("flag", "value"),
    [
        pytest.param(
            flag,
            value,
            marks=()
            if flag == "x" or value == "-1"
            else pytest.mark.nightly("test_nonsense_in_a_flag_is_as_if_it_were_not_there"),
        )
        for flag in "xmvpf"
        for value in NONSENSE
        if " " not in value
    ],
)
@pytest.mark.slow
def test_nonsense_in_a_flag_is_as_if_it_were_not_there(
    app: QWorker, queue: Queue, flag: str, value: str
) -> None:
    """A message whose header says nothing that can be meant is handled, fails and dies like any other."""
    runs: list[int] = []

    @app.task(name="fail", retry=Retry.fixed(0))
    def fail(n: int) -> None:
        runs.append(n)
        raise ValueError

    body = json.dumps({"task": "fail", "args": [1]}).encode()
    put(app, b"q1 abc 1 0 0 0 0 " + f"{flag}={value}".encode() + b"\n" + body)

    drain(app)

    assert runs == [1] * 5
    assert [dead_letter.reason for dead_letter in queue.dead()] == ["max_receives"]


@pytest.mark.bad_input("data found: deadline that is none")
@pytest.mark.parametrize("score", ["-inf", -5, 0.5])
def test_a_deadline_of_the_past_is_over(
    app: QWorker, queue: Queue, handled: list[int], redis: Redis, score: Any
) -> None:
    """Whatever wrote it: the lease is reaped like any that was lost, and its message comes back."""
    _received(app, queue, redis, score)
    reaper = Reaper(app.client, app.namespace)
    assert reaper.tick().leases == 1
    reaper.close()
    drain(app)
    assert handled == [1]


@pytest.mark.bad_input("data found: deadline that is none")
@pytest.mark.parametrize("score", ["+inf", 32_503_680_000_000, 9e15])
def test_a_deadline_that_no_receive_writes_is_found_and_brought_near(
    app: QWorker, queue: Queue, redis: Redis, score: Any
) -> None:
    """Beyond every visibility timeout: a consumer that lives brings it to 12 h as it extends, fsck for a dead one."""
    lease = _received(app, queue, redis, score)
    keys = QueueKeys(app.namespace, "default")
    most_ms = 12 * 3_600_000
    assert findings(app) == [DamageKind.BAD_DEADLINE]
    deadline_ms = app.client.execute(extend(keys, [lease], 30_000)).deadlines[lease]
    assert 0 < deadline_ms - queue.inspect().now_ms <= most_ms
    redis.zadd(keys.unacked, {lease: score})
    assert findings(app, repair=True) == [DamageKind.BAD_DEADLINE]
    assert findings(app) == []
    assert redis.zscore(keys.unacked, lease) - queue.inspect().now_ms <= most_ms


def _received(app: QWorker, queue: Queue, redis: Redis, score: Any) -> str:
    """Send a message, receive it, and write a deadline; returns the lease id."""
    queue.send({"task": "note", "args": [1]})
    assert len(queue.receive(1)) == 1
    keys = QueueKeys(app.namespace, "default")
    (lease,) = redis.zrange(keys.unacked, 0, -1)
    redis.zadd(keys.unacked, {lease: score})
    return str(lease.decode())
