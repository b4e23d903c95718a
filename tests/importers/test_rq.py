"""Reading RQ's keys."""

from __future__ import annotations

import json
import pickle
import time
import zlib

import pytest

from qworker.importers.rq import Rq
from qworker.importers.source import State
from qworker.importers.survey import survey_queue
from qworker.importers.task_names import TaskNames
from tests.importers.keys import add_rq
from tests.timing import left_of_ms


def source(other, **options):
    return Rq(other.redis, TaskNames(), **options)


def entries_of(other, queue="jobs", **options):
    """All messages of a queue, by job."""
    keys = source(other, **options).queue(queue).keys
    return {message.name: message for key in keys for message in key.read(0, 100)}


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
    assert [call(entry) for entry in entries_of(other).values()] == [expected] * 3
    assert entries_of(other)["old"].content.function == "shop.tasks.add"


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
def test_job_that_is_not_a_call_of_plain_values_stays(other, parts, reason):
    """Each has its own reason."""
    add_rq(other.redis, "jobs", "x", data=pickle.dumps(parts))
    entry = entries_of(other)["x"]
    assert (entry.content, entry.reason) == (None, reason)


@pytest.mark.bad_input("data found: zip bomb")
@pytest.mark.parametrize(
    ("make", "reason"),
    [
        (lambda: b"nonsense", "not_plain"),
        (lambda: zlib.compress(b"[1, 2"), "unreadable"),
        (lambda: zlib.compress(b"[" * 100), "unreadable"),
        (lambda: zlib.compress(bytes(65 * 2**20), level=1), "too_large"),
    ],
    ids=["nonsense", "not a value", "nested", "inflates"],
)
def test_broken_data_stays(other, make, reason):
    """Also data that would inflate beyond the largest body."""
    add_rq(other.redis, "jobs", "x", data=make())
    assert entries_of(other)["x"].reason == reason


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
def test_job_with_something_to_lose_stays(other, field, value, reason):
    """Unless it may be dropped."""
    add_rq(other.redis, "jobs", "x", **{field: value})
    add_rq(other.redis, "jobs", "y", webhooks="[]", success_callback_name="", repeats_left=0)
    assert (entries_of(other)["x"].reason, entries_of(other)["y"].reason) == (reason, "")
    assert entries_of(other, drop_callbacks=True)["x"].content is not None


def test_jobs_that_others_wait_for_always_stay(other):
    """Those would wait forever."""
    add_rq(other.redis, "jobs", "x")
    other.redis.sadd("rq:job:x:dependents", "y")
    assert entries_of(other, drop_callbacks=True)["x"].reason == "dependents"


def test_time_to_live_retries_and_age_are_kept(other):
    """What remains of each."""
    begun = time.monotonic()
    add_rq(other.redis, "jobs", "x", retries_left=2, created_at="2020-01-01T00:00:00.500000Z")
    other.redis.expire("rq:job:x", 100)
    add_rq(other.redis, "jobs", "y", created_at="2020-01-01T00:00:00")
    entries = entries_of(other)
    x, y = entries["x"].content, entries["y"].content
    assert (x.max_receives, y.max_receives, y.ttl_ms) == (3, None, None)
    assert x.ttl_ms in left_of_ms(100_000, begun)
    assert y.age_ms - x.age_ms == 500


def test_scheduled_jobs_are_delayed(other):
    """To their time; RQ's scheduler need not run."""
    begun = time.monotonic()
    for job, seconds in (("late", 50), ("due", -50)):
        add_rq(other.redis, "jobs", job)
        other.redis.zadd("rq:scheduled:jobs", {job: now_s(other) + seconds})
    other.redis.delete("rq:queue:jobs")
    entries = entries_of(other)
    assert {entry.state for entry in entries.values()} == {State.DELAYED}
    assert entries["due"].content.delay_ms == 0
    assert entries["late"].content.delay_ms in left_of_ms(50_000, begun, coarse_ms=1000)


def test_started_jobs_are_counted_and_moved_only_when_asked_for(other):
    """Those in RQ's registry by execution or, of older versions, by id, and those taken and not started."""
    for job in ("old", "new", "taken"):
        add_rq(other.redis, "jobs", job)
    other.redis.delete("rq:queue:jobs")
    other.redis.zadd("rq:wip:jobs", {"old": "+inf", "new:execution": 5})
    other.redis.rpush("rq:queue:jobs:intermediate", "taken")
    other.redis.zadd("rq:failed:jobs", {"f": 1})
    survey = survey_queue(source(other).queue("jobs"))
    assert (survey.movable, survey.left) == (0, {"in_flight": 3, "failed": 1})
    entries = entries_of(other, in_flight=True)
    assert set(entries) == {"old", "new", "taken"}
    assert {entry.state for entry in entries.values()} == {State.IN_FLIGHT}
    assert {entry.content.delay_ms for entry in entries.values()} == {0}


def test_originals_are_removed_whole(other):
    """Id, HASH and membership in a group; other jobs stay, and a second removal does nothing."""
    add_rq(other.redis, "jobs", "x", group_id="g")
    add_rq(other.redis, "jobs", "y", group_id="g")
    add_rq(other.redis, "jobs", "z")
    other.redis.sadd("rq:group:g", "x", "y")
    other.redis.zadd("rq:wip:jobs", {"w:1": 5})
    add_rq(other.redis, "else", "w")
    other.redis.delete("rq:queue:else")
    waiting, _ = source(other).queue("jobs").keys
    first = waiting.read(0, 1)
    assert [waiting.remove_originals(first), waiting.remove_originals(first)] == [1, 0]
    _, started, *_ = source(other, in_flight=True).queue("jobs").keys
    assert started.remove_originals(started.read(0, 10)) == 1
    assert sorted(other.redis.keys()) == [
        *(b"rq:group:g", b"rq:job:y", b"rq:job:z", b"rq:queue:jobs", b"rq:queues"),
    ]
    assert other.redis.lrange("rq:queue:jobs", 0, -1) == [b"y", b"z"]
    assert other.redis.smembers("rq:group:g") == {b"y"}


def test_job_that_a_worker_took_during_the_import_stays(other):
    """Removing an id that is gone deletes nothing."""
    add_rq(other.redis, "jobs", "x")
    waiting, _ = source(other).queue("jobs").keys
    page = waiting.read(0, 1)
    other.redis.lmove("rq:queue:jobs", "rq:queue:jobs:intermediate")
    assert waiting.remove_originals(page) == 0
    assert other.redis.exists("rq:job:x") == 1


def test_id_used_again_is_another_message(other):
    """Their marks differ by the time of creation."""
    add_rq(other.redis, "jobs", "daily", created_at="2031-05-04T00:00:00Z")
    first = entries_of(other)["daily"].mark
    add_rq(other.redis, "jobs", "daily", created_at="2031-05-05T00:00:00Z")
    assert entries_of(other)["daily"].mark != first


def test_ids_without_a_job_stay(other):
    """A job that has expired is gone, as RQ's own worker would find."""
    add_rq(other.redis, "jobs", "x")
    other.redis.delete("rq:job:x")
    assert entries_of(other)["x"].reason == "no_job"


def test_workers_count_while_their_heartbeat_lasts(other):
    """RQ leaves names of dead ones in its set."""
    assert source(other).consumers() == 0
    other.redis.sadd("rq:workers", "rq:worker:alive", "rq:worker:dead")
    other.redis.hset("rq:worker:alive", "pid", 1)
    assert source(other).consumers() == 1
