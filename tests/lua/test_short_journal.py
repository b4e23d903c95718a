"""The short ways of queues with a journal write the same entries as the long ways, and are taken."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final

import pytest

from qworker.engine.command import Command
from qworker.engine.journal_groups import acked_groups
from qworker.engine.receive import Batch, settle_receive
from qworker.engine.scripts import Script, load_script
from qworker.engine.send import NewMessage, send
from qworker.engine.settle import Outcomes
from qworker.wire.envelope import tail
from tests.journals import event_lines
from tests.lua.drive import NOW, Drive
from tests.lua.test_short_ways import long_way, only_short

#: Of a journal, as small as it may be.
CAP: Final = 1048576


@pytest.fixture
def pair(store_url: str, namespace: str) -> Iterator[tuple[Drive, Drive]]:
    """Two queues: one takes the short way alone, the other the long one."""
    drives = Drive(store_url, namespace, "short"), Drive(store_url, namespace, "along")
    yield drives
    for each in drives:
        each.close()


def begin(pair: tuple[Drive, Drive], mode: str, **attributes: str) -> None:
    """Give both a journal with an epoch, as a first event does."""
    for drive in pair:
        drive.redis.hset(
            drive.keys.meta, mapping={"journal": mode, "journal_epoch": "7", **attributes}
        )
        drive.redis.hset(
            drive.keys.stats,
            mapping=dict.fromkeys(("journal_entries", "journal_events", "journal_written"), "0"),
        )


def run(drive: Drive, command: Command[Any]) -> Any:
    """Run a command by the way of this queue; None if the short way is not for it."""
    assert command.script is not None
    name = command.script.name
    text = only_short(name) if drive.keys.queue == "short" else long_way(name)
    sha = drive.redis.script_load(Script(name, text).source)
    reply = drive.redis.evalsha(sha, len(command.keys), *command.keys, *command.args)
    return None if reply == b"nothing" else command.decode(reply)


def sent(drive: Drive, number: int, first: int = 0, flags: dict[str, str] | None = None) -> Any:
    """Send messages by one call of a lane that exists."""
    drive.redis.hset(drive.keys.stats, "lane:a", "1 1")
    messages = [NewMessage(f"m{at:05}", tail(b"b", flags)) for at in range(first, first + number)]
    return run(drive, send(drive.keys, messages, lane="a", sequence=first + 2, now_ms=NOW))


def received(drive: Drive, lease: str, count: int, *outcomes: Outcomes) -> Batch | None:
    """Settle and receive."""
    taken: Batch | None = run(
        drive,
        settle_receive(
            drive.keys, lease, count, outcomes=outcomes, caller="host:1", now_ms=NOW + 9
        ),
    )
    return taken


def acked(batch: Batch, *, by_index: bool = False) -> Outcomes:
    """The acks of a batch, with their events."""
    heads = [item[: item.index(b"\n") + 1] for item in batch.items]
    groups = [*acked_groups(batch.now_ms, "task", heads, [0.5] * len(heads), [0.25] * len(heads))]
    acks = list(batch.indices) if by_index else []
    return Outcomes(batch.lease_id, ack_all=not by_index, acks=acks, groups=groups)


def same(pair: tuple[Drive, Drive]) -> list[dict[str, str]]:
    """Check that both queues have the same entries and counters; returns the entries."""
    short, along = (
        (drive.redis.xrange(drive.keys.journal), drive.redis.hgetall(drive.keys.stats))
        for drive in pair
    )
    assert short == along
    return [
        {name.decode(): value.decode() for name, value in fields.items()} for _, fields in short[0]
    ]


@pytest.mark.parametrize("mode", ["all", "outcomes"])
@pytest.mark.parametrize("number", [1, 2, 100, 250, 251, 500])
def test_entries_are_those_of_the_long_way(
    pair: tuple[Drive, Drive], mode: str, number: int
) -> None:
    """Sent, delivered and acked, in as many entries and groups, whichever way a call takes."""
    begin(pair, mode)
    for drive in pair:
        assert sent(drive, number) is not None
        assert sent(drive, 3, number, flags={"p": "3"}) is not None
        batch = received(drive, "L1", number)
        assert batch is not None
        assert (batch.journal, len(batch.items)) == (True, number)
        batch = received(drive, "L2", 3, acked(batch))
        assert batch is not None
        assert (batch.settled, len(batch.items)) == ((number,), 3)
        batch = received(drive, "L3", 2, acked(batch, by_index=True))
        assert batch is not None
        assert (batch.settled, batch.items, batch.journal) == ((3,), [], True)
    events = [
        line.split()[0] for fields in same(pair) for line in event_lines(fields["e1"].encode())
    ]
    told = {"sent": number + 3, "delivered": number + 3} if mode == "all" else {}
    assert {name: events.count(name) for name in set(events)} == {"acked": number + 3, **told}


def test_a_group_over_16_kib_takes_the_long_way(pair: tuple[Drive, Drive]) -> None:
    """Nothing is written before that is known."""
    begin(pair, "all")
    short, along = pair
    long = {"k": "x" * 170}
    assert sent(short, 100, flags=long) is None
    assert short.state("ready", "journal") == {}
    for drive in pair:
        drive.redis.hset(drive.keys.meta, "journal", "outcomes")
        assert sent(drive, 100, flags=long) is not None
        drive.redis.hset(drive.keys.meta, "journal", "all")
    assert received(short, "L", 100) is None
    assert short.state("lease:L", "unacked", "journal") == {}
    assert len(short.redis.lrange(short.keys.ready[0], 0, -1)) == 100
    batch = received(along, "L", 100)
    assert batch is not None
    assert len(batch.items) == 100


def test_acks_that_counted_in_part_are_unsure(pair: tuple[Drive, Drive]) -> None:
    """And such that did not count are not told."""
    begin(pair, "outcomes")
    for drive in pair:
        sent(drive, 3)
        batch = received(drive, "L", 3)
        assert batch is not None
        key = drive.keys.lease("L")
        drive.redis.delete(key)
        drive.redis.hset(key, mapping={"1": batch.items[0], "3": batch.items[2]})
        gone = Outcomes("gone", acks=["1"], groups=[(1, b"acked - - - - -\nq1 gone 1 0 0 0 0")])
        after = received(drive, "M", 1, acked(batch, by_index=True), gone)
        assert after is not None
        assert after.settled == (2, 0)
    [entry] = same(pair)
    assert entry["e1"] == f"unsure - - - 2_of_3 -\nq1 - {NOW + 9} 0 0 0 0"
    assert (entry["n"], entry["k"]) == ("0", "1")


def test_acks_without_events_are_read_by_the_long_way(pair: tuple[Drive, Drive]) -> None:
    """Of any of the leases."""
    begin(pair, "outcomes")
    short, _ = pair
    sent(short, 2)
    batch = received(short, "L", 2)
    assert batch is not None
    told, untold = acked(batch), Outcomes("L", ack_all=True)
    for outcomes in ([untold], [told, untold], [untold, told], [Outcomes("L", acks=["0"])]):
        assert received(short, "M", 2, *outcomes) is None
        assert short.state("journal") == {}
        assert short.redis.exists(short.keys.lease("L")) == 1


@pytest.mark.slow
def test_the_oldest_entries_go_above_the_cap(pair: tuple[Drive, Drive]) -> None:
    """With every sixteenth entry, by either way."""
    begin(pair, "all", journal_cap=str(CAP))
    for drive in pair:
        for call in range(100):
            assert sent(drive, 450, 1000 * call) is not None
    entries = same(pair)
    kept = sum(len(entry["e1"]) + 64 for entry in entries)
    assert CAP / 2 < kept < CAP + 17 * 16448
    assert int(entries[0]["n"]) > 0
    assert int(entries[-1]["b"]) + len(entries[-1]["e1"]) + 64 - int(entries[0]["b"]) == kept


def test_an_epoch_behind_its_stream_is_left(pair: tuple[Drive, Drive]) -> None:
    """As after the restore of an older copy: the events are in a new epoch, and none is missing."""
    begin(pair, "all")
    for drive in pair:
        drive.redis.xadd(drive.keys.journal, {"n": "0"}, id="9-0")
        assert sent(drive, 2) is not None
        last, fields = drive.redis.xrevrange(drive.keys.journal, count=1)[0]
        epoch = drive.redis.hget(drive.keys.meta, "journal_epoch")
        assert last == epoch + b"-0"
        assert int(epoch) > 9
        assert (fields[b"n"], fields[b"k"]) == (b"0", b"2")
        counted = drive.redis.hmget(drive.keys.stats, "journal_entries", "journal_events")
        assert counted == [b"1", b"2"]


@pytest.mark.parametrize(
    "spoiled",
    [{"journal_shed": "1"}, {"journal_epoch": "x"}, {"journal_cap": "5"}],
)
def test_journals_that_need_more_care_take_the_long_way(
    pair: tuple[Drive, Drive], spoiled: dict[str, str]
) -> None:
    """One that is shed, and those whose attributes are not numbers."""
    begin(pair, "all", **spoiled)
    short, _ = pair
    assert sent(short, 2) is None
    short.redis.rpush(short.keys.ready[0], f"q1 a {NOW} 0 0 0 0\nb")
    assert received(short, "L", 2) is None
    assert short.state("lease:L", "journal") == {}


def test_a_receive_from_a_queue_with_groups_and_a_journal_takes_the_long_way(
    pair: tuple[Drive, Drive],
) -> None:
    """It records what messages waited for. A send without a group is recorded as in any queue."""
    begin(pair, "all", groups="1")
    short, _ = pair
    assert sent(short, 2) is not None
    recorded = short.state("journal")
    assert len(recorded["journal"]) == 1
    assert received(short, "L", 2) is None
    assert short.state("lease:L", "journal") == recorded


def test_the_scripts_are_those_of_callers() -> None:
    """What these tests take apart is what runs."""
    for name in ("send", "settle_receive"):
        assert load_script(name).source.count(b"local function short_journal(book)") == 1
