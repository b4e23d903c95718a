"""Reading the keys of Celery's Redis broker."""

from __future__ import annotations

import json
import time

import pytest

from qworker.importers.celery import Celery
from qworker.importers.source import State
from qworker.importers.survey import survey_queue
from qworker.importers.task_names import TaskNames
from tests.consumer.driving import until
from tests.importers.keys import add_celery
from tests.timing import left_of_ms


def source(other, **options):
    return Celery(other.redis, TaskNames(), **options)


def entries_of(other, queue="jobs", **options):
    """All messages of a queue, by name."""
    keys = source(other, **options).queue(queue).keys
    return {message.name: message for key in keys for message in key.read(0, 100)}


def only(other, **message):
    """One message as it is read."""
    add_celery(other.redis, "jobs", "x", **message)
    return entries_of(other)["x"]


def args(entry):
    return json.loads(entry.content.body)["args"]


def test_queues_are_those_bound_without_the_talk_of_workers(other):
    """By their bindings, under the prefix."""
    add_celery(other.redis, "jobs", "x")
    other.redis.sadd("_kombu.binding.celery.pidbox", "\x06\x16\x06\x16w1.celery.pidbox")
    other.redis.sadd("_kombu.binding.celeryev", "worker.#\x06\x16\x06\x16celeryev.1")
    both = [f"new\x06\x16\x06\x16{name}" for name in ("orders", "audit")]
    other.redis.sadd("_kombu.binding.shop", *both)
    other.redis.sadd("my_kombu.binding.a", "a\x06\x16\x06\x16a")
    assert source(other).queues() == ["audit", "jobs", "orders"]
    assert source(other, prefix="my").queues() == ["a"]


def test_messages_are_read_in_the_order_of_service(other):
    """From the right of the list, in pages."""
    for name in "abcde":
        add_celery(other.redis, "jobs", name)
    (key,) = source(other).queue("jobs").keys
    assert [[e.name for e in key.read(*at)] for at in ((0, 2), (2, 2), (4, 2), (5, 2))] == [
        ["a", "b"],
        ["c", "d"],
        ["e"],
        [],
    ]


def test_priorities_keep_their_order(other):
    """0 is served first there, 9 here; a queue without priorities gets our default, 0."""
    add_celery(other.redis, "jobs", "a")
    assert [key.priority for key in source(other).queue("jobs").keys] == [0]
    add_celery(other.redis, "jobs", "b", key="jobs\x06\x166")
    add_celery(other.redis, "jobs", "c", key="jobs\x06\x163")
    keys = source(other).queue("jobs").keys
    assert [(key.priority, [e.name for e in key.read(0, 9)]) for key in keys] == [
        (9, ["a"]),
        (6, ["c"]),
        (3, ["b"]),
    ]


@pytest.mark.parametrize(
    ("given", "argument"),
    [
        ({"__type__": "datetime", "__value__": "2031-05-04T00:00:00+00:00"}, "2031-05-04T00:00:00+00:00"),
        ({"__type__": "decimal", "__value__": "1.10"}, "1.10"),
        ({"__type__": "bytes", "__value__": "ab"}, "YWI="),
        ({"__type__": "base64", "__value__": "/wA="}, "/wA="),
        (
            {"a": [{"__type__": "uuid", "__value__": {"hex": "0" * 31 + "7"}}]},
            {"a": ["00000000-0000-0000-0000-000000000007"]},
        ),
        ({"__type__": "x", "b": 1}, {"__type__": "x", "b": 1}),
        (12345678901234567890, 12345678901234567890),
    ],
)  # fmt: skip
def test_types_of_kombu_become_types_that_our_tasks_restore(other, given, argument):
    """As text, the way qworker sends values of these types itself."""
    add_celery(other.redis, "jobs", "x", given)
    assert args(entries_of(other)["x"]) == [argument]


@pytest.mark.parametrize(
    ("message", "reason"),
    [
        ({"change": {"content-type": "application/x-python-serialize"}}, "content_type"),
        ({"change": {"content-type": None}}, "content_type"),
        ({"compression": "application/x-gzip"}, "compressed"),
        ({"raw_body": "&&&"}, "unreadable"),
        ({"raw_body": "W10="}, "unreadable"),
        ({"raw_body": "eyJ0YXNrIjoiYSJ9"}, "unreadable"),
        ({"change": {"body": None}}, "unreadable"),
        ({"task": None}, "unreadable"),
        ({"eta": "tomorrow"}, "unreadable"),
        ({"expires": 12}, "unreadable"),
        ({"task": "a.<lambda>"}, "task_name"),
        ({"embed": {"callbacks": [{}]}}, "callbacks"),
        ({"embed": {"errbacks": [{}]}}, "errbacks"),
        ({"embed": {"chain": [{}]}}, "chain"),
        ({"embed": {"chord": {}}}, ""),
        ({"embed": {"chord": {"task": "a"}}}, "chord"),
        ({"stamps": {"a": 1}}, "stamps"),
        ({"embed": {"callbacks": None, "chain": None}, "stamps": {}}, ""),
    ],
)
def test_what_cannot_be_moved_stays(other, message, reason):
    """Each has its own reason, and loses nothing."""
    assert only(other, **message).reason == reason


