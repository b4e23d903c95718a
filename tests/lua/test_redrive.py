"""redrive.lua: put dead letters back to the tail of ready with fresh counts, and no expiry."""

from __future__ import annotations

from typing import Any

from qworker.client.commands.redriving import redrive
from tests.lua.drive import NOW, READY_PARTS, Drive, own


def bury(drive: Drive, *items: str | bytes) -> list[str]:
    """Put items among the dead letters; their entry ids."""
    return [
        drive.redis.xadd(drive.keys.dead, {"envelope": item, "reason": "rejected"}).decode()
        for item in items
    ]


def redriven(drive: Drive, *entries: str, at: int = NOW) -> Any:
    """Redrive entries; the answer for each."""
    return drive.run(redrive(drive.keys, entries, now_ms=at))


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


def test_says_what_is_not_there_and_what_is_foreign(drive: Drive) -> None:
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
    """An entry that somebody else wrote is foreign."""
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


def test_hundred_letters_in_one_call(drive: Drive) -> None:
    """A full call moves all, one more is refused."""
    entries = bury(drive, *(own(f"m{number:03d}") for number in range(101)))
    drive.assert_refused_argument(
        [lambda: drive.call("redrive", drive.standard_keys(), NOW, *entries)]
    )
    assert redriven(drive, *entries[:100]) == (1,) * 100
    assert len(drive.state("dead")["dead"]) == 1


def test_full_or_paused_queue_takes_them_back(drive: Drive) -> None:
    """Neither maxlen nor a pause refuses what was accepted once; paused for output, nobody is woken."""
    drive.redis.hset(drive.keys.meta, mapping={"maxlen": 1, "paused": "all"})
    assert redriven(drive, *bury(drive, own("a"), own("b"))) == (1, 1)
    assert drive.state("wake") == {}


def test_words_that_are_no_entry_ids_are_refused(engine_drive: Drive) -> None:
    """Incomplete ids would name a range: only whole ones are taken."""
    drive = engine_drive
    (entry,) = bury(drive, own("a"))
    words = [
        "",
        "x",
        "-",
        "+",
        entry.partition("-")[0],
        f"({entry}",
        f"{entry} ",
        "1-2-3",
        "*",
        "5-",
        f"{2**64}-1",
        f"1-{2**64}",
    ]
    drive.assert_refused_argument(
        [
            lambda word=word: drive.call("redrive", drive.standard_keys(), NOW, entry, word)
            for word in words
        ]
        + [lambda: drive.call("redrive", drive.standard_keys(), "x", entry)]
    )
    drive.redis.hdel(drive.keys.meta, "test")
    drive.assert_refused_argument(
        [lambda: drive.call("redrive", drive.standard_keys(), NOW, entry)]
    )


def test_key_of_another_type_refuses(engine_drive: Drive) -> None:
    """A key that holds something else is named: any level, as any may be written."""
    drive = engine_drive
    (entry,) = bury(drive, own("a"))
    drive.assert_broken(
        [*READY_PARTS, "wake", "dead", "meta", "stats", "journal"],
        lambda: drive.call("redrive", drive.standard_keys(), NOW, entry),
    )
