"""The repair scripts: the problems that each detects, repairs and refuses; tests/fsck has the whole."""

from __future__ import annotations

from typing import Any

import pytest

from tests.lua.drive import NOW, Drive, own

DAY_MS = 86_400_000


def mend(drive: Drive, script: str, *words: str | int, lease: str = "", repair: int = 1) -> Any:
    """Call a script over the standard keys; the problem."""
    keys = drive.standard_keys(*([lease] if lease else []))
    reply = drive.call(script, keys, NOW, repair, *words)
    return reply[2] if reply[0] == "OK" else reply


@pytest.mark.bad_input("data found: messages without a place")
def test_an_orphan_lease_gets_the_deadline_of_a_receive_now(engine_drive: Drive) -> None:
    """Its messages stay in it, and any holder of the receipt may settle them."""
    drive = engine_drive
    drive.redis.hset(drive.keys.meta, "visibility_ms", 5000)
    drive.redis.hset(drive.keys.lease("L"), "0", own("a"))
    assert mend(drive, "repair_lease", "L", lease="L", repair=0) == "no_deadline"
    assert "unacked" not in drive.state()
    assert mend(drive, "repair_lease", "L", lease="L") == "no_deadline"
    assert drive.state("unacked") == {"unacked": {"L": NOW + 5000}}
    assert mend(drive, "repair_lease", "L", lease="L") == ""


@pytest.mark.parametrize(
    ("score", "problem"),
    [
        (0, ""),
        (NOW + 46_800_000, ""),
        (NOW + 46_800_001, "deadline"),
        (-1, "deadline"),
        ("+inf", "deadline"),
    ],
)
def test_a_deadline_is_at_most_12_hours_away_and_an_hour_of_clocks(
    drive: Drive, score: Any, problem: str
) -> None:
    """Beyond that no reaper would take the messages back in time."""
    drive.redis.hset(drive.keys.lease("L"), "0", own("a"))
    drive.redis.zadd(drive.keys.unacked, {"L": score})
    assert mend(drive, "repair_lease", "L", lease="L") == problem
    expected = NOW + 30_000 if problem else score
    assert drive.state("unacked") == {"unacked": {"L": expected}}


def test_a_deadline_of_nothing_goes(drive: Drive) -> None:
    """Nothing else is touched."""
    drive.redis.zadd(drive.keys.unacked, {"L": NOW, "M": NOW})
    assert mend(drive, "repair_lease", "L", lease="L") == "no_messages"
    assert drive.state() == {"unacked": {"M": NOW}}


def test_what_cannot_be_a_lease_is_buried(drive: Drive) -> None:
    """Its bytes are kept."""
    drive.redis.zadd(drive.keys.unacked, {"hello world": NOW})
    assert mend(drive, "repair_lease", "hello world") == "no_lease"
    assert [entry["envelope"] for entry in drive.state()["dead"]] == ["hello world"]
    assert "unacked" not in drive.state()


@pytest.mark.bad_input("data found: messages without a place")
def test_messages_of_an_unnamed_lease_go_to_ready_by_their_priority(drive: Drive) -> None:
    """What is not a message is buried; one call moves 500 at most."""
    key = drive.keys.lease("a b")
    fields = {str(n): own(f"m{n:03}") for n in range(1, 502)}
    drive.redis.hset(drive.keys.meta, "levels", "5")
    drive.redis.hset(key, mapping={**fields, "1": own("p", flags=" p=5"), "2": "hello", "3": "{}"})
    assert mend(drive, "repair_lease", "a b", lease="a b") == "unnamed"
    state = drive.state()
    assert state["ready:5"] == [own("p", flags=" p=5")]
    assert state["ready"][:2] == ["{}", own("m004")]
    assert [entry["envelope"] for entry in state["dead"]] == ["hello"]
    assert state["lease:a b"] == {"501": own("m501")}
    assert state["wake"] == ["1"] * 8
    assert drive.stats("unacked", "stored", "dead") == {"unacked": -500, "stored": -2, "dead": 1}


def test_a_foreign_item_is_buried_where_it_still_stands(drive: Drive) -> None:
    """The one nearest to the tail goes; what has been taken meanwhile is not a problem."""
    drive.redis.rpush(drive.keys.ready[0], "x", "{}", "x", own("a"))
    assert mend(drive, "repair_item", "0", "", "", "x", repair=0) == "foreign"
    assert mend(drive, "repair_item", "0", "", "", "x") == "foreign"
    assert drive.state("ready") == {"ready": ["x", "{}", own("a")]}
    assert drive.stats() == {"dead": 1, "dead:foreign": 1}
    for fine in ("{}", own("a"), "gone"):
        assert mend(drive, "repair_item", "0", "", "", fine) == ""


def test_the_last_item_of_a_lease_takes_the_deadline_with_it(drive: Drive) -> None:
    """As if it had been settled, in the counters too."""
    drive.redis.hset(drive.keys.lease("L"), "0", "x")
    drive.redis.zadd(drive.keys.unacked, {"L": NOW})
    assert mend(drive, "repair_item", "lease", 1, "0", "y", lease="L") == ""
    assert mend(drive, "repair_item", "lease", 1, "0", "x", lease="L") == "foreign"
    assert set(drive.state()) == {"dead", "stats"}
    assert drive.stats("unacked", "stored") == {"unacked": -1, "stored": -1}


