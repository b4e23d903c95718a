"""lib/journal.lua: what became of messages, one entry of a stream per call."""

from __future__ import annotations

from typing import Any

import pytest

from qworker.client.execute.sync import Client
from qworker.client.manage.journal import lags
from qworker.client.queue import Queue
from qworker.engine.dead import drop, redrive
from qworker.engine.fire import fire
from qworker.engine.reap import promote, reap, trim
from qworker.engine.receive import Suspects
from qworker.engine.remove import purge
from qworker.engine.send import NewMessage, send
from qworker.engine.settle import Outcomes
from qworker.wire.envelope import tail
from qworker.wire.ids import EntryId
from tests import servers
from tests.journals import event_lines, groups_of, told_times
from tests.lua.drive import NOW, Drive, own
from tests.lua.group_calls import put

#: What an entry counts as beside its groups.
BESIDE = 64
TICK_MS = 1000


@pytest.fixture
def journal(drive: Drive) -> Drive:
    """A queue whose journal tells everything."""
    drive.redis.hset(drive.keys.meta, "journal", "all")
    return drive


def lines_of(drive: Drive) -> list[str]:
    """The events of the journal since it was last asked, a line each."""
    entries = drive.redis.xrange(drive.keys.journal)
    seen = getattr(drive, "seen", 0)
    drive.seen = len(entries)  # type: ignore[attr-defined]
    return [line for _, fields in entries[seen:] for line in event_lines(fields[b"e1"])]


def header(*args: Any, **kwargs: Any) -> str:
    """The header of an envelope as the journal has it."""
    return own(*args, **kwargs).partition("\n")[0][3:]


# -- entries --------------------------------------------------------------------------------------


def test_one_entry_per_call(engine_drive: Drive) -> None:
    """Entries are numbered without a gap, and so are their events; each says the bytes of all before it."""
    drive = engine_drive
    drive.redis.hset(drive.keys.meta, "journal", "all")
    drive.send("a", "b")
    drive.receive("L", 2, at=NOW + 7)
    outcomes = Outcomes("L", ack_all=True)
    drive.receive("M", 2, outcomes, at=NOW + 9)
    headers = "\nq1 a 1000000 0 0 0 0\nq1 b 1000000 0 0 0 0"
    sent = f"sent - - - - -{headers}"
    delivered = f"delivered 1000007 - - - -{headers}"
    acked = f"acked - - - - -{headers}"
    before = [0, len(sent) + BESIDE, len(sent) + len(delivered) + 2 * BESIDE]
    ids = [entry.decode() for entry, _ in drive.redis.xrange(drive.keys.journal)]
    epoch = int(ids[0].partition("-")[0])
    assert epoch // 1024 == NOW
    assert ids == [f"{epoch}-0", f"{epoch}-1", f"{epoch}-2"]
    assert drive.state("journal")["journal"] == [
        {"n": "0", "k": "2", "b": "0", "t": "1000000", "w": "", "e1": sent},
        {"n": "2", "k": "2", "b": str(before[1]), "t": "1000007", "w": "", "e1": delivered},
        {"n": "4", "k": "2", "b": str(before[2]), "t": "1000009", "w": "", "e1": acked},
    ]
    assert drive.stats("journal_entries", "journal_events", "journal_written") == {
        "journal_entries": 3,
        "journal_events": 6,
        "journal_written": before[2] + len(acked) + BESIDE,
    }


@pytest.mark.parametrize("mode", ["off", "", "ALL", "outcome", "1"])
def test_no_journal_unless_it_is_wanted(drive: Drive, mode: str) -> None:
    """Without a mode, and with one that is none, nothing is written and nothing counted."""
    drive.redis.hset(drive.keys.meta, "journal", mode)
    drive.send("a")
    assert not drive.receive("L").journal
    drive.settle(Outcomes("L", acks=[0]))
    assert drive.state("journal") == {}
    assert drive.stats("journal_entries", "journal_events") == {}


