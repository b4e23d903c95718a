"""Reading RQ's keys."""

from __future__ import annotations

import json
import pickle
import zlib

import pytest

from qworker.moving.rq import Rq
from qworker.moving.survey import look
from qworker.moving.waiting import State, TaskNames
from tests.moving.keys import add_rq


def source(other, **options):
    return Rq(other.redis, TaskNames(), **options)


def found(other, queue="jobs", **options):
    """All that is found in a queue, by job."""
    places = source(other, **options).queue(queue).places
    return {each.name: each for place in places for each in place.read(0, 100)}


def call(entry):
    return json.loads(entry.content.body)


def now_s(other) -> float:
    return other.redis.time()[0]


def test_calls_are_read_from_pickle_and_json_compressed_or_not(other):
    """RQ writes all of these, by version and serializer."""
    parts = ("shop.tasks.add", None, (1, "x"), {"b": 2})
    add_rq(other.redis, "jobs", "pickle", data=zlib.compress(pickle.dumps(parts)))
    add_rq(other.redis, "jobs", "old", data=pickle.dumps(parts, 4))
    add_rq(other.redis, "jobs", "json", data=zlib.compress(json.dumps(parts).encode()))
    expected = {"task": "add", "args": [1, "x"], "kwargs": {"b": 2}}
    assert [call(each) for each in found(other).values()] == [expected] * 3
    assert found(other)["old"].content.function == "shop.tasks.add"


@pytest.mark.parametrize(
    ("parts", "reason"),
    [
        (("f", object, (), {}), "not_plain"),
        (("f", None, (float("nan"),), {}), "arguments"),
        (("f", None, ({1: 2},), {}), "arguments"),
        (("f", None, (), {1: 2}), "unreadable"),
        (("f", "instance", (), {}), "method"),
        ((None, None, (), {}), "unreadable"),
        (("f", None, "args", {}), "unreadable"),
        (("f", None, ()), "unreadable"),
        ("f", "unreadable"),
        (("a.<lambda>", None, (), {}), "task_name"),
    ],
)
def test_what_is_no_call_of_plain_values_stays(other, parts, reason):
    """Each by a reason of its own."""
    add_rq(other.redis, "jobs", "x", data=pickle.dumps(parts))
    entry = found(other)["x"]
    assert (entry.content, entry.reason) == (None, reason)


@pytest.mark.parametrize(
    ("data", "reason"),
    [
        (b"nonsense", "not_plain"),
        (zlib.compress(b"[1, 2"), "unreadable"),
        (zlib.compress(b"[" * 100), "unreadable"),
        (zlib.compress(bytes(65 * 2**20)), "too_large"),
    ],
)
def test_broken_data_stays(other, data, reason):
    """Also data that would inflate beyond any body."""
    add_rq(other.redis, "jobs", "x", data=data)
    assert found(other)["x"].reason == reason


@pytest.mark.parametrize(
    ("field", "value", "reason"),
    [
        ("success_callback_name", "a.b", "callbacks"),
        ("failure_callback_name", "a.b", "callbacks"),
        ("stopped_callback_name", "a.b", "callbacks"),
        ("webhooks", '[{"url": "https://example.org"}]', "callbacks"),
        ("repeats_left", 3, "repeats"),
    ],
)
def test_what_would_be_lost_with_a_job_keeps_it_there(other, field, value, reason):
    """Unless it is to be dropped."""
    add_rq(other.redis, "jobs", "x", **{field: value})
    add_rq(other.redis, "jobs", "y", webhooks="[]", success_callback_name="", repeats_left=0)
    assert (found(other)["x"].reason, found(other)["y"].reason) == (reason, "")
    assert found(other, drop_callbacks=True)["x"].content is not None


def test_jobs_that_others_wait_for_always_stay(other):
    """Those would wait for ever."""
    add_rq(other.redis, "jobs", "x")
    other.redis.sadd("rq:job:x:dependents", "y")
    assert found(other, drop_callbacks=True)["x"].reason == "dependents"


def test_time_to_live_retries_and_age_are_kept(other):
    """What is left of each."""
    add_rq(other.redis, "jobs", "x", retries_left=2, created_at="2020-01-01T00:00:00.500000Z")
    other.redis.expire("rq:job:x", 100)
    add_rq(other.redis, "jobs", "y", created_at="2020-01-01T00:00:00")
    x, y = found(other)["x"].content, found(other)["y"].content
    assert (x.max_receives, y.max_receives, y.ttl_ms) == (3, None, None)
    assert x.ttl_ms == pytest.approx(100_000, abs=1000)
    assert y.age_ms - x.age_ms == pytest.approx(500, abs=50)


