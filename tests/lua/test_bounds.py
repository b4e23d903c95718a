"""No call does much at once, however large messages are and however many wait: others wait for it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from qworker.client.dead import verbs
from qworker.client.inspect import peek
from qworker.client.inspect.scan import scan_page
from qworker.client.page_size import PageSize
from qworker.client.plan import Plan, run_plan
from qworker.client.queue import Queue
from qworker.engine.command import Command
from qworker.engine.dead import drop, edit, redrive
from qworker.engine.extend import extend
from qworker.engine.groups import largest
from qworker.engine.inspect import inspect
from qworker.engine.message import cancel, delete, hold, location
from qworker.engine.reap import promote, sweep
from qworker.engine.receive import settle_receive
from qworker.engine.remove import purge, revoke
from qworker.engine.repair import repair_unique
from qworker.engine.settle import Outcomes, settle
from qworker.wire.ids import EntryId
from qworker.wire.keys import QueueKeys
from tests import servers
from tests.lua.drive import NOW, Drive, own
from tests.lua.group_calls import found, put
from tests.topologies.servers import CLUSTERED

KIB = 1024
MEBIBYTE = 1024 * KIB


def bury(drive: Drive, number: int, size: int) -> list[EntryId]:
    """Dead letters of this size; their entry ids."""
    body = "x" * size
    return [
        EntryId.of_stream(drive.redis.xadd(drive.keys.dead, {"envelope": envelope}), 0)
        for envelope in (own(f"m{index}", body=body) for index in range(number))
    ]


class Looker:
    """Runs plans, and measures the replies to them in bytes."""

    def __init__(self, drive: Drive) -> None:
        self.drive = drive
        self.sizes: list[int] = []

    def __call__(self, plan: Plan[Any]) -> Any:
        return run_plan(self.execute, plan)

    def execute(self, command: Command[Any]) -> Any:
        """Execute one command of a plan."""
        before = self.drive.replied_bytes()
        ran = self.drive.run(command)
        after = self.drive.replied_bytes()
        self.sizes.append(after - before)
        return ran


@pytest.mark.slow
def test_redrive_ends_after_a_mebibyte(drive: Drive) -> None:
    """Letters behind the bound are left as they are, and are not in the reply; one is moved however large it is."""
    entries = bury(drive, 6, 400 * KIB)
    assert drive.run(redrive(drive.keys, entries, now_ms=NOW)) == (1, 1, 1)
    assert drive.redis.xlen(drive.keys.dead) == 3
    [large] = bury(drive, 1, 3000 * KIB)
    assert drive.run(redrive(drive.keys, [large, *entries[3:]], now_ms=NOW)) == (1,)
    assert drive.run(redrive(drive.keys, entries[3:], now_ms=NOW)) == (1, 1, 1)
    ids = [item.split()[1] for item in drive.state("ready")["ready"]]
    assert ids == ["m0", "m1", "m2", "m0", "m3", "m4", "m5"]


def test_drop_reads_dead_letters_only_for_the_journal(drive: Drive) -> None:
    """Without one none is read, and a call takes all; with one it ends after 1 MiB. Each is counted once."""
    entries = bury(drive, 6, 400 * KIB)
    assert drive.run(drop(drive.keys, [*entries, entries[0]], now_ms=NOW)) == (6, 7)
    drive.redis.hset(drive.keys.meta, mapping={"journal": "outcomes", "journal_epoch": 1})
    entries = bury(drive, 6, 400 * KIB)
    assert drive.run(drop(drive.keys, entries, now_ms=NOW)) == (3, 3)
    assert drive.run(drop(drive.keys, entries, now_ms=NOW)) == (3, 6)
    assert drive.stats("purged") == {"purged": 12}


def test_verbs_repeat_until_everything_is_done(drive: Drive) -> None:
    """A redrive and a drop of many large dead letters repeat their call until all are done."""
    queue = Queue(drive.client, drive.namespace, drive.keys.queue)
    entries = bury(drive, 8, 400 * KIB)
    assert queue.redrive(everything=True) == [*map(str, entries)]
    entries = bury(drive, 5, 400 * KIB)
    assert queue.redrive(*map(str, entries)) == [*map(str, entries)]
    drive.redis.hset(drive.keys.meta, mapping={"journal": "outcomes", "journal_epoch": 1})
    bury(drive, 8, 400 * KIB)
    assert queue.drop_dead(everything=True) == 8
    assert drive.redis.xlen(drive.keys.dead) == 0


def test_letters_that_are_chosen_by_id_are_dropped_in_several_calls(drive: Drive) -> None:
    """Nothing says how large they are, and the server frees them while others wait."""
    queue = Queue(drive.client, drive.namespace, drive.keys.queue)
    entries = bury(drive, 60, 10)
    assert queue.drop_dead("1-1") == 0  # The script is loaded.
    with counted(drive) as calls:
        assert queue.drop_dead(*map(str, entries), "1-1") == 60
    assert calls["evalsha"] + calls["fcall"] == 3


def test_acks_of_large_messages_are_divided(drive: Drive) -> None:
    """The server frees their bodies, and reads them for a journal: a call takes 4 MiB, or one that is larger."""
    drive.redis.rpush(
        drive.keys.ready[0], *[own(f"m{n}", body="x" * 1500 * KIB) for n in range(4)], own("m4")
    )
    queue = Queue(drive.client, drive.namespace, drive.keys.queue)
    first, *received = [message for _ in range(5) for message in queue.receive(1)]
    queue.ack(first)  # The script is loaded.
    with counted(drive) as calls:
        assert queue.ack(*received) == received
    assert calls["evalsha"] + calls["fcall"] == 2


def test_cancelled_messages_are_sought_in_four_mebibytes(drive: Drive) -> None:
    """A call looks into as many leases, from another one on each time: all are found by several calls."""
    leases = [f"L{number}" for number in range(5)]
    for number, lease in enumerate(leases):
        drive.redis.rpush(drive.keys.ready[0], own(f"m{number}", body="x" * 2200 * KIB))
        drive.receive(lease, 1)
        drive.run(cancel(drive.keys, f"m{number}", 1000, now_ms=NOW))
    told = [drive.run(extend(drive.keys, leases, 1000, now_ms=NOW + n)).cancelled for n in range(5)]
    assert [len(some) for some in told] == [2] * 5
    assert {lease for some in told for lease, _ in some} == {*leases}


def test_revoke_ends_after_a_mebibyte(drive: Drive) -> None:
    """The leases behind that stay as they are, and the removal of a queue goes on until none is left."""
    leases = [f"L{number}" for number in range(5)]
    for number, lease in enumerate(leases):
        drive.redis.rpush(drive.keys.ready[0], own(f"m{number}", body="x" * 600 * KIB))
        drive.receive(lease, 1)
    assert drive.run(revoke(drive.keys, [lease.encode() for lease in leases])) == 2
    assert drive.redis.zcard(drive.keys.unacked) == 3
    assert drive.stats("unacked") == {"unacked": 3}
    Queue(drive.client, drive.namespace, drive.keys.queue).remove()
    assert drive.state() == {}


@pytest.mark.slow
def test_largest_groups_are_sought_in_a_mebibyte(drive: Drive) -> None:
    """Of large messages a few from all over the groups are read; the first one of a group only as far as a MiB goes."""
    put(drive, *[f"{group}:{group}{n}" for group in "abcd" for n in range(16)], size=300 * KIB)
    _, small = drive.run(largest(drive.keys, 10, now_ms=NOW))
    assert [(one.name, one.waiting) for one in small] == [(group, 16) for group in "abcd"]
    with counted(drive) as calls:
        drive.run(largest(drive.keys, 10, now_ms=NOW))
    assert calls["zrange"] == 8


@pytest.mark.slow
def test_repairs_read_large_messages_up_to_eight_mebibytes(drive: Drive) -> None:
    """Their ids remain unknown then, and nothing is called lost."""
    drive.redis.rpush(drive.keys.suspect, *[own(f"m{n}", body="x" * 3000 * KIB) for n in range(5)])
    drive.redis.hset(drive.keys.slots, ":gone", "=a")
    with counted(drive) as calls:
        pairs = [(b"t", b"gone 1")]
        assert drive.run(repair_unique(drive.keys, pairs, [], repair=False))[0] == "large"
    assert calls["lrange"] == 2
    with counted(drive) as calls:
        assert "slot =a" not in found(drive, repair=False)
    assert calls["lrange"] == 2


@pytest.mark.parametrize("verb", [hold, delete])
@pytest.mark.slow
def test_many_items_of_a_long_list_are_taken_in_several_calls(drive: Drive, verb: Any) -> None:
    """Near an end, whichever it is, a hundred are taken at once; in the middle a call ends after some."""
    for first in range(0, 60_000, 1000):
        items = [own(f"m{number}") for number in range(first, first + 1000)]
        drive.redis.rpush(drive.keys.ready[0], *items)

    def taken(*numbers: int) -> list[bool]:
        removed: list[bool] = drive.run(
            verb(drive.keys, [own(f"m{number}").encode() for number in numbers], now_ms=NOW)
        )
        return removed

    assert taken(*range(40)) == [True] * 40
    assert taken(*range(59_960, 60_000)) == [True] * 40
    middle = taken(*range(30_000, 30_020))
    assert 1 <= len(middle) <= 3
    assert all(middle)
    assert {*taken(*range(30_000, 30_000 + len(middle)))} == {verb is hold}


def fill(drive: Drive, number: int) -> None:
    """Make this many messages ready, m0 at the head."""
    for first in range(0, number, 1000):
        items = [own(f"m{index}") for index in range(first, first + 1000)]
        drive.redis.rpush(drive.keys.ready[0], *items)


@pytest.mark.parametrize("verb", [hold, delete])
def test_what_was_seen_in_the_middle_is_not_looked_for(drive: Drive, verb: Any) -> None:
    """Where it still stands it is read by its place; where others came behind it, around there. Nothing is searched."""
    fill(drive, 20_000)

    def take(number: int, behind: int) -> Counter[str]:
        with counted(drive) as calls:
            command = verb(
                drive.keys, [own(f"m{number}").encode()], [location(0, behind)], now_ms=NOW
            )
            assert drive.run(command) == [True]
        return calls

    calls = take(9_999, 10_000)
    assert (calls["lindex"], calls["lrange"], calls["lpos"], calls["lrem"]) == (1, 0, 0, 1)
    calls = take(12_000, 7_999 - 900)
    assert (calls["lindex"], calls["lrange"], calls["lpos"], calls["lrem"]) == (1, 1, 0, 1)
    for number in (3, 19_990):
        calls = take(number, 19_999 - number)
        assert (calls["lindex"], calls["lrange"], calls["lpos"], calls["lrem"]) == (0, 0, 1, 1)


@pytest.mark.parametrize("verb", [hold, delete])
def test_what_has_moved_far_is_found_all_the_same(drive: Drive, verb: Any) -> None:
    """A place is a help and no condition: wrong, in another list, beyond the end, or of what is delayed."""
    fill(drive, 5_000)
    drive.redis.rpush(drive.keys.suspect, own("s"))
    drive.send("d", delay_ms=5)
    items = [own("m100"), own("m2500"), own("s"), own("m2400"), own("d", ready_ms=NOW + 5)]
    seen = [location(0, 10), location(None, 0), location(0, 10**15), location(9, 3), location(0, 2)]
    ran = drive.run(verb(drive.keys, [item.encode() for item in items], seen, now_ms=NOW))
    assert ran == [True] * 5
    left = drive.state("ready", "suspect")
    assert {*left} == {"ready"}
    assert len(left["ready"]) == 4_997


def test_many_are_held_in_one_walk(drive: Drive) -> None:
    """The queue is read once for all of them, each is taken as it is met, and the others keep their order."""
    fill(drive, 3_000)
    drive.send("d", "e", delay_ms=5)
    queue = Queue(drive.client, drive.namespace, drive.keys.queue)
    wanted = [f"m{number}" for number in (1500, 0, 2999, 1499, 2998, 1, 1600)]
    with counted(drive) as calls:
        assert queue.hold(*wanted, "not-there", "e") == [*wanted, "e"]
    assert calls["lrange"] < 25  # ten lists and the suspects, and some pages
    assert drive.state("ready")["ready"] == [
        own(f"m{number}") for number in range(3_000) if f"m{number}" not in wanted
    ]
    assert len(drive.state("delayed")["delayed"]) == 9
    with counted(drive) as calls:
        assert queue.enqueue("d", "e", "m5", *wanted) == ["d", "e", *wanted]
    assert calls["lrange"] == 0


def test_what_was_taken_from_the_middle_is_gone_alone(drive: Drive) -> None:
    """The right one of many goes, from whichever side it is found; one that is not there costs a look."""
    items = [own(f"m{number}") for number in range(5001)]
    for first in range(0, 5001, 1000):
        drive.redis.rpush(drive.keys.ready[0], *items[first : first + 1000])
    wanted = [0, 999, 1000, 1001, 2499, 2500, 2501, 4000, 5000]
    gone = [items[number].encode() for number in wanted]
    assert drive.run(delete(drive.keys, [*gone, own("other").encode()], now_ms=NOW)) == [
        *[True] * len(wanted),
        False,
    ]
    left = [item for number, item in enumerate(items) if number not in wanted]
    assert drive.state("ready")["ready"] == left


@pytest.mark.slow
def test_looks_ask_for_as_much_as_fits_a_reply(drive: Drive) -> None:
    """Messages of 400 KiB come a few at a time, of whatever state they are."""
    drive.redis.rpush(drive.keys.ready[0], *[own(f"r{n}", body="x" * 400 * KIB) for n in range(9)])
    late = {own(f"d{n}", body="x" * 400 * KIB): NOW * 10**7 + n for n in range(9)}
    drive.redis.zadd(drive.keys.delayed, late)
    bury(drive, 9, 400 * KIB)
    queue = Queue(drive.client, drive.namespace, drive.keys.queue).ref
    look = Looker(drive)
    assert look(peek.show(queue, "nope")) is None
    assert [each.id for each in look(peek.peek(queue, 9))] == [f"r{n}" for n in range(9)]
    assert [each.id for each in look(peek.peek(queue, -9))] == [f"r{n}" for n in range(8, -1, -1)]
    assert [each.id for each in look(peek.peek(queue, 9, state="delayed"))] == [
        f"d{n}" for n in range(9)
    ]
    assert [each.message.id for each in look(verbs.dead(queue, 9))] == [f"m{n}" for n in range(9)]
    assert len(look(scan_page(queue, "0", "ready", "dead")).items) == 18
    assert look(verbs.tally_dead(queue)).total == 9
    assert max(look.sizes) < 1800 * KIB


@pytest.mark.slow
def test_scan_of_large_delayed_messages_is_divided(drive: Drive) -> None:
    """A scan reads a few of the delayed messages, and then as many a call as make about a mebibyte."""
    due = {own(f"d{number}", body="x" * 200 * KIB): NOW + number for number in range(60)}
    drive.redis.zadd(drive.keys.delayed, due)
    look = Looker(drive)
    queue = Queue(drive.client, drive.namespace, drive.keys.queue).ref
    assert len(look(scan_page(queue, "0", "delayed", count=100)).items) == 60
    assert max(look.sizes) < 4 * MEBIBYTE


def test_page_sizes_follow_the_sizes_seen() -> None:
    """A page begins small, grows with small messages up to its most, and shrinks to one with large ones."""
    size = PageSize(500)
    removed = [size.number]
    for seen in ([100] * 4, [100] * 32, [100] * 256, [2**20, 1, 1, 1], [2**23], [], [10, 10]):
        size.saw(seen)
        removed.append(size.number)
    assert removed == [4, 32, 256, 500, 3, 1, 1, 8]
    assert PageSize(2).number == 2
    assert PageSize(500).limit(3) == 3


def test_receive_reads_little_more_than_it_takes(drive: Drive) -> None:
    """Of large bodies a few are read at the head, not the thirty-two of small ones; a small batch is complete."""
    drive.redis.rpush(drive.keys.ready[0], *[own(f"r{n}", body="x" * 400 * KIB) for n in range(9)])
    drive.redis.rpush(drive.keys.ready[0], *[own(f"s{n}") for n in range(100)])
    assert len(drive.receive("L", 100).items) == 2
    assert len(drive.receive("M", 1).items) == 1
    for lease in ("N", "O", "P"):
        assert len(drive.receive(lease, 2).items) == 2
    assert len(drive.receive("Q", 100).items) == 100


def test_repeated_edit_finds_its_entry_behind_large_ones(drive: Drive) -> None:
    """A repetition is answered by the entry that the first call made, as far as 8 MiB of dead letters behind it."""
    [entry] = bury(drive, 1, 5)
    made = drive.run(edit(drive.keys, entry, b"new", now_ms=NOW))
    bury(drive, 4, 1000 * KIB)
    assert drive.run(edit(drive.keys, entry, b"new", now_ms=NOW)) == made
    bury(drive, 6, 1500 * KIB)
    assert drive.run(edit(drive.keys, entry, b"new", now_ms=NOW)) is None


@contextmanager
def counted(drive: Drive) -> Iterator[Counter[str]]:
    """Count the commands that are called meanwhile, those in scripts among them."""

    def calls() -> Counter[str]:
        stats = drive.info("commandstats")
        return Counter(
            {name.removeprefix("cmdstat_"): stat["calls"] for name, stat in stats.items()}
        )

    removed: Counter[str] = Counter()
    before = calls()
    yield removed
    removed.update(calls() - before)


def called(drive: Drive, command: Command[Any]) -> list[list[str]]:
    """Run a command; the words of all that is called meanwhile, in scripts as well."""
    removed: list[list[str]] = []
    with drive.redis.monitor() as monitor:
        drive.run(command)
        drive.redis.echo("over")
        for seen in monitor.listen():
            removed.append(seen["command"].split())
            if removed[-1][0].upper() == "ECHO":
                break
    return removed


def items_read(drive: Drive, command: Command[Any]) -> list[int]:
    """Run a command; how many items each read of a range in its script asks for."""
    asked = []
    for words in called(drive, command):
        if words[0] == "LINDEX" and words[1].endswith(":ready"):
            asked.append(1)
        elif words[0] == "LRANGE":
            asked.append(int(words[3]) - int(words[2]) + 1)
        elif words[0] == "ZRANGE" and "LIMIT" in words:
            asked.append(int(words[words.index("LIMIT") + 2]))
    return asked


@pytest.mark.slow
@pytest.mark.parametrize(
    "engine",
    [
        "valkey",
        pytest.param(
            "redis", marks=pytest.mark.nightly("test_of_large_bodies_one_is_read_at_a_time")
        ),
    ],
)
def test_of_large_bodies_one_is_read_at_a_time(engine: str) -> None:
    """Receiving, purging and promoting read a first one alone, and no more where that fills the call."""
    large = [own(f"m{number}", body="x" * 2 * MEBIBYTE) for number in range(4)]
    with servers.start(engine, guarded=False) as server:
        drive = Drive(server.url, "n", "q")
        drive.redis.rpush(drive.keys.ready[0], *large)
        receive = settle_receive(drive.keys, "L", 100, now_ms=NOW)
        assert items_read(drive, receive) == [1]
        of_suspects_and_ready = items_read(drive, purge(drive.keys, "ready", now_ms=NOW))
        assert of_suspects_and_ready == [1, 1]
        drive.redis.zadd(drive.keys.delayed, dict.fromkeys(large, NOW - 1))
        assert items_read(drive, promote(drive.keys, now_ms=NOW)) == [1]
        drive.redis.delete(drive.keys.ready[0])
        drive.redis.rpush(drive.keys.ready[0], *[own(f"s{number}") for number in range(100)])
        receive = settle_receive(drive.keys, "M", 100, now_ms=NOW)
        assert items_read(drive, receive) == [1, 33, 33, 33]
        drive.close()


def test_promote_continues_after_a_large_body(drive: Drive) -> None:
    """A call of one large message says when that was due, so that it is called again; the last tells the next."""
    due = {own(f"m{number}", body="x" * 2 * MEBIBYTE): NOW + number for number in (1, 2, 50)}
    drive.redis.zadd(drive.keys.delayed, due)
    replies = [drive.run(promote(drive.keys, now_ms=NOW + 9)) for _ in range(3)]
    assert [(reply.moved, reply.next_due_ms, reply.lateness_ms) for reply in replies] == [
        (1, NOW + 1, 8),
        (1, NOW + 50, 7),
        (0, NOW + 50, 0),
    ]


@pytest.mark.slow
def test_inspect_reads_a_mebibyte(drive: Drive) -> None:
    """Of large messages only the first is read for its age, whatever else there is; the sizes are complete."""
    for level in (0, 5):
        drive.redis.rpush(
            drive.keys.ready[level],
            *[own(f"m{level}{n}", sent_ms=NOW - n, body="x" * 2 * MEBIBYTE) for n in range(12)],
        )
    with counted(drive) as calls:
        seen = drive.run(inspect(drive.keys, now_ms=NOW))
    assert calls["lindex"] == 1
    assert seen.ready_by_priority[:6] == (12, 0, 0, 0, 0, 12)
    assert seen.oldest_ready_ms == NOW


@pytest.mark.skipif(CLUSTERED, reason="a Cluster is swept with a call for each queue")
def test_sweep_ends_after_a_mebibyte_and_is_asked_again(drive: Drive) -> None:
    """The queues behind those that were read are not answered; one is, however large its head."""
    queues = [QueueKeys(drive.namespace, f"{drive.keys.queue}-{number}") for number in range(4)]
    drive.redis.hset(queues[0].meta, "test", "1")
    expired = own("m", body="x" * 700 * KIB, flags=f" x={NOW - 1}")
    for keys in queues:
        drive.redis.rpush(keys.ready[0], expired)
    _, looks = drive.run(sweep(queues, 1000, now_ms=NOW))
    assert [(look.queue, look.expired_at_head) for look in looks] == [
        (keys.queue, True) for keys in queues[:2]
    ]
    drive.redis.zadd(queues[0].delayed, {own("d", body="x" * 2 * MEBIBYTE): NOW + 5})
    _, looks = drive.run(sweep(queues, 1000, now_ms=NOW))
    assert [look.next_due_ms for look in looks] == [NOW + 5]


@pytest.mark.slow
@pytest.mark.parametrize(
    "engine",
    [
        "valkey",
        pytest.param(
            "redis",
            marks=pytest.mark.nightly("test_what_comes_back_behind_another_is_written_once"),
        ),
    ],
)
def test_what_comes_back_behind_another_is_written_once(engine: str) -> None:
    """The one at the head is written again and what comes back once: nothing large is written only to be cut off."""
    with servers.start(engine, guarded=False) as server:
        drive = Drive(server.url, "n", "q")
        for number in range(2):
            item = own(f"m{number}", NOW - 9 + number, body="x" * MEBIBYTE)
            drive.redis.rpush(drive.keys.ready[0], item)
        for lease in ("L", "M"):
            drive.receive(lease, 1)
        for lease in ("L", "M"):
            outcomes = Outcomes(lease)
            outcomes.release("0")
            words = called(drive, settle(drive.keys, [outcomes], now_ms=NOW))
        written = sum(len(word) for each in words if each[0] == "LPUSH" for word in each)
        assert 2 * MEBIBYTE < written < 2.1 * MEBIBYTE
        assert [item.split()[1] for item in drive.state("ready")["ready"]] == ["m0", "m1"]
        drive.close()
