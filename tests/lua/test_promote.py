"""promote.lua: move delayed messages that are due to the tail of ready."""

from __future__ import annotations

from typing import Any

import pytest

from qworker.engine.reap import Promoted, promote
from tests import servers
from tests.lua.drive import NOW, READY_PARTS, Drive, own


def promoted(drive: Drive, limit: int = 500, at: int = NOW) -> Promoted:
    """Promote what is due."""
    result: Promoted = drive.run(promote(drive.keys, limit, now_ms=at))
    return result


def test_moves_due_messages_in_order_of_due_time(engine_drive: Drive) -> None:
    """Due messages stand behind what is ready, the earliest first; the due time itself counts."""
    drive = engine_drive
    drive.send("r")
    drive.send("c", delay_ms=30)
    drive.send("a", delay_ms=10)
    drive.send("b1", "b2", delay_ms=20)
    drive.send("d", delay_ms=31)
    drive.redis.delete(drive.keys.wake)
    assert promoted(drive, at=NOW + 30) == Promoted(
        moved=4, ended=0, next_due_ms=NOW + 31, lateness_ms=20
    )
    assert drive.state() == {
        "ready": [
            own("r"),
            own("a", ready_ms=NOW + 10),
            own("b1", ready_ms=NOW + 20),
            own("b2", ready_ms=NOW + 20),
            own("c", ready_ms=NOW + 30),
        ],
        "delayed": {own("d", ready_ms=NOW + 31): NOW + 31},
        "wake": ["1"] * 4,
        "stats": {"sent": "6", "stored": "6", "promoted": "4"},
    }


def test_nothing_due_changes_nothing(drive: Drive) -> None:
    """Before the first due time, and with nothing delayed, only the next due time is reported."""
    assert promoted(drive) == Promoted(0, 0, None, 0)
    drive.send("a", delay_ms=10)
    before = drive.state()
    assert promoted(drive, at=NOW + 9) == Promoted(0, 0, NOW + 10, 0)
    assert drive.state() == before


def test_limit_bounds_a_call(drive: Drive) -> None:
    """Never more than the limit move, whatever is due; the next due time tells that there is more."""
    ids = [f"m{number:03d}" for number in range(100)]
    drive.send(*ids, delay_ms=1)
    assert promoted(drive, 70, at=NOW + 9) == Promoted(70, 0, NOW + 1, 8)
    assert drive.state("ready")["ready"] == [
        own(message_id, ready_ms=NOW + 1) for message_id in ids[:70]
    ]
    assert promoted(drive, 70, at=NOW + 9) == Promoted(30, 0, None, 8)


def test_five_thousand_in_one_call(engine_drive: Drive) -> None:
    """The largest call moves everything, in order."""
    ids = [f"m{number:04d}" for number in range(5000)]
    for first in range(0, 5000, 1000):
        engine_drive.send(*ids[first : first + 1000], delay_ms=1)
    assert promoted(engine_drive, 5000, at=NOW + 1).moved == 5000
    assert engine_drive.state("ready", "delayed") == {
        "ready": [own(message_id, ready_ms=NOW + 1) for message_id in ids]
    }


def test_bytes_bound_a_call(drive: Drive) -> None:
    """A call ends once a mebibyte has moved, with at least one message."""
    drive.send("a", "b", "c", body=lambda _: b"x" * 600_000, delay_ms=1)
    drive.send("d", body=lambda _: b"x" * 2_000_000, delay_ms=2)
    assert [promoted(drive, at=NOW + 9).moved for _ in range(3)] == [2, 2, 0]


def test_priorities_go_to_their_level_and_open_it(drive: Drive) -> None:
    """A delayed message with a priority puts its level in use when it becomes ready."""
    drive.send("a", priority=5, flags={"p": "5"}, delay_ms=1)
    drive.send("b", priority=9, flags={"p": "9"}, delay_ms=1)
    drive.send("c", priority=5, flags={"p": "5"}, delay_ms=1)
    drive.send("d", delay_ms=1)
    assert promoted(drive, at=NOW + 1).moved == 4
    state = drive.state(*READY_PARTS, "meta")
    assert sorted(state.pop("meta")["levels"]) == ["5", "9"]
    assert state == {
        "ready": [own("d", ready_ms=NOW + 1)],
        "ready:5": [own("a", flags=" t=1000001 p=5"), own("c", flags=" t=1000001 p=5")],
        "ready:9": [own("b", flags=" t=1000001 p=9")],
    }
    before = drive.state("meta")
    drive.send("e", priority=5, flags={"p": "5"}, delay_ms=1)
    promoted(drive, at=NOW + 2)
    assert drive.state("meta") == before


