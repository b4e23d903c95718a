"""Unique keys: how long each is held, what replaces what, and that every end of a message frees its key."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from qworker.daemon.reaper import Reaper
from qworker.engine.claim import claim
from qworker.engine.dead import redrive
from qworker.engine.extend import split
from qworker.engine.message import ANYWHERE, cancel, delete, enqueue, hold
from qworker.engine.reap import promote, reap
from qworker.engine.receive import Suspects
from qworker.engine.remove import purge
from qworker.engine.repair import repair_unique
from qworker.engine.send import UNTIL_END, NewMessage, Sent, send
from qworker.engine.settle import Outcomes
from qworker.errors import AccessDeniedError
from qworker.wire.envelope import tail
from qworker.wire.ids import EntryId
from tests.lua.drive import NOW, Drive, guarded, own
from tests.tables import each

LATER = NOW + 3_600_000


def put(
    drive: Drive,
    *ids: str,
    held: str = UNTIL_END,
    key: str = "k",
    at: int = NOW,
    size: int = 0,
    **options: Any,
) -> Sent:
    """Send messages of one unique key, in one call. `size`: bytes of a body behind its id."""
    flags = {} if held[0] == "=" else {"u": key} | ({"l": "1"} if held[0] == "~" else {})
    flags |= options.pop("flags", {})
    group = flags.get("g", "")
    messages = [
        NewMessage(name, tail(name.encode() + b"x" * size, flags), key, held, group=group)
        for name in ids
    ]
    options = {"lane": "", "sequence": 0, **options}
    sent: Sent = drive.run(send(drive.keys, messages, now_ms=at, **options))
    return sent


def outcome(make: Callable[[Outcomes], object], at: int = NOW) -> Callable[[Drive], object]:
    """Receive the message, and settle it."""

    def end(drive: Drive) -> object:
        drive.receive("L", at=at)
        outcomes = Outcomes("L")
        make(outcomes)
        return drive.settle(outcomes, at=at)

    return end


def _tick(at: int) -> Callable[[Drive], object]:
    def end(drive: Drive) -> object:
        return Reaper(drive.client, drive.namespace).tick(at)

    return end


def _timed_out(drive: Drive) -> None:
    drive.receive("L", visibility_ms=10)
    drive.redis.hset(drive.keys.stats, "reaped_ms", NOW + 500)
    _tick(NOW + 1000)(drive)


def _cancelled(drive: Drive) -> None:
    drive.run(cancel(drive.keys, "a", 1000, now_ms=NOW))
    drive.receive("L")


def _deleted(drive: Drive) -> None:
    items = [item.encode() for item in drive.state("ready")["ready"]]
    drive.run(delete(drive.keys, items, [ANYWHERE], now_ms=NOW))


def _purged(state: str) -> Callable[[Drive], object]:
    return lambda drive: drive.run(purge(drive.keys, state, now_ms=NOW))


#: Name → options of the send, and what ends the message.
ENDS: dict[str, tuple[dict[str, Any], Callable[[Drive], object]]] = {
    "acked": ({}, outcome(lambda one: one.uniques.extend(["0", "k", "a"]))),
    "acked with effects": (
        {"flags": {"r": "1000"}},
        outcome(lambda one: one.ack_with("0", [("result", 1000, b"1")])),
    ),
    "discarded": ({}, outcome(lambda one: one.discard("0"))),
    "cancelled while it ran": ({}, outcome(lambda one: one.cancel("0"))),
    "buried": ({}, outcome(lambda one: one.bury("0", "rejected"))),
    "nacked for the last time": ({"flags": {"m": "1"}}, outcome(lambda one: one.nack("0", 0))),
    "dead with its worker": ({"flags": {"m": "1"}}, outcome(lambda one: one.crash("0"))),
    "timed out for the last time": ({"flags": {"m": "1"}}, _timed_out),
    "expired before its delivery": ({"ttl_ms": 10}, lambda drive: drive.receive("L", at=NOW + 10)),
    "expired at the head": ({"ttl_ms": 10}, _tick(LATER)),
    "expired while it was delayed": ({"ttl_ms": 10, "delay_ms": 500}, _tick(LATER)),
    "cancelled before its delivery": ({}, _cancelled),
    "deleted": ({}, _deleted),
    "purged": ({}, _purged("ready")),
    "purged while it was delayed": ({"delay_ms": 500}, _purged("delayed")),
}  # fmt: skip


@pytest.mark.parametrize("how", ENDS)
def test_every_end_frees_the_key(drive: Drive, how: str) -> None:
    """Until then it keeps others out; from then on it is nobody's."""
    options, end = ENDS[how]
    put(drive, "a", **options)
    assert put(drive, "b", at=NOW + 1).ids == ("a",)
    drive.redis.hset(f"{drive.namespace}:queues", drive.keys.queue, "1")
    end(drive)
    assert "unique" not in drive.state()
    assert put(drive, "c", at=LATER).ids == ("c",)


