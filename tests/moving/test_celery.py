"""Reading the keys of Celery's Redis broker."""

from __future__ import annotations

import json

import pytest

from qworker.moving.celery import Celery
from qworker.moving.survey import look
from qworker.moving.waiting import State, TaskNames
from tests.consumer.driving import until
from tests.moving.keys import add_celery


def source(other, **options):
    return Celery(other.redis, TaskNames(), **options)


def found(other, queue="jobs", **options):
    """All that is found in a queue, by name."""
    places = source(other, **options).queue(queue).places
    return {each.name: each for place in places for each in place.read(0, 100)}


def only(other, **message):
    """The entry of one message."""
    add_celery(other.redis, "jobs", "x", **message)
    return found(other)["x"]


def args(entry):
    return json.loads(entry.content.body)["args"]


def test_queues_are_those_bound_without_the_talk_of_workers(other):
    """Found by their bindings, under the prefix."""
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
    (place,) = source(other).queue("jobs").places
    assert [[e.name for e in place.read(*at)] for at in ((0, 2), (2, 2), (4, 2), (5, 2))] == [
        ["a", "b"],
        ["c", "d"],
        ["e"],
        [],
    ]


def test_priorities_keep_their_order(other):
    """0 is served first there, 9 here; where nobody uses them, ours is 0 as for everything else."""
    add_celery(other.redis, "jobs", "a")
    assert [place.priority for place in source(other).queue("jobs").places] == [0]
    add_celery(other.redis, "jobs", "b", key="jobs\x06\x166")
    add_celery(other.redis, "jobs", "c", key="jobs\x06\x163")
    places = source(other).queue("jobs").places
    assert [(place.priority, [e.name for e in place.read(0, 9)]) for place in places] == [
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
def test_types_of_kombu_become_what_our_tasks_restore(other, given, argument):
    """Texts, as we send values of these types ourselves."""
    add_celery(other.redis, "jobs", "x", given)
    assert args(found(other)["x"]) == [argument]


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
    """Each by a reason of its own, before anything of it is lost."""
    assert only(other, **message).reason == reason


def test_unknown_type_of_kombu_stays(other):
    """What it stands for is not known."""
    add_celery(other.redis, "jobs", "x", {"__type__": "money", "__value__": 1})
    entry = found(other)["x"]
    assert (entry.reason, entry.detail) == ("arguments", "they hold the type 'money'")


def test_bytes_that_are_no_message_stay(other):
    """Whatever somebody pushed there."""
    add_celery(other.redis, "jobs", "x")
    other.redis.lpush("jobs", b"hello", b"[]", b"{}", b'{"headers": 1, "properties": []}')
    assert look(source(other).queue("jobs")).reasons == {"unreadable": 4}


def test_callbacks_can_be_dropped(other):
    """By whoever says so."""
    add_celery(other.redis, "jobs", "x", embed={"chain": [{}]}, stamps={"a": 1})
    assert found(other, drop_callbacks=True)["x"].content is not None


def test_times_and_retries_are_kept(other):
    """An eta is a delay, expires a time to live, also where it is over; retries are receives."""
    seconds = other.redis.time()[0]
    from datetime import UTC, datetime, timedelta

    def at(offset):
        return (datetime.fromtimestamp(seconds, UTC) + timedelta(seconds=offset)).isoformat()

    add_celery(other.redis, "jobs", "a", eta=at(50), expires=at(100), retries=2)
    add_celery(other.redis, "jobs", "b", eta=at(-50).removesuffix("+00:00"), expires=at(-1))
    a, b = (found(other)[name].content for name in "ab")
    assert a.delay_ms == pytest.approx(50_000, abs=1100)
    assert a.ttl_ms == pytest.approx(100_000, abs=1100)
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
    survey = look(source(other).queue("jobs"))
    assert (survey.movable, survey.left) == (0, {"in_flight": 2})
    taken, waiting = source(other, in_flight=True).queue("jobs").places
    assert (taken.size(), waiting.size()) == (2, 0)
    entries = taken.read(0, 10)
    assert {each.name: each.state for each in entries} == dict.fromkeys("ab", State.IN_FLIGHT)
    assert [taken.let_go(entries), other.redis.hkeys("unacked")] == [2, [b"tag-c"]]
    assert other.redis.zrange("unacked_index", 0, -1) == [b"tag-c"]
    assert taken.size() == 0


def test_redelivered_message_is_the_same(other):
    """Celery changes its bytes when it gives it back; its mark stays."""
    add_celery(other.redis, "jobs", "x")
    before = found(other)["x"].mark
    message = json.loads(deliver(other, "jobs", "x"))
    taken = found(other, in_flight=True)["x"].mark
    message["headers"]["redelivered"] = True
    message["properties"]["delivery_info"]["redelivered"] = True
    other.redis.lpush("jobs", json.dumps(message))
    assert {before, taken, found(other)["x"].mark} == {before}
    add_celery(other.redis, "jobs", "y")
    assert found(other)["y"].mark != before


def test_letting_go_removes_these_messages_only(other):
    """Each once; twice does no harm."""
    for name in "abc":
        add_celery(other.redis, "jobs", name)
    (place,) = source(other).queue("jobs").places
    page = place.read(1, 1)
    assert [place.let_go(page), place.let_go(page)] == [1, 0]
    assert [each.name for each in place.read(0, 9)] == ["a", "c"]


def test_waiting_workers_are_counted(other):
    """By what their connections wait for."""
    assert source(other).consumers() == 0
    waiting = other.redis.connection_pool.get_connection()
    waiting.send_command("BRPOP", "jobs", "jobs\x06\x163", 5)
    until(lambda: source(other).consumers() == 1, 5, "it waits")
    waiting.disconnect()
