"""delete.lua: delete waiting messages, wherever they wait. What is unacked or dead is not touched."""

from __future__ import annotations

from qworker.engine.message import delete
from qworker.engine.reap import reap
from tests import servers
from tests.lua.drive import NOW, Drive, own


def deleted(drive: Drive, *items: str) -> list[bool]:
    """Delete items; whether each was."""
    return drive.run(delete(drive.keys, [item.encode() for item in items], now_ms=NOW))


def test_waiting_messages_are_deleted(engine_drive: Drive) -> None:
    """From any level and from the delayed; counted as cancelled, and no longer stored."""
    drive = engine_drive
    drive.send("a", "b")
    drive.send("c", priority=5)
    drive.send("d", delay_ms=50)
    drive.redis.delete(drive.keys.wake)
    assert deleted(drive, own("b"), own("c"), own("d", ready_ms=NOW + 50)) == [True] * 3
    assert drive.state() == {
        "ready": [own("a")],
        "meta": {"levels": "5"},
        "stats": {"sent": "4", "stored": "1", "cancelled": "3"},
    }


def test_suspects_are_deleted(drive: Drive) -> None:
    """Also from the suspects."""
    drive.send("a")
    drive.receive("L", visibility_ms=10)
    drive.run(reap(drive.keys, ["L"], 1000, now_ms=NOW + 10))
    [item] = drive.state("suspect")["suspect"]
    assert deleted(drive, item) == [True]
    assert drive.state("suspect", "ready", "delayed") == {}
    assert drive.stats("stored") == {"stored": 0}


def test_what_does_not_wait_is_not_deleted(drive: Drive) -> None:
    """An unacked message, one that is gone, one named twice: said, and counted once."""
    drive.send("a", "b")
    drive.receive("L", 1)
    assert deleted(drive, own("a"), own("x"), own("b"), own("b")) == [False, False, True, False]
    assert drive.state("lease:L") == {"lease:L": {"0": own("a")}}
    assert drive.stats("stored", "cancelled") == {"stored": 1, "cancelled": 1}


def test_unique_key_is_free_again(drive: Drive) -> None:
    """The key goes with its message, unless another one has it by now."""
    drive.redis.rpush(drive.keys.ready[0], own("a", flags=" u=k%2F1"), own("b", flags=" u=other"))
    drive.redis.hset(drive.keys.unique, mapping={"k/1": f"a {NOW}", "other": f"z {NOW}"})
    assert deleted(drive, own("a", flags=" u=k%2F1"), own("b", flags=" u=other")) == [True, True]
    assert drive.state("unique", "ready") == {"unique": {"other": f"z {NOW}"}}


def test_an_invalid_counter_does_not_fail_the_call(drive: Drive) -> None:
    """The message is gone by then, and the reply says that it is degraded."""
    drive.send("a")
    drive.redis.hset(drive.keys.stats, "cancelled", "many")
    assert drive.call("delete", drive.standard_keys(), NOW, "", own("a")) == ["OK", str(NOW), 1, 1]
    assert drive.state("ready") == {}


def test_the_journal_tells(drive: Drive) -> None:
    """A deleted message is written down as cancelled."""
    drive.redis.hset(drive.keys.meta, "journal", "outcomes")
    drive.send("a")
    deleted(drive, own("a"))
    assert drive.state("journal")["journal"][0]["e1"] == f"cancelled - - - - -\nq1 a {NOW} 0 0 0 0"


def test_full_server_deletes() -> None:
    """Over maxmemory messages can be deleted: it makes room."""
    for engine, _ in servers.engines():
        with servers.start(engine) as server:
            drive = Drive(server.url, "n", "q")
            drive.send("a")
            drive.redis.config_set("maxmemory", 1)
            assert deleted(drive, own("a")) == [True]
            drive.close()