def _expired(drive: Drive) -> None:
    """Let the lease of the message run out."""
    drive.receive("L", visibility_ms=10)
    drive.run(reap(drive.keys, ["L"], tick_ms=1000, now_ms=NOW + 1000))


def _expired_beside_another(drive: Drive) -> None:
    put(drive, "other", key="other")
    _expired(drive)


def _claimed(drive: Drive) -> None:
    """Let another receiver take the message over, and give it back."""
    batch = drive.receive("L", visibility_ms=10)
    drive.run(claim(drive.keys, "M", [("L", batch.deadline_ms)], 1, now_ms=NOW + 1000))
    assert drive.state("unique")["unique"]["k"].startswith("a ")
    release = Outcomes("M")
    release.release("0")
    drive.settle(release)


def _split(drive: Drive) -> None:
    """Extend the message alone, and give it back."""
    drive.receive("L")
    assert drive.run(split(drive.keys, "L", "0", "M", 5000, now_ms=NOW)) == NOW + 5000
    release = Outcomes("M")
    release.release("0")
    drive.settle(release)


def _held(drive: Drive) -> None:
    """Take the message out of the queue, and put it back."""
    waiting = drive.state("ready", "delayed")
    items = [item.encode() for part in waiting.values() for item in part]
    drive.run(hold(drive.keys, items, now_ms=NOW))
    drive.run(enqueue(drive.keys, items, now_ms=NOW))


#: What brings a message back without ending it.
BACK: dict[str, Callable[[Drive], object]] = {
    "nacked": outcome(lambda one: one.nack("0", 0)),
    "nacked with a delay": outcome(lambda one: one.nack("0", 500)),
    "released": outcome(lambda one: one.release("0", 0)),
    "released with a delay": outcome(lambda one: one.release("0", 500)),
    "rate limited": outcome(lambda one: one.limit("0", 500)),
    "asleep": outcome(lambda one: one.park("0", 500, "~sleep", keep_ms=60_000)),
    "dead with its worker": outcome(lambda one: one.crash("0")),
    "dead beside others": outcome(lambda one: one.share("0")),
    "expired lease": _expired,
    "expired lease of two": _expired_beside_another,
    "claimed": _claimed,
    "extended alone": _split,
    "held": _held,
}


@pytest.mark.parametrize("ttl_ms", [0, 10_000_000])
@pytest.mark.parametrize("group", ["", "shop", "=shop"])
@each("back", BACK)
def test_message_that_comes_back_keeps_its_key(
    new_drive: Callable[[], Drive], back: str, group: str, ttl_ms: int
) -> None:
    """While it waits again and while it runs again, with and without a time to live; then its end frees it."""
    drive = new_drive()
    put(drive, "a", ttl_ms=ttl_ms, flags={"g": group} if group else {})
    BACK[back](drive)
    assert put(drive, "b", at=NOW + 1001).ids == ("a",)
    drive.run(promote(drive.keys, now_ms=LATER))
    assert put(drive, "b", at=LATER).ids == ("a",)
    batch = drive.receive("N", 9, at=LATER, suspects=Suspects.FIRST)
    index = dict(zip((item.split()[1] for item in batch.items), batch.indices, strict=True))[b"a"]
    assert put(drive, "b", at=LATER + 1).ids == ("a",)
    drive.settle(Outcomes("N", uniques=[index, "k", "a"]), at=LATER + 2)
    assert not drive.redis.exists(drive.keys.slots)
    assert put(drive, "b", at=LATER + 3).ids == ("b",)


def test_expiry_of_a_message_that_runs_does_not_free_its_key(drive: Drive) -> None:
    """It may outlast its time to live, and so does its key."""
    put(drive, "a", ttl_ms=1_000_000)
    assert drive.state("unique") == {"unique": {"k": f"a {NOW + 1_000_000}"}}
    drive.receive("L")
    assert drive.state("unique") == {"unique": {"k": f"a {2**53}"}}


@pytest.mark.parametrize("flags", [{}, {"g": "shop"}, {"g": "=shop"}])
@pytest.mark.parametrize("delay_ms", [0, 100])
def test_message_whose_key_another_took_when_it_had_expired_does_not_run(
    drive: Drive, flags: dict[str, str], delay_ms: int
) -> None:
    """Its clock is set back, and it could run again, beside the other: it stays expired."""
    put(drive, "a", ttl_ms=1000, delay_ms=delay_ms, flags=flags)
    assert put(drive, "b", at=NOW + 1000).ids == ("b",)
    _tick(NOW + 500)(drive)
    assert [item.split()[1] for item in drive.receive("L", 9, at=NOW + 500).items] == [b"b"]
    assert drive.state("unique") == {"unique": {"k": f"b {2**53}"}}
    assert drive.stats()["expired"] == 1


