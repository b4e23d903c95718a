"""inspect.lua: the sizes, ages, counters and attributes of a queue at one instant."""

from __future__ import annotations

import pytest

from qworker.engine.inspect import Inspection, inspect
from qworker.engine.reap import promote
from qworker.engine.settle import Outcomes
from tests import servers
from tests.lua.drive import NOW, Drive, own
from tests.lua.group_calls import put


def inspected(drive: Drive, at: int = NOW) -> Inspection:
    """Inspect the queue."""
    result: Inspection = drive.run(inspect(drive.keys, now_ms=at))
    return result


def test_queue_that_does_not_exist_is_empty(engine_drive: Drive) -> None:
    """Nothing is nothing, and stays it."""
    seen = inspected(engine_drive)
    assert seen == Inspection(
        queue=engine_drive.keys.queue,
        now_ms=NOW,
        ready_by_priority=(0,) * 10,
        suspect=0,
        delayed=0,
        leases=0,
        dead=0,
        oldest_ready_ms=None,
        next_due_ms=None,
        next_deadline_ms=None,
        stats={},
        meta={"test": "1"},
    )
    assert (seen.ready, seen.unacked, seen.stored, seen.paused, seen.oldest_age_s) == (
        0,
        0,
        0,
        "",
        0,
    )
    assert engine_drive.state() == {}


def test_counts_every_state(engine_drive: Drive) -> None:
    """Each place is counted, messages in leases by the counter, and the oldest head tells the age."""
    drive = engine_drive
    drive.send("u1", "u2", "u3")
    drive.receive("L", 2)
    drive.receive("M", 1, at=NOW - 5)
    drive.send("a", "b", at=NOW + 3)
    drive.send("p", priority=9, at=NOW + 2)
    drive.send("d", "e", delay_ms=40)
    drive.redis.rpush(drive.keys.suspect, own("s", NOW + 1))
    drive.redis.xadd(drive.keys.dead, {"envelope": "x"})
    drive.redis.hset(drive.keys.meta, "paused", "out")
    before = drive.state()
    seen = inspected(drive, at=NOW + 1501)
    assert (seen.ready_by_priority, seen.suspect) == ((2, 0, 0, 0, 0, 0, 0, 0, 0, 1), 1)
    assert (seen.delayed, seen.leases, seen.dead) == (2, 2, 1)
    assert (seen.ready, seen.unacked, seen.stored, seen.paused) == (4, 3, 9, "out")
    assert (seen.oldest_ready_ms, seen.oldest_age_s) == (NOW + 1, 1.5)
    assert (seen.next_due_ms, seen.next_deadline_ms) == (NOW + 40, NOW + 29_995)
    assert (seen.stats["received"], seen.meta["levels"]) == (3, "9")
    assert drive.state() == before


def test_usual_queue_takes_twenty_commands(drive: Drive) -> None:
    """A scrape looks at thousands: keys that are likely are read first, and those of other levels together."""
    drive.send("a", "b", "c")
    inspected(drive)
    drive.reset_stats()
    inspected(drive)
    calls = drive.info("commandstats")
    of_script = {
        name: stat["calls"]
        for name, stat in calls.items()
        # Nodes of a Cluster and replicas ask for more beside.
        if not name.startswith(
            ("cmdstat_config", "cmdstat_cluster", "cmdstat_ping", "cmdstat_replconf")
        )
    }
    assert of_script["cmdstat_evalsha"] == 1
    assert sum(of_script.values()) - 1 <= 20
    drive.send("p", priority=3)
    assert inspected(drive).ready_by_priority[3] == 1


@pytest.mark.bad_input("data found: nonsense in stats")
def test_content_of_others_breaks_nothing(drive: Drive) -> None:
    """Foreign heads, infinite scores and counters that are not numbers are left out or told as numbers."""
    drive.redis.rpush(drive.keys.ready[0], "hello")
    drive.redis.rpush(drive.keys.ready[1], "q1 broken\n")
    drive.redis.rpush(drive.keys.ready[2], '{"a": 1}')
    drive.redis.rpush(drive.keys.ready[3], b"\xff")
    drive.redis.zadd(drive.keys.delayed, {"x": "inf"})
    drive.redis.zadd(drive.keys.unacked, {"x": "-inf"})
    stats = {"a": "x", "b": "1.5", "c": "", "d": "--5", "e": "-", "f": "-5", "unacked": "-3"}
    drive.redis.hset(drive.keys.stats, mapping=stats)
    seen = inspected(drive)
    assert seen.oldest_ready_ms is None
    assert (seen.next_due_ms, seen.next_deadline_ms) == (None, -(2**53))
    assert seen.stats == {"f": -5, "unacked": -3}
    assert seen.unacked == 0


def test_full_server_can_be_looked_at() -> None:
    """Over maxmemory inspecting still works."""
    for engine, _ in servers.engines():
        with servers.start(engine) as server:
            drive = Drive(server.url, "n", "q")
            drive.redis.config_set("maxmemory", 1)
            assert inspected(drive).ready == 0
            drive.close()


def test_age_counts_from_when_a_message_became_ready(drive: Drive) -> None:
    """A delay does not make a backlog old, and what was given back does not hide what has waited behind it."""
    drive.send("a", delay_ms=60_000)
    drive.run(promote(drive.keys, now_ms=NOW + 60_000))
    assert inspected(drive, at=NOW + 61_000).oldest_age_s == 1.0
    drive.send("b", at=NOW + 61_000)
    drive.receive("L", 1, at=NOW + 90_000)
    back = Outcomes("L")
    back.release(0)
    drive.settle(back, at=NOW + 90_000)
    assert inspected(drive, at=NOW + 91_000).oldest_ready_ms == NOW + 61_000


def test_size_of_the_journal(drive: Drive) -> None:
    """Entries and bytes of what is there, not of what was written."""
    drive.redis.hset(drive.keys.meta, "journal", "all")
    for name in "abc":
        drive.send(name)
    size = len("sent - - - - -\nq1 a 1000000 0 0 0 0") + 64
    look = inspected(drive)
    assert (look.journal, look.journal_entries, look.journal_bytes) == ("all", 3, 3 * size)
    drive.redis.xtrim(drive.keys.journal, maxlen=1, approximate=False)
    look = inspected(drive)
    assert (look.journal_entries, look.journal_bytes, look.journal_shed) == (1, size, False)


def test_the_oldest_ready_message_may_wait_in_a_group(drive: Drive) -> None:
    """Also behind many groups that began to wait later, and with messages that have no group."""
    for number in range(40):
        put(drive, f"g{number}:m{number}", f"g{number}:n{number}", at=NOW + 100 + number)
    put(drive, "plain", at=NOW + 50)
    assert inspected(drive, at=NOW + 1000).oldest_ready_ms == NOW + 50
    drive.receive("L", 1)
    assert inspected(drive, at=NOW + 1000).oldest_ready_ms == NOW + 100