def test_outcomes_alone(drive: Drive) -> None:
    """The mode of outcomes leaves out what was sent, delivered and promoted."""
    drive.redis.hset(drive.keys.meta, "journal", "outcomes")
    drive.send("a", delay_ms=5)
    drive.run(promote(drive.keys, now_ms=NOW + 5))
    assert drive.receive("L").journal
    drive.settle(Outcomes("L", acks=[0]))
    assert lines_of(drive) == [f"acked - - - - - - {header('a', ready_ms=NOW + 5)}"]


def test_entries_end_at_16_kibibytes(journal: Drive) -> None:
    """What one call has to say goes into as many entries as it takes, none larger; the numbers continue."""
    ids = [f"m{number:04d}" for number in range(1000)]
    journal.send(*ids)
    entries = journal.state("journal")["journal"]
    assert [len(entry["e1"]) <= 16384 for entry in entries] == [True] * len(entries)
    assert len(entries) == -(-1000 * len(f"q1 {header(ids[0])}\n") // 16384)
    assert [int(entry["n"]) for entry in entries] == [
        sum(int(before["k"]) for before in entries[:number]) for number in range(len(entries))
    ]
    assert lines_of(journal) == [f"sent - - - - - - {header(message_id)}" for message_id in ids]


def test_line_over_16_kibibytes_is_cut_in_its_flags(journal: Drive) -> None:
    """However long a header is, its line has an end."""
    journal.send("a", "b", flags={"w": "x" * 20_000})
    journal.receive("L", 1)
    journal.settle(Outcomes("L", acks=[0]))
    journal.run(purge(journal.keys, "ready", now_ms=NOW))

    def cut(start: str, length: int) -> str:
        return start + "x" * (length - len(start))

    a, b = f"{header('a')} w=", f"{header('b')} w="
    assert [entry["e1"] for entry in journal.state("journal")["journal"]] == [
        cut(f"sent - - - - -\nq1 {a}", 16384),
        cut(f"sent - - - - -\nq1 {b}", 16384),
        cut(f"delivered 1000000 - - - -\nq1 {a}", 16384),
        cut(f"acked - - - - -\nq1 {a}", 16384),
        cut(f"purged - - - ready -\nq1 {b}", 16384),
    ]


def test_who_made_the_call(journal: Drive) -> None:
    """The caller of a settle or receive is recorded, shortened if it is long."""
    journal.send("a")
    arguments = [NOW, 0, 10, 1000, 1, "host:77", 0]
    journal.call("settle_receive", journal.standard_keys("L"), *arguments)
    journal.call("settle", journal.standard_keys("L"), NOW, "h" * 200, 1, "*", 0, 0, 0)
    assert [entry["w"] for entry in journal.state("journal")["journal"]] == [
        "",
        "host:77",
        "h" * 128,
    ]


# -- events ---------------------------------------------------------------------------------------


def test_settles_without_effect_are_not_recorded(journal: Drive) -> None:
    """A call that changes nothing writes nothing: an empty receive, a stale outcome, a refused send."""
    journal.receive("L")
    journal.settle(Outcomes("L", acks=[1, 2]), Outcomes("M", ack_all=True))
    journal.run(promote(journal.keys, now_ms=NOW))
    assert journal.state("journal") == {}


def test_delivered_before_its_outcome(journal: Drive) -> None:
    """Every event of a delivery has the header as it stood before: attempt and flags are those of that delivery."""
    journal.send("a", delay_ms=5, flags={"w": "t"})
    journal.run(promote(journal.keys, now_ms=NOW + 6))
    journal.receive("L", at=NOW + 7)
    outcomes = Outcomes("L")
    outcomes.nack(
        0,
        10,
        first_received_ms=NOW + 7,
        error=("my.Error é", "words"),
        times=told_times("1000007 1000008 99 a.task"),
    )
    journal.settle(outcomes, at=NOW + 8)
    first = header("a", flags=" t=1000005 w=t")
    again = header("a", receives=1, nacks=1, flags=" w=t f=1000007", ready_ms=NOW + 18)
    journal.run(promote(journal.keys, now_ms=NOW + 19))
    assert lines_of(journal) == [
        f"sent - - - - - - {first}",
        f"promoted - - - - - - {first}",
        f"delivered 1000007 - - - - - {first}",
        f"nacked 1000007 1000008 99 a.task - my.Error___ {first}",
        f"promoted - - - - - - {again}",
    ]


TOLD = "1000001 1000002 345 shop.mail"
TIMES = told_times(TOLD)


@pytest.mark.parametrize(
    ("end", "expected"),
    [
        (lambda o: o.nack(0, 0, times=TIMES), f"nacked {TOLD} - -"),
        (lambda o: o.nack(0, 0, max_receives=1, error=("E", "")), "dead - - - - max_receives E"),
        (lambda o: o.crash(0, error=("WorkerDiedError", "")), "timed_out - - - - crashed WorkerDiedError"),
        (lambda o: o.crash(0, max_receives=1, times=TIMES), f"dead {TOLD} max_receives -"),
        (lambda o: o.release(0, times=TIMES), f"released {TOLD} - -"),
        (lambda o: o.release("*", 50), "released - - - - - -"),
        (lambda o: o.share(0), "timed_out - - - - shared -"),
        (lambda o: o.bury(0, "unknown_task", ("E", "x"), times=TIMES), f"dead {TOLD} unknown_task E"),
        (lambda o: o.bury(0, "No Word"), "dead - - - - rejected -"),
        (lambda o: o.bury(0, "foreign"), "dead - - - - foreign -"),
        (lambda o: o.discard(0, times="1 - t"), "discarded 1 - - t - -"),
    ],
)  # fmt: skip
def test_outcomes(journal: Drive, end: Any, expected: str) -> None:
    """Each outcome is one event; a failure that ends in dead letters is one as well."""
    journal.send("a")
    journal.receive("L")
    lines_of(journal)
    outcomes = Outcomes("L")
    end(outcomes)
    journal.settle(outcomes, at=NOW + 5)
    assert lines_of(journal) == [f"{expected} {header('a')}"]


def test_lost_leases(journal: Drive) -> None:
    """Timeouts say whether the message was alone or in company; what dies of one is dead and nothing else."""
    journal.redis.hset(journal.keys.meta, "max_receives", 1)
    journal.send("a", "b", "c")
    journal.receive("L", 2, visibility_ms=1)
    journal.receive("M", 1, visibility_ms=1)
    lines_of(journal)
    journal.redis.hset(journal.keys.stats, "reaped_ms", NOW + 1)
    journal.redis.hset(journal.keys.lease("L"), "3", "hello")
    journal.run(reap(journal.keys, ["L", "M"], TICK_MS, now_ms=NOW + 1))
    assert lines_of(journal) == [
        f"timed_out - - - - shared - {header('a')}",
        f"timed_out - - - - shared - {header('b')}",
        "dead - - - - foreign - - 1000001 0 0 0 0",
        f"dead - - - - max_receives - {header('c')}",
    ]
    again = [
        header(name, receives=1, shared=1, first_ms=NOW + 1 - 30_000, back_ms=NOW + 1)
        for name in "ab"
    ]
    journal.receive("N", suspects=Suspects.NEVER, visibility_ms=1, at=NOW + 2)
    assert lines_of(journal) == [f"delivered 1000002 - - - - - {message}" for message in again]


def test_what_is_over_when_it_is_met(journal: Drive) -> None:
    """Expired and cancelled messages are journalled by the script that reads them: receive, promote, reap or trim."""
    journal.send("a", ttl_ms=5)
    journal.send("b")
    journal.send("c", delay_ms=9, ttl_ms=5)
    journal.redis.rpush(journal.keys.ready[0], "hello")
    lines_of(journal)
    journal.redis.zadd(journal.keys.cancelled, {"b": NOW + 99})
    journal.receive("L", at=NOW + 5)
    journal.run(promote(journal.keys, now_ms=NOW + 9))
    journal.send("d", ttl_ms=5)
    journal.send("e", ttl_ms=5)
    journal.run(trim(journal.keys, 1, now_ms=NOW + 5))
    journal.receive("M", 1, visibility_ms=1)
    journal.redis.hset(journal.keys.stats, "reaped_ms", NOW + 5)
    journal.run(reap(journal.keys, ["M"], TICK_MS, now_ms=NOW + 5))
    lines = [line for line in lines_of(journal) if line.split(" ")[0] not in ("sent", "delivered")]
    ttl = f" x={NOW + 5}"
    assert lines == [
        f"expired - - - - - - {header('a', flags=ttl)}",
        f"cancelled - - - - - - {header('b')}",
        "dead - - - - foreign - - 1000005 0 0 0 0",
        f"expired - - - - - - {header('c', flags=ttl, ready_ms=NOW + 9)}",
        f"expired - - - - - - {header('d', flags=ttl)}",
        f"expired - - - - - - {header('e', flags=ttl)}",
    ]


def test_operators(journal: Drive) -> None:
    """What was purged says of which state, and a dropped dead letter that it was dead; redriven ones what they were."""
    journal.send("a")
    journal.send("b", delay_ms=5)
    journal.redis.rpush(journal.keys.suspect, own("s", timeouts=1))
    journal.redis.rpush(journal.keys.ready[0], '{"x": 1}')
    entries = [
        journal.redis.xadd(
            journal.keys.dead, {"envelope": own(name, receives=3, nacks=3, flags=" x=1")}
        )
        for name in "defg"
    ]
    lines_of(journal)
    dead = [EntryId.of_stream(entry, 0) for entry in entries]
    assert journal.run(drop(journal.keys, [dead[0], EntryId(7, 7)], now_ms=NOW)) == (1, 2)
    journal.run(redrive(journal.keys, [dead[1]], now_ms=NOW + 3))
    journal.run(purge(journal.keys, "ready", now_ms=NOW))
    journal.run(purge(journal.keys, "delayed", now_ms=NOW))
    journal.run(purge(journal.keys, "dead", 1, now_ms=NOW))
    died = {name: header(name, receives=3, nacks=3, flags=" x=1") for name in "defg"}
    assert lines_of(journal) == [
        f"purged - - - - dead - {died['d']}",
        f"redriven - - - - - - {died['e']}",
        f"purged - - - - ready - {header('s', timeouts=1)}",
        f"purged - - - - ready - {header('a')}",
        "purged - - - - ready - - 1000000 0 0 0 0",
        f"purged - - - - ready - {header('e', flags=' d=1', ready_ms=NOW + 3)}",
        f"purged - - - - delayed - {header('b', ready_ms=NOW + 5)}",
        f"purged - - - - dead - {died['f']}",
    ]


def test_schedules(journal: Drive) -> None:
    """What a schedule sends is sent."""
    journal.redis.hset(journal.keys.schedules, "s", "spec")
    command = fire(
        journal.keys, "s", 5, b"spec", message_id="a", tail=b" w=x\nbody", ttl_ms=9, now_ms=NOW
    )
    assert journal.run(command).fired
    assert lines_of(journal) == [f"sent - - - - - - {header('a', flags=' x=1000009 w=x')}"]


def test_plain_messages_are_named_by_their_delivery(journal: Drive) -> None:
    """They have no id before, and the same one from then on."""
    journal.redis.rpush(journal.keys.ready[0], "{}", "[1]", "{}")
    journal.receive("L", 2, at=NOW + 1)
    journal.receive("M", 1, at=NOW + 1)
    outcomes = Outcomes("L", acks=[1])
    outcomes.nack(2, 0)
    journal.settle(outcomes, Outcomes("M", ack_all=True), at=NOW + 2)
    journal.receive("N", at=NOW + 3)
    assert lines_of(journal) == [
        "delivered 1000001 - - - - - L.1 1000001 0 0 0 0",
        "delivered 1000001 - - - - - L.2 1000001 0 0 0 0",
        "delivered 1000001 - - - - - M.0 1000001 0 0 0 0",
        "acked - - - - - - L.1 1000002 0 0 0 0",
        "nacked - - - - - - L.2 1000002 0 0 0 0",
        "acked - - - - - - M.0 1000002 0 0 0 0",
        f"delivered 1000003 - - - - - L.2 1000002 1 1 0 0 t={NOW + 2}",
    ]


# -- what the caller tells of its acks ------------------------------------------------------------


def acks(*ids: str, times: str = TOLD) -> list[str]:
    """The events of acked messages, a line each."""
    return [f"acked {times} - - {header(message_id)}" for message_id in ids]


def test_callers_groups_are_taken_as_they_are(journal: Drive) -> None:
    """Where all of the acks counted, the groups of the caller say so: times and task are its own."""
    ids = [f"m{number:03d}" for number in range(300)]
    journal.send(*ids)
    journal.receive("L", 300)
    lines_of(journal)
    outcomes = Outcomes(
        "L", ack_all=True, groups=groups_of(acks(*ids[:200])) + groups_of(acks(*ids[200:]))
    )
    journal.receive("M", 0, outcomes)
    assert lines_of(journal) == acks(*ids)


def test_repeated_settle_records_nothing_twice(journal: Drive) -> None:
    """A call whose reply was lost finds nothing to ack the second time."""
    journal.send("a", "b")
    journal.receive("L")
    lines_of(journal)
    outcomes = Outcomes("L", acks=[1, 2], groups=groups_of(acks("a", "b")))
    journal.receive("M", 5, outcomes)
    journal.receive("M", 5, outcomes, resume=True)
    assert lines_of(journal) == acks("a", "b")


def test_stale_acks_are_left_out(journal: Drive) -> None:
    """If each ack is settled alone, those that counted are recorded; times are known only of all together."""
    journal.send("a", "b", "c")
    journal.receive("L")
    journal.settle(Outcomes("L", acks=[2]))
    lines_of(journal)
    journal.settle(
        Outcomes("L", acks=[1, 2, 3], groups=groups_of(acks("a", "b")) + groups_of(acks("c")))
    )
    assert lines_of(journal) == acks("a", "c", times="1000001 - - shop.mail")


def test_acks_of_which_some_were_stale_are_unsure(journal: Drive) -> None:
    """A receive acks in bulk: where only some counted it tells how many, not which."""
    journal.send("a", "b", "c")
    journal.receive("L")
    journal.settle(Outcomes("L", acks=[2]))
    lines_of(journal)
    outcomes = Outcomes("L", acks=[1, 2, 3], groups=groups_of(acks("a", "b", "c")))
    journal.receive("M", 0, outcomes, at=NOW + 4)
    assert lines_of(journal) == ["unsure - - - - 2_of_3 - - 1000004 0 0 0 0"]


def test_acks_of_unique_keys(journal: Drive) -> None:
    """They are reported before the others, as they are answered."""
    journal.send("a", "b")
    journal.receive("L")
    lines_of(journal)
    outcomes = Outcomes("L", acks=[1], uniques=[2, "k", "b"])
    journal.settle(outcomes)
    assert lines_of(journal) == [f"acked - - - - - - {header(name)}" for name in "ba"]


# -- numbers that were lost -----------------------------------------------------------------------


def ids_of(drive: Drive) -> list[str]:
    """The ids of the entries."""
    return [entry.decode() for entry, _ in drive.redis.xrange(drive.keys.journal)]


def numbers_of(drive: Drive) -> list[int]:
    """The numbers of the entries, all of one epoch, which began at NOW."""
    epochs, numbers = zip(
        *(map(int, position.split("-")) for position in ids_of(drive)), strict=True
    )
    assert {epoch // 1024 for epoch in epochs} == {NOW}
    assert len(set(epochs)) == 1
    return [*numbers]


def test_deleted_journal_keeps_counting(journal: Drive) -> None:
    """What is missing at the beginning shows."""
    journal.send("a")
    journal.redis.delete(journal.keys.journal)
    journal.send("b", at=NOW + 5)
    assert numbers_of(journal) == [1]
    assert journal.state("journal")["journal"][0]["n"] == "1"


@pytest.mark.parametrize("lost", ["journal_entries", "journal_events", "journal_written"])
@pytest.mark.parametrize("value", [None, "x", "-1", "1.5"])
def test_lost_counters_begin_a_new_epoch(journal: Drive, lost: str, value: str | None) -> None:
    """A later epoch, and numbers from 0 again; the bytes continue from what the stream says."""
    journal.send("a")
    written = len(f"sent - - - - -\nq1 {header('a')}") + BESIDE
    if value is None:
        journal.redis.hdel(journal.keys.stats, lost)
    else:
        journal.redis.hset(journal.keys.stats, lost, value)
    journal.send("b")
    journal.send("c", at=NOW - 9)
    first, second, third = (position.split("-") for position in ids_of(journal))
    assert int(second[0]) > int(first[0])
    assert (second[1], third) == ("0", [second[0], "1"])
    assert [(entry["n"], entry["b"]) for entry in journal.state("journal")["journal"]] == [
        ("0", "0"),
        ("0", str(written)),
        ("1", str(2 * written)),
    ]
    assert journal.redis.hget(journal.keys.meta, "journal_epoch") == second[0].encode()


@pytest.mark.bad_input("data found: nonsense in other tables")
def test_stream_newer_than_the_counters_begins_a_new_epoch(engine_drive: Drive) -> None:
    """An id that the stream refuses is not tried again: a later epoch than any it has seen."""
    drive = engine_drive
    drive.redis.hset(drive.keys.meta, "journal", "all")
    drive.send("a")
    later = 2_000_000 * 1024
    drive.redis.xadd(drive.keys.journal, {"not": "ours"}, id=f"{later}-5")
    drive.send("b", at=NOW + 7)
    assert ids_of(drive)[1:] == [f"{later}-5", f"{later + 1}-0"]
    drive.redis.delete(drive.keys.stats)
    drive.redis.xtrim(drive.keys.journal, maxlen=0)
    drive.send("c", at=3_000_000)
    (position,) = ids_of(drive)
    assert int(position.removesuffix("-0")) // 1024 == 3_000_000


def test_lost_epoch_starts_a_new_one(journal: Drive) -> None:
    """Without the epoch in meta no number is used twice either."""
    journal.send("a")
    journal.redis.hdel(journal.keys.meta, "journal_epoch")
    journal.send("b")
    first, second = (int(position.removesuffix("-0")) for position in ids_of(journal))
    assert second > first


def test_no_journal_has_the_epoch_of_one_before(journal: Drive) -> None:
    """Made again, in the same ms by a clock that was set back: another epoch, as other messages have other ids."""
    seen = set()
    for number in range(8):
        journal.send(f"m{number}")
        seen.add(ids_of(journal)[-1])
        journal.redis.delete(journal.keys.journal, journal.keys.stats)
        journal.redis.hdel(journal.keys.meta, "journal_epoch")
    assert len(seen) > 4  # 10 bits are drawn


# -- bounds ---------------------------------------------------------------------------------------


def fill(drive: Drive, entries: int, size: int = 15_000) -> None:
    """Write entries of about a size."""
    for _ in range(entries):
        drive.send("m", flags={"w": "x" * size})


def test_journal_is_trimmed_to_its_cap(engine_drive: Drive) -> None:
    """Every sixteenth entry the oldest go, so that what is left fits the cap exactly."""
    drive = engine_drive
    drive.redis.hset(drive.keys.meta, mapping={"journal": "all", "journal_cap": 2**20})
    fill(drive, 79)
    size = len(f"sent - - - - -\nq1 {header('m')} w=") + 15_000 + BESIDE
    fits = 2**20 // size
    assert fits < 79
    assert len(ids_of(drive)) == 79
    fill(drive, 1)
    assert numbers_of(drive) == [*range(80 - fits, 80)]
    fill(drive, 15)
    assert len(ids_of(drive)) == fits + 15
    fill(drive, 1)
    assert len(ids_of(drive)) == fits


@pytest.mark.slow
def test_lowered_cap_trims_a_thousand_entries_a_call(journal: Drive) -> None:
    """A journal that is far over its cap gets there in steps."""
    journal.redis.hset(journal.keys.meta, "journal_cap", 2**40)
    content = tail(b"m", {"w": "x" * 900})
    messages = [NewMessage(f"m{number:04d}", content) for number in range(1599)]
    journal.client.execute_each(
        [send(journal.keys, [each], lane="", sequence=0, now_ms=NOW) for each in messages]
    )
    journal.redis.hset(journal.keys.meta, "journal_cap", 2**20)
    size = len(f"sent - - - - -\nq1 {header('m0000')} w=") + 900 + BESIDE
    fits = 2**20 // size
    journal.send("m1599", flags={"w": "x" * 900})
    assert len(ids_of(journal)) == max(600, fits)


@pytest.mark.slow
def test_entries_of_older_epochs_and_of_others_go_first(journal: Drive) -> None:
    """What does not count as ours, or cannot be counted on, does not keep the journal over its cap."""
    journal.redis.hset(journal.keys.meta, "journal_cap", 2**20)
    journal.redis.xadd(journal.keys.journal, {"not": "ours"}, id="5-5")
    fill(journal, 70)
    journal.redis.hdel(journal.keys.stats, "journal_entries")
    fill(journal, 16)
    epoch = ids_of(journal)[-1].partition("-")[0]
    size = len(f"sent - - - - -\nq1 {header('m')} w=") + 15_000 + BESIDE
    assert len(ids_of(journal)) == 2**20 // size
    fill(journal, 64)
    assert {position.partition("-")[0] for position in ids_of(journal)} == {epoch}


@pytest.mark.bad_input("data found: nonsense in meta")
@pytest.mark.parametrize("cap", ["x", "1", "1e99", ""])
def test_cap_that_is_none_is_the_default(journal: Drive, cap: str) -> None:
    """64 MiB unless it is a size in its range."""
    journal.redis.hset(journal.keys.meta, "journal_cap", cap)
    fill(journal, 80)
    assert len(ids_of(journal)) == 80


def test_shed_journal_counts_and_does_not_write(journal: Drive) -> None:
    """While it is shed events are counted: the gap shows in the numbers of the next ones, not in the entries."""
    journal.send("a")
    journal.redis.hset(journal.keys.meta, "journal_shed", "1")
    assert not journal.receive("L").journal
    journal.send("b", "c")
    journal.receive("M")
    journal.settle(
        Outcomes("L", acks=[0]), Outcomes("M", acks=[1, 9], groups=groups_of(acks("b", "x")))
    )
    other = Outcomes("M")
    other.nack(2, 0)
    journal.receive("N", 0, other)
    journal.redis.hdel(journal.keys.meta, "journal_shed")
    journal.run(purge(journal.keys, "ready", now_ms=NOW))
    entries = journal.state("journal")["journal"]
    assert numbers_of(journal) == [0, 1]
    # a delivered; b and c sent and delivered; a and b acked; c nacked
    assert [entry["n"] for entry in entries] == ["0", "9"]


@pytest.mark.parametrize("lost", ["journal_epoch", "journal_events"])
def test_shed_journal_without_an_epoch_counts_too(journal: Drive, lost: str) -> None:
    """A counter was lost meanwhile: a new epoch begins, whose first entry tells of the gap before it."""
    journal.send("a")
    journal.redis.hset(journal.keys.meta, "journal_shed", "1")
    journal.redis.hdel(journal.keys.meta if lost == "journal_epoch" else journal.keys.stats, lost)
    journal.send("b")
    assert int(journal.redis.hget(journal.keys.stats, "journal_events")) == 1
    journal.redis.hdel(journal.keys.meta, "journal_shed")
    journal.send("c")
    (_, first), (_, second) = journal.redis.xrange(journal.keys.journal)
    assert first[b"n"] == b"0"
    assert second[b"n"] == b"1"


# -- trouble --------------------------------------------------------------------------------------


def test_journal_of_another_type_refuses_every_call(journal: Drive) -> None:
    """Before anything is written, whatever the mode is."""
    key = journal.keys.journal
    journal.redis.set(key, "other")
    for mode in ("all", "off"):
        journal.redis.hset(journal.keys.meta, "journal", mode)
        reply = journal.call("settle", journal.standard_keys(), NOW, "", 0)
        assert reply == ["BROKEN", key, "string"]


def test_journal_that_cannot_be_written_does_not_fail_the_call(journal: Drive) -> None:
    """The change is done by then: the reply says that it is degraded, and the gap shows."""
    journal.send("a", "b")
    journal.redis.xadd(journal.keys.journal, {"not": "ours"}, id=f"{2**64 - 1}-{2**64 - 1}")
    batch = journal.receive("L")
    assert (len(batch.items), batch.degraded) == (2, True)
    assert journal.state("lease:L") == {"lease:L": {"1": own("a"), "2": own("b")}}
    journal.redis.delete(journal.keys.journal)
    batch = journal.receive("M", 0, Outcomes("L", ack_all=True))
    assert not batch.degraded


def test_full_server_settles_with_a_journal() -> None:
    """Over maxmemory a queue with a journal is drained anyway."""
    for engine, _ in servers.engines():
        with servers.start(engine) as server:
            drive = Drive(server.url, "n", "q")
            drive.redis.hset(drive.keys.meta, "journal", "all")
            drive.send("a")
            drive.redis.config_set("maxmemory", 1)
            drive.receive("L")
            assert drive.settle(Outcomes("L", acks=[0])).counted == (True,)
            drive.close()


# -- readers --------------------------------------------------------------------------------------


def test_readers_say_how_far_they_are(client: Client, journal: Drive) -> None:
    """Their lag is counted in bytes that they have not read, and in entries that they never will."""
    journal.redis.hset(journal.keys.meta, "journal_cap", 2**20)
    fill(journal, 3)
    size = len(f"sent - - - - -\nq1 {header('m')} w=") + 15_000 + BESIDE
    queue = Queue(client, journal.namespace, journal.keys.queue)
    epoch = int(ids_of(journal)[0].partition("-")[0])
    for name, entry in (("done", 2), ("behind", 0)):
        queue.advance_reader(name, epoch, entry)
    queue.register_reader("new")
    queue.register_reader("done")
    journal.redis.hset(journal.keys.readers, "rubbish", "x")
    readers = queue.readers()
    assert [(reader.name, reader.epoch, reader.entry) for reader in readers] == [
        ("behind", epoch, 0),
        ("done", epoch, 2),
        ("new", 0, 0),
    ]
    assert readers[0].seen_ms > 1_700_000_000_000

    def behind() -> dict[str, tuple[int, int]]:
        return {
            each.reader.name: (each.unread_bytes, each.missed)
            for each in client.run(lags(journal.keys))
        }

    assert behind() == {"behind": (2 * size, 0), "done": (0, 0), "new": (3 * size, 0)}
    journal.redis.xtrim(journal.keys.journal, maxlen=1)
    assert behind() == {"behind": (size, 1), "done": (0, 0), "new": (size, 0)}


def test_what_a_message_of_a_group_has_waited_for(journal: Drive) -> None:
    """Told when it is received, if it waited: its group's limit, that of the parent, or its turn."""
    drive = journal
    words = {"slow": "r=1/1000 b=1", "one": "c=1", "t/": "c=1", "u/": "r=1/1000 b=1"}
    drive.redis.hset(drive.keys.limits, mapping=words)
    messages = [
        f"{group}:{group[0]}{n}"
        for group in ("slow", "one", "t/a", "u/a", "free")
        for n in range(2)
    ]
    put(drive, *messages, "plain")
    put(drive, "young:y", at=NOW + 4990)
    drive.receive("L", at=NOW + 5000)
    reasons = {}
    for line in lines_of(drive):
        event, *_, reason, _, message_id = line.split(" ")[:8]
        if event == "delivered":
            reasons[message_id] = reason
    assert reasons == {
        "s0": "rate",
        "o0": "concurrency",
        "t0": "parent_concurrency",
        "u0": "parent_rate",
        "f0": "turn",
        "f1": "turn",
        "y": "-",
        "plain": "-",
    }