def test_expired_and_cancelled_messages_end(drive: Drive) -> None:
    """What is over when it is due does not become ready; its unique key and tombstone go with it."""
    drive.send("a", ttl_ms=5, delay_ms=10, flags={"u": "k k"})
    drive.send("b", delay_ms=10)
    drive.send("c", delay_ms=11)
    drive.redis.hset(drive.keys.unique, "k k", "a 99999999")
    drive.redis.zadd(drive.keys.cancelled, {"b": NOW + 1, "c": NOW + 1})
    drive.redis.zrem(drive.keys.cancelled, "c")
    assert promoted(drive, at=NOW + 11) == Promoted(1, 2, None, 1)
    assert drive.state("ready", "delayed", "unique", "cancelled", "dead") == {
        "ready": [own("c", ready_ms=NOW + 11)]
    }
    assert drive.stats("expired", "cancelled", "promoted", "stored") == {
        "expired": 1,
        "cancelled": 1,
        "promoted": 1,
        "stored": 1,
    }


def test_ended_messages_alone_wake_no_receiver(drive: Drive) -> None:
    """Without a message that became ready the doorbell is silent."""
    drive.send("a", ttl_ms=5, delay_ms=10)
    assert promoted(drive, at=NOW + 10) == Promoted(0, 1, None, 0)
    assert drive.state("wake", "ready", "delayed") == {}


@pytest.mark.bad_input("data found: foreign push")
def test_items_of_others_become_ready_at_level_0(drive: Drive) -> None:
    """What another program put into delayed moves as it is: receive decides what it is."""
    items = ["hello p=7", '{"x": " p=7 x=1 "}', "q2 x p=7\n", "q1 broken\n"]
    drive.redis.zadd(drive.keys.delayed, {item: NOW + n for n, item in enumerate(items)})
    assert promoted(drive, at=NOW + 9).moved == 4
    assert drive.state("ready", "meta") == {"ready": items}


@pytest.mark.bad_input("data found: due time that is none")
@pytest.mark.parametrize("score", ["inf", 2**60])
def test_due_time_beyond_all_time_waits(drive: Drive, score: Any) -> None:
    """A score that no clock reaches is reported as a number and is never due."""
    drive.redis.zadd(drive.keys.delayed, {"x": score})
    assert promoted(drive) == Promoted(0, 0, 2**53, 0)


@pytest.mark.bad_input("data found: due time that is none")
def test_score_before_all_time_is_due(drive: Drive) -> None:
    """The lowest score is due, with a lateness that is a number."""
    drive.redis.zadd(drive.keys.delayed, {own("a"): "-inf"})
    assert promoted(drive).moved == 1


def test_queue_paused_for_output_promotes_in_silence(drive: Drive) -> None:
    """A pause does not stop the clock: messages become ready, no receiver is woken."""
    drive.send("a", delay_ms=1)
    drive.redis.hset(drive.keys.meta, "paused", "all")
    assert promoted(drive, at=NOW + 1).moved == 1
    assert drive.state("ready", "wake") == {"ready": [own("a", ready_ms=NOW + 1)]}


def test_full_queue_and_full_server_promote() -> None:
    """maxlen and maxmemory stop sending alone."""
    for engine, _ in servers.engines():
        with servers.start(engine) as server:
            drive = Drive(server.url, "n", "q")
            drive.send("a", delay_ms=1)
            drive.redis.hset(drive.keys.meta, "maxlen", 1)
            drive.redis.config_set("maxmemory", 1)
            assert promoted(drive, at=NOW + 1).moved == 1
            drive.close()


def test_invalid_counter_does_not_stop_it(drive: Drive) -> None:
    """Messages move whatever the counters hold."""
    drive.redis.hset(drive.keys.stats, "promoted", "x")
    drive.send("a", delay_ms=1)
    assert promoted(drive, at=NOW + 1).moved == 1
