"""enqueue.lua: put delayed and held messages to the tail of ready now."""

from __future__ import annotations

from qworker.engine.message import enqueue, hold
from tests import servers
from tests.lua.drive import NOW, Drive, own


def enqueued(drive: Drive, *items: str, at: int = NOW) -> list[bool]:
    """Enqueue items; whether each was."""
    return drive.run(enqueue(drive.keys, [item.encode() for item in items], now_ms=at))


def test_delayed_messages_become_ready(engine_drive: Drive) -> None:
    """They go to the tail of their level, which is in use from then on; who waits is woken."""
    drive = engine_drive
    drive.send("a")
    drive.send("b", delay_ms=50)
    drive.send("c", delay_ms=50, flags={"p": "5"}, priority=5)
    drive.send("d", delay_ms=50)
    drive.redis.delete(drive.keys.wake)
    b = own("b", ready_ms=NOW + 50)
    c = own("c", flags=f" t={NOW + 50} p=5")
    assert enqueued(drive, b, c, at=NOW + 7) == [True, True]
    assert drive.state() == {
        "ready": [own("a"), own("b", ready_ms=NOW + 7)],
        "ready:5": [own("c", flags=" p=5", ready_ms=NOW + 7)],
        "delayed": {own("d", ready_ms=NOW + 50): NOW + 50},
        "wake": ["1", "1"],
        "meta": {"levels": "5"},
        "stats": {"sent": "4", "stored": "4", "promoted": "2"},
    }


def test_held_messages_come_back(drive: Drive) -> None:
    """What was held is ready again, from now on."""
    drive.send("a")
    drive.run(hold(drive.keys, [own("a").encode()], now_ms=NOW))
    assert enqueued(drive, own("a"), at=NOW + 5) == [True]
    assert drive.state("ready", "delayed") == {"ready": [own("a", ready_ms=NOW + 5)]}


def test_what_is_not_delayed_stays(drive: Drive) -> None:
    """Ready messages, those that are gone, and one named twice: nothing is put in twice."""
    drive.send("a")
    drive.send("b", delay_ms=50)
    b = own("b", ready_ms=NOW + 50)
    assert enqueued(drive, own("a"), own("x"), b, b) == [False, False, True, False]
    assert drive.state("ready") == {"ready": [own("a"), own("b", ready_ms=NOW)]}


def test_where_nothing_is_delayed_nothing_happens(drive: Drive) -> None:
    """A call that finds none of its messages delayed changes nothing."""
    drive.send("a")
    before = drive.state()
    assert enqueued(drive, own("a"), own("x")) == [False, False]
    assert drive.state() == before


def test_an_invalid_counter_does_not_fail_the_call(drive: Drive) -> None:
    """The message is ready by then, and the reply says that it is degraded."""
    drive.send("a", delay_ms=50)
    drive.redis.hset(drive.keys.stats, "promoted", "many")
    item = own("a", ready_ms=NOW + 50)
    assert drive.call("enqueue", drive.standard_keys(), NOW, item) == ["OK", str(NOW), 1, 1]
    assert drive.state("ready", "delayed") == {"ready": [own("a", ready_ms=NOW)]}


def test_wakes_no_receiver_while_output_is_paused(drive: Drive) -> None:
    """The doorbell is silent for a queue that hands out nothing."""
    drive.redis.hset(drive.keys.meta, "paused", "out")
    drive.send("a", delay_ms=50)
    enqueued(drive, own("a", ready_ms=NOW + 50))
    assert "wake" not in drive.state()


def test_a_journal_of_everything_tells(drive: Drive) -> None:
    """Where all is written down, so is this: as a promotion."""
    drive.redis.hset(drive.keys.meta, "journal", "all")
    drive.send("a", delay_ms=50)
    enqueued(drive, own("a", ready_ms=NOW + 50))
    groups = [entry["e1"] for entry in drive.state("journal")["journal"]]
    assert groups[-1] == f"promoted - - - - -\nq1 a {NOW} 0 0 0 0 t={NOW + 50}"


def test_full_server_enqueues() -> None:
    """Over maxmemory messages can be enqueued: they have to be drained."""
    for engine, _ in servers.engines():
        with servers.start(engine) as server:
            drive = Drive(server.url, "n", "q")
            drive.send("a", delay_ms=50)
            drive.redis.hset(drive.keys.meta, "test", "1")
            drive.redis.config_set("maxmemory", 1)
            assert enqueued(drive, own("a", ready_ms=NOW + 50)) == [True]
            drive.close()
