"""redrive.lua: put dead letters back to the tail of ready with fresh counts, and no expiry."""

from __future__ import annotations

from typing import Any

from qworker.engine.dead import redrive
from qworker.wire.ids import EntryId
from tests.lua.drive import NOW, READY_PARTS, Drive, own


def bury(drive: Drive, *items: str | bytes) -> list[str]:
    """Put items among the dead letters; their entry ids."""
    return [
        drive.redis.xadd(drive.keys.dead, {"envelope": item, "reason": "rejected"}).decode()
        for item in items
    ]


def redriven(drive: Drive, *entries: str, at: int = NOW) -> Any:
    """Redrive entries; the answer for each."""
    chosen = [EntryId.parse(entry) for entry in entries]
    return drive.run(redrive(drive.keys, chosen, now_ms=at))


def test_puts_dead_letters_back_with_fresh_counts(engine_drive: Drive) -> None:
    """Counts begin again, the expiry is gone, the redrives are counted; id, time and other flags stay."""
    drive = engine_drive
    drive.send("r")
    entries = bury(
        drive,
        own("a", 5, 4, 3, 2, 1, flags=" x=77 w=x d=9 m=7 f=6"),
        own("b", receives=5, nacks=5),
        own("c"),
    )
    drive.redis.delete(drive.keys.wake)
    assert redriven(drive, entries[1], entries[0]) == (1, 1)
    assert drive.state() == {
        "ready": [
            own("r"),
            own("b", flags=" d=1", ready_ms=NOW),
            own("a", 5, flags=" w=x m=7 f=6 d=10", ready_ms=NOW),
        ],
        "dead": [{"envelope": own("c"), "reason": "rejected"}],
        "wake": ["1", "1"],
        "stats": {"sent": "1", "stored": "3", "redriven": "2"},
    }


def test_reports_missing_and_foreign_dead_letters(drive: Drive) -> None:
    """Nothing that no consumer could take goes back; bytes that are not ours stay where they are."""
    entries = bury(drive, "hello", '{"a": 1}', "q1 broken\n", own("a"), "q2 x\n")
    before = drive.state("dead")["dead"]
    assert redriven(drive, *entries, "5-5", "1844674407370955161-1") == (-1, -1, -1, 1, -1, 0, 0)
    assert drive.state("dead", "ready") == {
        "dead": [before[0], before[1], before[2], before[4]],
        "ready": [own("a", flags=" d=1", ready_ms=NOW)],
    }


def test_entry_named_twice_is_redriven_once(drive: Drive) -> None:
    """A message is never stored twice, however often its entry is named."""
    (entry,) = bury(drive, own("a"))
    assert redriven(drive, entry, entry) == (1, 0)
    assert redriven(drive, entry) == (0,)
    assert drive.state("ready", "stats") == {
        "ready": [own("a", flags=" d=1", ready_ms=NOW)],
        "stats": {"stored": "1", "redriven": "1"},
    }


def test_letter_without_an_envelope_stays(drive: Drive) -> None:
    """An entry that another program wrote is foreign."""
    entry = drive.redis.xadd(drive.keys.dead, {"other": own("a")}).decode()
    assert redriven(drive, entry) == (-1,)


def test_priorities_go_to_their_level(drive: Drive) -> None:
    """A redriven message keeps its priority where its level is in use, else it is at level 0."""
    drive.redis.hset(drive.keys.meta, "levels", "5")
    redriven(drive, *bury(drive, own("a", flags=" p=5"), own("b", flags=" p=6")))
    assert drive.state(*READY_PARTS) == {
        "ready": [own("b", flags=" p=6 d=1", ready_ms=NOW)],
        "ready:5": [own("a", flags=" p=5 d=1", ready_ms=NOW)],
    }


def test_hundred_dead_letters_in_one_call(drive: Drive) -> None:
    """A full call moves all."""
    entries = bury(drive, *(own(f"m{number:03d}") for number in range(101)))
    assert redriven(drive, *entries[:100]) == (1,) * 100
    assert len(drive.state("dead")["dead"]) == 1


def test_full_or_paused_queue_takes_them_back(drive: Drive) -> None:
    """Neither maxlen nor a pause refuses what was accepted once; paused for output, no receiver is woken."""
    drive.redis.hset(drive.keys.meta, mapping={"maxlen": 1, "paused": "all"})
    assert redriven(drive, *bury(drive, own("a"), own("b"))) == (1, 1)
    assert drive.state("wake") == {}