@pytest.mark.parametrize(
    ("score", "problem"), [(0, ""), (2**53, ""), (-1, "score"), ("+inf", "score")]
)
def test_an_impossible_due_time_is_now(drive: Drive, score: Any, problem: str) -> None:
    """Held messages (2^53) stay held."""
    drive.redis.zadd(drive.keys.delayed, {own("a"): score})
    assert mend(drive, "repair_item", "delayed", "", "", own("a")) == problem
    assert drive.state("delayed") == {"delayed": {own("a"): NOW if problem else score}}


def test_a_dead_letter_gets_an_envelope_of_all_it_says(drive: Drive) -> None:
    """An entry that has one, even an empty one, stays."""
    empty = drive.redis.xadd(drive.keys.dead, {"envelope": ""}).decode()
    entry = drive.redis.xadd(drive.keys.dead, {"a": "b", "c": "d"}).decode()
    assert mend(drive, "repair_item", "dead", "", empty, "") == ""
    assert mend(drive, "repair_item", "dead", "", entry, "") == "letter"
    assert [dead_letter["envelope"] for dead_letter in drive.state()["dead"]] == ["", "a b c d"]
    assert mend(drive, "repair_item", "dead", "", entry, "") == ""
    assert drive.stats() == {}


@pytest.mark.bad_input("data found: a message in two places")
def test_the_second_copy_goes_and_another_message_is_buried(drive: Drive) -> None:
    """Only where both still stand; the same location is not a second one."""
    drive.redis.rpush(drive.keys.ready[0], own("a"))
    drive.redis.zadd(drive.keys.delayed, {own("a", receives=1): NOW, own("a", body="b"): NOW})
    ready = ("0", "", "", own("a"))
    assert mend(drive, "repair_twice", *ready, *ready) == ""
    assert mend(drive, "repair_twice", *ready, "delayed", "", "", own("a", receives=2)) == ""
    assert mend(drive, "repair_twice", *ready, "delayed", "", "", own("a", receives=1)) == "copy"
    assert mend(drive, "repair_twice", *ready, "delayed", "", "", own("a", body="b")) == "other"
    state = drive.state()
    assert state["ready"] == [own("a")]
    assert "delayed" not in state
    (dead_letter,) = state["dead"]
    assert dead_letter["reason"] == "duplicate"
    head, _, body = dead_letter["envelope"].partition("\n")
    assert (body, head.split()[1][:2], len(head.split()[1])) == ("b", "a.", 12)
    assert drive.stats("stored") == {"stored": -2}


@pytest.mark.bad_input("data found: the same item twice")
def test_equal_items_of_a_list_are_two(drive: Drive) -> None:
    """One stays."""
    drive.redis.rpush(drive.keys.suspect, own("a"), own("a"))
    location = ("suspect", "", "", own("a"))
    assert mend(drive, "repair_twice", *location, *location) == "copy"
    assert mend(drive, "repair_twice", *location, *location) == ""
    assert drive.state("suspect") == {"suspect": [own("a")]}


def test_a_location_does_not_count_as_its_own_duplicate(drive: Drive) -> None:
    """Nothing goes, nor where one of the two is not a message of ours."""
    drive.redis.zadd(drive.keys.delayed, {own("a"): NOW, "{}": NOW})
    drive.redis.hset(drive.keys.lease("L"), mapping={"1": own("b"), "2": own("b")})
    drive.redis.zadd(drive.keys.unacked, {"L": NOW})
    before = drive.state()
    delayed, lease = ("delayed", "", "", own("a")), ("lease", 1, "1", own("b"))
    plain = ("delayed", "", "", "{}")
    for locations in ((delayed, delayed), (lease, lease), (delayed, plain), (plain, delayed)):
        words = [word for location in locations for word in location]
        assert mend(drive, "repair_twice", *words, lease="L") == ""
    assert drive.state() == before
    assert mend(drive, "repair_twice", *lease, "lease", 1, "2", own("b"), lease="L") == "copy"
    assert drive.state()["lease:L"] == {"1": own("b")}


def test_a_queue_of_large_messages_is_not_read_for_unique_keys(drive: Drive) -> None:
    """8 MiB are read at most; 100 keys are read in one call."""
    drive.redis.rpush(drive.keys.ready[0], *[own(f"m{n}", body="x" * 2**20) for n in range(7)])
    pairs = ["k", "v"] * 100
    assert mend(drive, "repair_unique", *pairs) == ""
    drive.redis.rpush(drive.keys.suspect, *[own(f"s{n}", body="x" * 2**20) for n in range(2)])
    assert mend(drive, "repair_unique", *pairs) == "large"