@pytest.mark.parametrize("flags", [{}, {"g": "shop"}])
def test_message_whose_key_was_forgotten_when_it_had_expired_takes_it_again(
    drive: Drive, flags: dict[str, str]
) -> None:
    """The clock is set back before another one asked for the key."""
    put(drive, "a", ttl_ms=1000, flags=flags)
    drive.redis.hdel(drive.keys.unique, "k")
    drive.receive("L", at=NOW + 500)
    assert drive.state("unique") == {"unique": {"k": f"a {2**53}"}}
    assert put(drive, "b", at=NOW + 2000).ids == ("a",)


@pytest.mark.parametrize("count", [1, 10])
def test_key_until_the_start_is_free_at_the_delivery(engine_drive: Drive, count: int) -> None:
    """Alone or among others; a later message has the key then: neither the end nor a retry of the first takes it."""
    drive = engine_drive
    put(drive, "a", flags={"l": "1"})
    assert put(drive, "b", flags={"l": "1"}).ids == ("a",)
    drive.receive("L", count)
    assert "unique" not in drive.state()
    assert put(drive, "c", flags={"l": "1"}).ids == ("c",)
    held = drive.state("unique")
    nacks = Outcomes("L")
    nacks.nack("0", 500)
    drive.settle(nacks)
    _tick(NOW + 1000)(drive)
    assert drive.state("unique") == held
    outcomes = Outcomes("M")
    drive.receive("M", 1, at=NOW + 1000)
    assert "unique" not in drive.state()  # c stood before the retry
    outcomes.uniques = ["0", "k", "c"]
    drive.settle(outcomes, at=NOW + 1000)


@pytest.mark.parametrize("groups", ["", "aa", "ab"])
def test_message_that_does_not_fit_in_the_batch_keeps_its_key(drive: Drive, groups: str) -> None:
    """A receive that has read it leaves it waiting: it has not started."""
    for name, group in zip("ab", groups or ["", ""], strict=True):
        flags = {"l": "1"} | ({"g": group} if group else {})
        put(drive, name, key=f"key-{name}", flags=flags, size=700_000)
    for name, kept in (("a", {"key-b"}), ("b", set())):
        (item,) = drive.receive(f"lease-{name}", 2).items
        assert item.startswith(f"q1 {name} ".encode())
        assert set(drive.state("unique").get("unique", {})) == kept


def test_key_for_a_time_outlives_its_message(drive: Drive) -> None:
    """The first one wins for so long, though it has ended; `fsck` leaves the key alone, which the reaper forgets."""
    put(drive, "a", held="=1000")
    outcome(lambda one: one.acks.append("0"))(drive)
    assert put(drive, "b", held="=1000", at=NOW + 999).ids == ("a",)
    for until_ms in (10**15, NOW):
        value = f"a {until_ms} for"
        drive.redis.hset(drive.keys.unique, "t", value)
        pairs = [(b"t", value.encode())]
        assert drive.run(repair_unique(drive.keys, pairs, [], repair=False)) == ("", [False])
    assert put(drive, "c", held="=1000", at=NOW + 1000).ids == ("c",)