def test_scheduled_jobs_are_delayed(other):
    """To their time; RQ's scheduler need not run."""
    for job, seconds in (("late", 50), ("due", -50)):
        add_rq(other.redis, "jobs", job)
        other.redis.zadd("rq:scheduled:jobs", {job: now_s(other) + seconds})
    other.redis.delete("rq:queue:jobs")
    entries = found(other)
    assert {each.state for each in entries.values()} == {State.DELAYED}
    assert entries["due"].content.delay_ms == 0
    assert entries["late"].content.delay_ms == pytest.approx(50_000, abs=1100)


def test_started_jobs_are_counted_and_moved_only_when_asked_for(other):
    """Those in RQ's registry by execution, of older versions by id, and those that were taken and not started."""
    for job in ("old", "new", "taken"):
        add_rq(other.redis, "jobs", job)
    other.redis.delete("rq:queue:jobs")
    other.redis.zadd("rq:wip:jobs", {"old": "+inf", "new:execution": 5})
    other.redis.rpush("rq:queue:jobs:intermediate", "taken")
    other.redis.zadd("rq:failed:jobs", {"f": 1})
    survey = look(source(other).queue("jobs"))
    assert (survey.movable, survey.left) == (0, {"in_flight": 3, "failed": 1})
    entries = found(other, in_flight=True)
    assert set(entries) == {"old", "new", "taken"}
    assert {each.state for each in entries.values()} == {State.IN_FLIGHT}
    assert {each.content.delay_ms for each in entries.values()} == {0}


def test_letting_go_leaves_nothing_of_a_job(other):
    """Neither id nor hash nor its place in a group; the others stay, twice does no harm."""
    add_rq(other.redis, "jobs", "x", group_id="g")
    add_rq(other.redis, "jobs", "y", group_id="g")
    add_rq(other.redis, "jobs", "z")
    other.redis.sadd("rq:group:g", "x", "y")
    other.redis.zadd("rq:wip:jobs", {"w:1": 5})
    add_rq(other.redis, "else", "w")
    other.redis.delete("rq:queue:else")
    waiting, _ = source(other).queue("jobs").places
    first = waiting.read(0, 1)
    assert [waiting.let_go(first), waiting.let_go(first)] == [1, 0]
    _, started, *_ = source(other, in_flight=True).queue("jobs").places
    assert started.let_go(started.read(0, 10)) == 1
    assert sorted(other.redis.keys()) == [
        *(b"rq:group:g", b"rq:job:y", b"rq:job:z", b"rq:queue:jobs", b"rq:queues"),
    ]
    assert other.redis.lrange("rq:queue:jobs", 0, -1) == [b"y", b"z"]
    assert other.redis.smembers("rq:group:g") == {b"y"}


def test_job_that_a_worker_took_meanwhile_is_its_own(other):
    """Letting go of what is no longer there deletes nothing."""
    add_rq(other.redis, "jobs", "x")
    waiting, _ = source(other).queue("jobs").places
    page = waiting.read(0, 1)
    other.redis.lmove("rq:queue:jobs", "rq:queue:jobs:intermediate")
    assert waiting.let_go(page) == 0
    assert other.redis.exists("rq:job:x") == 1


def test_id_used_again_is_another_message(other):
    """Its mark tells them apart by the time of creation."""
    add_rq(other.redis, "jobs", "daily", created_at="2031-05-04T00:00:00Z")
    first = found(other)["daily"].mark
    add_rq(other.redis, "jobs", "daily", created_at="2031-05-05T00:00:00Z")
    assert found(other)["daily"].mark != first


def test_ids_without_a_job_stay(other):
    """A job that has expired is gone, as RQ's own worker would find."""
    add_rq(other.redis, "jobs", "x")
    other.redis.delete("rq:job:x")
    assert found(other)["x"].reason == "no_job"


def test_workers_count_while_their_heartbeat_lasts(other):
    """RQ leaves names of dead ones in its set."""
    assert source(other).consumers() == 0
    other.redis.sadd("rq:workers", "rq:worker:alive", "rq:worker:dead")
    other.redis.hset("rq:worker:alive", "pid", 1)
    assert source(other).consumers() == 1
