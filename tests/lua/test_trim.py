"""trim.lua: remove the run of expired messages at the head of each level of ready."""

from __future__ import annotations

from qworker.engine.reap import Trimmed, trim
from tests.lua.drive import NOW, Drive, own


def trimmed(drive: Drive, limit: int = 1000, at: int = NOW) -> Trimmed:
    """Trim the heads."""
    result: Trimmed = drive.run(trim(drive.keys, limit, now_ms=at))
    return result


def test_removes_the_expired_run_at_each_head(engine_drive: Drive) -> None:
    """Only messages in front of the first one that is not over go; those behind it stay for receive."""
    drive = engine_drive
    drive.send("a", "b", ttl_ms=10)
    drive.send("c", ttl_ms=11)
    drive.send("d", ttl_ms=10)
    drive.send("e", "f", ttl_ms=5, priority=9)
    drive.redis.delete(drive.keys.wake)
    assert trimmed(drive, at=NOW + 10) == Trimmed(expired=4, full=False)
    assert drive.state() == {
        "ready": [own("c", flags=" x=1000011"), own("d", flags=" x=1000010")],
        "meta": {"levels": "9"},
        "stats": {"sent": "6", "stored": "2", "expired": "4"},
    }


def test_stops_at_what_has_no_time_to_live(drive: Drive) -> None:
    """Messages without expiry, plain and foreign items end the run, whatever is in their bodies."""
    for item in (
        own("a"),
        own("b", body=" x=1 "),
        '{" x=1 ":1}',
        "hello x=1",
        "q2 x x=1\n",
        "q1 x=inf",
    ):
        drive.redis.delete(drive.keys.ready[0])
        drive.redis.rpush(drive.keys.ready[0], item)
        assert trimmed(drive) == Trimmed(0, full=False), item
        assert drive.state("ready") == {"ready": [item]}


def test_limit_bounds_a_level(drive: Drive) -> None:
    """At most the limit goes per level and call, and the answer tells that there may be more."""
    ids = [f"m{number:03d}" for number in range(100)]
    drive.send(*ids, ttl_ms=1)
    drive.send("p", ttl_ms=1, priority=3)
    assert trimmed(drive, 40, at=NOW + 1) == Trimmed(41, full=True)
    assert len(drive.state("ready")["ready"]) == 60
    assert trimmed(drive, 60, at=NOW + 1) == Trimmed(60, full=True)
    assert trimmed(drive, 60, at=NOW + 1) == Trimmed(0, full=False)
    assert drive.stats("stored", "expired") == {"stored": 0, "expired": 101}


def test_bytes_bound_a_call(drive: Drive) -> None:
    """A call ends once it has looked through a mebibyte, and says that there may be more."""
    drive.send(*(f"m{number}" for number in range(5)), body=lambda _: b"x" * 600_000, ttl_ms=1)
    assert trimmed(drive, at=NOW + 1) == Trimmed(2, full=True)
    assert trimmed(drive, at=NOW + 1) == Trimmed(2, full=True)
    assert trimmed(drive, at=NOW + 1) == Trimmed(1, full=False)


def test_frees_unique_keys(drive: Drive) -> None:
    """The key of an expired message is free again, if it still is that message's."""
    drive.send("a", "b", ttl_ms=1, flags={"u": "k/k"})
    drive.redis.hset(drive.keys.unique, "k/k", "b 99999999")
    trimmed(drive, at=NOW + 1)
    assert drive.state("unique", "ready") == {}