def test_lanes_are_forgotten_or_dated(drive: Drive) -> None:
    """A lane that is used stays as it is."""
    lanes = {
        "a": f"1 {NOW}",
        "b": f"1 {NOW + 3_600_001} 1 x",
        "c": "x",
        "d": f"1 {NOW + 3_600_000}",
    }
    drive.redis.hset(drive.keys.producers, mapping=lanes)
    keys = (drive.keys.producers, drive.keys.meta)
    results = {lane: drive.call("repair_lane", keys, NOW, 1, lane)[2] for lane in "abcde"}
    assert results == {"a": "", "b": "future", "c": "unreadable", "d": "", "e": ""}
    assert drive.state("producers")["producers"] == {
        "a": f"1 {NOW}",
        "b": f"1 {NOW} 1 x",
        "d": f"1 {NOW + 3_600_000}",
    }


def test_a_key_is_renamed_or_kept_for_good(drive: Drive) -> None:
    """What stands in the way is not overwritten; a key that is not there is right."""
    keys = (drive.base + "ready", drive.base + "aside:ready:1", drive.keys.meta)
    assert drive.call("repair_key", keys, NOW, 1, "list") == ["OK", str(NOW), "", ""]
    drive.redis.set(keys[0], "x")
    drive.redis.set(keys[1], "y")
    assert drive.call("repair_key", keys, NOW, 0, "list")[2:] == ["type", "string"]
    assert drive.call("repair_key", keys, NOW, 1, "list") == ["ARG", "aside"]
    assert drive.state() == {"ready": "x", "aside:ready:1": "y"}
    drive.redis.delete(keys[1])
    assert drive.call("repair_key", keys, NOW, 1, "list")[2:] == ["type", "string"]
    assert drive.state() == {"aside:ready:1": "x"}
    drive.redis.rpush(keys[0], "{}")
    drive.redis.expire(keys[0], 100)
    assert drive.call("repair_key", keys, NOW, 0, "list")[2] == "expiry"
    assert drive.redis.ttl(keys[0]) > 0
    assert drive.call("repair_key", keys, NOW, 1, "list")[2] == "expiry"
    assert drive.redis.ttl(keys[0]) == -1


def test_the_counters_are_corrected(engine_drive: Drive) -> None:
    """Each with what stood there and what should; a number that the scripts can live with stays."""
    drive = engine_drive
    drive.redis.hset(drive.keys.meta, "journal", "all")
    drive.send("a", "b", "c")
    drive.receive("L", 1)
    drive.redis.rpush(drive.keys.ready[3], own("z", flags=" p=3"))
    wrong = {"stored": 9, "unacked": "x", "sent": "many", "journal_entries": 0, "journal_events": 2}
    drive.redis.hset(drive.keys.stats, mapping=wrong)
    last = drive.redis.xrevrange(drive.keys.journal, count=1)[0][0].decode()
    epoch = last.partition("-")[0]
    expected = ["sent", "many", "", "unacked", "x", "1", "stored", "9", "4", "level", "", "3"]
    expected += ["journal", f"{epoch}-0", last]
    before = drive.state()
    assert drive.call("repair_counters", drive.standard_keys("L"), NOW, 0)[2:] == [0, *expected]
    assert drive.state() == before
    assert drive.call("repair_counters", drive.standard_keys("M"), NOW, 0)[2] == 1
    assert drive.call("repair_counters", drive.standard_keys("L"), NOW, 1)[2:] == [0, *expected]
    assert drive.call("repair_counters", drive.standard_keys("L"), NOW, 1)[2:] == [0]
    state = drive.state()
    assert state["meta"]["levels"] == "3"
    assert {**before["stats"], **state["stats"]} == {
        **before["stats"],
        "stored": "4",
        "unacked": "1",
        "journal_entries": "2",
        "journal_events": "4",
    }
    drive.send("d")
    assert drive.redis.xrevrange(drive.keys.journal, count=1)[0][0].decode() == f"{epoch}-2"


def test_unique_keys_are_freed_only_when_nothing_holds_them(drive: Drive) -> None:
    """Wherever the holder stands it is found; with other leases than those named nothing is said."""
    held = {part: f"{part[:2]} {NOW + DAY_MS}" for part in ("ready", "suspect", "delayed", "lease")}
    drive.redis.hset(drive.keys.unique, mapping={**held, "gone": f"xx {NOW}", "bad": "?"})
    drive.redis.rpush(drive.keys.ready[9], own("re"))
    drive.redis.rpush(drive.keys.suspect, own("su"))
    drive.redis.zadd(drive.keys.delayed, {own("de"): NOW})
    drive.redis.hset(drive.keys.lease("L"), "1", own("le"))
    drive.redis.zadd(drive.keys.unacked, {"L": NOW})
    pairs = [word for pair in drive.state()["unique"].items() for word in pair]
    assert mend(drive, "repair_unique", *pairs) == "busy"
    assert mend(drive, "repair_unique", *pairs, lease="M") == "busy"
    assert mend(drive, "repair_unique", *pairs, "gone", f"yy {NOW}", lease="L") == ""
    assert drive.state()["unique"] == held
    drive.redis.rpush(drive.keys.ready[0], *["{}"] * 10_001)
    assert mend(drive, "repair_unique", *pairs, lease="L") == "large"