class TestDebounce:
    def test_later_message_takes_the_place_of_the_waiting_one(self, engine_drive: Drive) -> None:
        """It waits anew; the other is cancelled in its favour, in the counts and in the journal too."""
        drive = engine_drive
        drive.redis.hset(drive.keys.meta, "journal", "all")
        put(drive, "x", key="other", held="~0", delay_ms=100)
        for at, name in enumerate("abc"):
            assert put(drive, name, held="~0", delay_ms=100, at=NOW + at).ids == (name,)
        due = NOW + 102
        item = own("c", NOW + 2, flags="", ready_ms=due).replace("\n", " u=k l=1\n")
        assert drive.state("delayed")["delayed"].keys() >= {item}
        assert len(drive.state("delayed")["delayed"]) == 2
        assert drive.stats("sent", "stored", "cancelled") == {
            "sent": 4,
            "stored": 2,
            "cancelled": 2,
        }
        assert drive.state("unique")["unique"]["k"] == f"c {2**53} @{due} {NOW}"
        told = "".join(entry["e1"] for entry in drive.state("journal")["journal"])
        assert [told.count(word) for word in ("sent -", "cancelled -")] == [4, 2]

    def test_postponed_no_longer_than_allowed(self, drive: Drive) -> None:
        """From the first of them on; then it is due at that time, and ready at once when that has passed."""
        for at in (0, 60, 120):
            put(drive, f"m{at}", held="~150", delay_ms=100, at=NOW + at)
        assert list(drive.state("delayed")["delayed"].values()) == [NOW + 150]
        put(drive, "last", held="~150", delay_ms=100, at=NOW + 151, priority=0)
        state = drive.state("ready", "delayed", "unique")
        assert (len(state["ready"]), "delayed" in state) == (1, False)
        # What follows begins anew.
        put(drive, "new", held="~150", delay_ms=100, at=NOW + 152)
        assert drive.state("unique")["unique"]["k"] == f"new {2**53} @{NOW + 252} {NOW + 152}"
        assert drive.stats("stored") == {"stored": 2}

    def test_message_that_is_due_or_runs_is_not_replaced(self, drive: Drive) -> None:
        """It runs with what it has; the later message waits its own time, and has the key."""
        put(drive, "a", held="~0", delay_ms=100)
        drive.redis.hset(f"{drive.namespace}:queues", drive.keys.queue, "1")
        _tick(NOW + 100)(drive)
        assert put(drive, "b", held="~0", delay_ms=100, at=NOW + 101).ids == ("b",)
        drive.receive("L", at=NOW + 102)
        assert drive.state("unique")["unique"]["k"].startswith("b ")
        assert drive.stats("stored") == {"stored": 2}

    def test_last_one_of_a_call_wins(self, drive: Drive) -> None:
        """The others are not stored; a repeated call says the same."""
        for _ in range(2):
            sent = put(drive, "a", "b", "c", held="~0", delay_ms=100, lane="l", sequence=1)
            assert (sent.ids, sent.duplicates) == (("c", "c", "c"), (0, 1))
        assert len(drive.state("delayed")["delayed"]) == 1

    def test_key_that_must_be_held_is_not_taken(self, drive: Drive) -> None:
        """By one until its end, or for a time, a message with debounce is kept out like any other."""
        put(drive, "a")
        put(drive, "t", held="=1000", key="timed")
        assert put(drive, "b", held="~0", delay_ms=100).ids == ("a",)
        assert put(drive, "b", held="~0", delay_ms=100, key="timed").ids == ("t",)

    def test_full_queue_takes_a_replacement(self, drive: Drive) -> None:
        """It takes no more room."""
        drive.redis.hset(drive.keys.meta, "maxlen", 1)
        put(drive, "a", held="~0", delay_ms=100)
        assert put(drive, "b", held="~0", delay_ms=100, at=NOW + 1).ids == ("b",)

    def test_many_of_the_same_moment_are_told_apart(self, drive: Drive) -> None:
        """Ids are compared whole, beyond the first page."""
        for number in range(150):
            put(drive, f"m{number}", held="~0", key=f"k{number}", delay_ms=100)
        put(drive, "new", held="~0", key="k1", delay_ms=100)
        items = [item.split()[1] for item in drive.state("delayed")["delayed"]]
        assert ("m1" in items, "m149" in items, len(items)) == (False, True, 150)


def test_redriven_message_takes_its_key_again(drive: Drive) -> None:
    """It keeps others out again; while another message has the key it stays dead, and its neighbours do not."""
    for name in "ab":
        put(drive, name, key=name)
        outcome(lambda one: one.bury("0", "rejected"))(drive)
    put(drive, "c", key="a")
    dead = [entry.decode() for entry, _ in drive.redis.xrange(drive.keys.dead)]
    entries = [EntryId.parse(entry) for entry in dead]
    assert drive.run(redrive(drive.keys, entries, now_ms=NOW)) == (-2, 1)
    assert put(drive, "d", key="b").ids == ("b",)
    assert drive.redis.xlen(drive.keys.dead) == 1
    drive.receive("L", 1)
    outcomes = Outcomes("L")
    outcomes.uniques = ["0", "a", "c"]
    drive.settle(outcomes)
    assert drive.run(redrive(drive.keys, entries[:1], now_ms=NOW)) == (1,)
    assert drive.state("unique") == {"unique": {"a": f"a {2**53}", "b": f"b {2**53}"}}


def test_user_who_may_not_read_messages_cannot_debounce() -> None:
    """Refused at the first message already, which replaces nothing; other keys are no matter of rights."""
    with guarded() as drive:
        drive.redis.execute_command("ACL", "SETUSER", "u", "-zrangebyscore")
        with pytest.raises(AccessDeniedError, match="role consumer"):
            put(drive, "a", held="~0", delay_ms=100)
        assert drive.state() == {}
        assert put(drive, "a").ids == ("a",)