def test_unknown_type_of_kombu_stays(other):
    """Its value is unknown."""
    add_celery(other.redis, "jobs", "x", {"__type__": "money", "__value__": 1})
    entry = entries_of(other)["x"]
    assert (entry.reason, entry.detail) == ("arguments", "they hold the type 'money'")


def test_bytes_that_are_not_a_message_stay(other):
    """Other programs may have pushed anything."""
    add_celery(other.redis, "jobs", "x")
    other.redis.lpush("jobs", b"hello", b"[]", b"{}", b'{"headers": 1, "properties": []}')
    assert survey_queue(source(other).queue("jobs")).reasons == {"unreadable": 4}


def test_callbacks_can_be_dropped(other):
    """With --drop-callbacks."""
    add_celery(other.redis, "jobs", "x", embed={"chain": [{}]}, stamps={"a": 1})
    assert entries_of(other, drop_callbacks=True)["x"].content is not None


def test_times_and_retries_are_kept(other):
    """An eta becomes a delay, expires a time to live even if it is over, retries become receives."""
    begun = time.monotonic()
    seconds = other.redis.time()[0]
    from datetime import UTC, datetime, timedelta

    def at(offset):
        return (datetime.fromtimestamp(seconds, UTC) + timedelta(seconds=offset)).isoformat()

    add_celery(other.redis, "jobs", "a", eta=at(50), expires=at(100), retries=2)
    add_celery(other.redis, "jobs", "b", eta=at(-50).removesuffix("+00:00"), expires=at(-1))
    a, b = (entries_of(other)[name].content for name in "ab")
    assert a.delay_ms in left_of_ms(50_000, begun, coarse_ms=1000)
    assert a.ttl_ms in left_of_ms(100_000, begun, coarse_ms=1000)
    assert (a.receives, b.receives, b.delay_ms, b.ttl_ms) == (2, 0, 0, 1)


def deliver(other, queue, name, *, exchange="", routing_key=None):
    """Take a message as a worker does."""
    raw = other.redis.rpop(queue)
    key = queue if routing_key is None else routing_key
    other.redis.hset("unacked", f"tag-{name}", json.dumps([json.loads(raw), exchange, key]))
    other.redis.zadd("unacked_index", {f"tag-{name}": 5})
    return raw


def test_taken_messages_are_counted_and_moved_only_when_asked_for(other):
    """Each belongs to the queue of its binding, or to that of its routing key."""
    other.redis.sadd("_kombu.binding.shop", "orders.new\x06\x16\x06\x16jobs")
    for name, given in (("a", {}), ("b", {"exchange": "shop", "routing_key": "orders.new"})):
        add_celery(other.redis, "jobs", name)
        deliver(other, "jobs", name, **given)
    add_celery(other.redis, "else", "c")
    deliver(other, "else", "c")
    survey = survey_queue(source(other).queue("jobs"))
    assert (survey.movable, survey.left) == (0, {"in_flight": 2})
    taken, waiting = source(other, in_flight=True).queue("jobs").keys
    assert (taken.size(), waiting.size()) == (2, 0)
    entries = taken.read(0, 10)
    assert {entry.name: entry.state for entry in entries} == dict.fromkeys("ab", State.IN_FLIGHT)
    assert [taken.remove_originals(entries), other.redis.hkeys("unacked")] == [2, [b"tag-c"]]
    assert other.redis.zrange("unacked_index", 0, -1) == [b"tag-c"]
    assert taken.size() == 0


def test_redelivered_message_is_the_same(other):
    """Celery changes its bytes when it returns it; the mark stays."""
    add_celery(other.redis, "jobs", "x")
    before = entries_of(other)["x"].mark
    message = json.loads(deliver(other, "jobs", "x"))
    taken = entries_of(other, in_flight=True)["x"].mark
    message["headers"]["redelivered"] = True
    message["properties"]["delivery_info"]["redelivered"] = True
    other.redis.lpush("jobs", json.dumps(message))
    assert {before, taken, entries_of(other)["x"].mark} == {before}
    add_celery(other.redis, "jobs", "y")
    assert entries_of(other)["y"].mark != before


def test_only_originals_are_removed(other):
    """A second removal does nothing."""
    for name in "abc":
        add_celery(other.redis, "jobs", name)
    (key,) = source(other).queue("jobs").keys
    page = key.read(1, 1)
    assert [key.remove_originals(page), key.remove_originals(page)] == [1, 0]
    assert [message.name for message in key.read(0, 9)] == ["a", "c"]


def test_waiting_workers_are_counted(other):
    """By what their connections wait for."""
    assert source(other).consumers() == 0
    waiting = other.redis.connection_pool.get_connection()
    waiting.send_command("BRPOP", "jobs", "jobs\x06\x163", 5)
    until(lambda: source(other).consumers() == 1, what="it waits")
    waiting.disconnect()
