"""No call does much at once, however large messages are and however many wait: others wait for it."""

from __future__ import annotations

from typing import Any

import pytest

from qworker.client import letters, looking
from qworker.client.commands.command import Command
from qworker.client.commands.redriving import drop, edit, redrive
from qworker.client.commands.waiting import delete, hold
from qworker.client.page_size import PageSize
from qworker.client.plan import Plan, run_plan
from qworker.client.queue import Queue
from qworker.client.scanning import scan_page
from tests.lua.drive import NOW, Drive, own

KIB = 1024


def bury(drive: Drive, number: int, size: int) -> list[str]:
    """Dead letters of this size; their entry ids."""
    body = "x" * size
    return [
        drive.redis.xadd(drive.keys.dead, {"envelope": own(f"m{each}", body=body)}).decode()
        for each in range(number)
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
        before = self.drive.redis.info("stats")["total_net_output_bytes"]
        found = self.drive.run(command)
        after = self.drive.redis.info("stats")["total_net_output_bytes"]
        self.sizes.append(after - before)
        return found


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


def test_drop_reads_letters_for_the_journal_alone(drive: Drive) -> None:
    """Without one none is read, and a call takes all; with one it ends after 1 MiB. Each is counted once."""
    entries = bury(drive, 6, 400 * KIB)
    assert drive.run(drop(drive.keys, [*entries, entries[0]], now_ms=NOW)) == (6, 7)
    drive.redis.hset(drive.keys.meta, mapping={"journal": "outcomes", "journal_epoch": 1})
    entries = bury(drive, 6, 400 * KIB)
    assert drive.run(drop(drive.keys, entries, now_ms=NOW)) == (3, 3)
    assert drive.run(drop(drive.keys, entries, now_ms=NOW)) == (3, 6)
    assert drive.stats("purged") == {"purged": 12}


def test_verbs_go_on_until_all_is_done(drive: Drive) -> None:
    """What a call leaves is asked for again: a redrive and a drop of many large letters come to their end."""
    queue = Queue(drive.client, drive.namespace, drive.keys.queue)
    entries = bury(drive, 8, 400 * KIB)
    assert queue.redrive(everything=True) == entries
    entries = bury(drive, 5, 400 * KIB)
    assert queue.redrive(*entries) == entries
    drive.redis.hset(drive.keys.meta, mapping={"journal": "outcomes", "journal_epoch": 1})
    bury(drive, 8, 400 * KIB)
    assert queue.drop_dead(everything=True) == 8
    assert drive.redis.xlen(drive.keys.dead) == 0


@pytest.mark.parametrize("verb", [hold, delete])
def test_many_items_of_a_long_list_are_taken_in_several_calls(drive: Drive, verb: Any) -> None:
    """Near an end, whichever it is, a hundred are taken at once; in the middle a call ends after some."""
    for first in range(0, 60_000, 1000):
        items = [own(f"m{number}") for number in range(first, first + 1000)]
        drive.redis.rpush(drive.keys.ready[0], *items)

    def taken(*numbers: int) -> list[bool]:
        found: list[bool] = drive.run(
            verb(drive.keys, [own(f"m{number}").encode() for number in numbers], now_ms=NOW)
        )
        return found

    assert taken(*range(40)) == [True] * 40
    assert taken(*range(59_960, 60_000)) == [True] * 40
    middle = taken(*range(30_000, 30_020))
    assert 1 <= len(middle) <= 3
    assert all(middle)
    assert {*taken(*range(30_000, 30_000 + len(middle)))} == {verb is hold}


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


def test_looks_ask_for_as_much_as_fits_a_reply(drive: Drive) -> None:
    """Messages of 400 KiB come a few at a time, of whatever state they are."""
    drive.redis.rpush(drive.keys.ready[0], *[own(f"r{n}", body="x" * 400 * KIB) for n in range(9)])
    late = {own(f"d{n}", body="x" * 400 * KIB): NOW * 10**7 + n for n in range(9)}
    drive.redis.zadd(drive.keys.delayed, late)
    bury(drive, 9, 400 * KIB)
    queue = Queue(drive.client, drive.namespace, drive.keys.queue).ref
    look = Looker(drive)
    assert look(looking.show(queue, "nope")) is None
    assert [each.id for each in look(looking.peek(queue, 9))] == [f"r{n}" for n in range(9)]
    assert [each.id for each in look(looking.peek(queue, -9))] == [
        f"r{n}" for n in range(8, -1, -1)
    ]
    assert [each.id for each in look(looking.peek(queue, 9, state="delayed"))] == [
        f"d{n}" for n in range(9)
    ]
    assert [each.message.id for each in look(letters.dead(queue, 9))] == [f"m{n}" for n in range(9)]
    assert len(look(scan_page(queue, "0", "ready", "dead")).items) == 18
    assert look(letters.tally_dead(queue)).total == 9
    assert max(look.sizes) < 1800 * KIB


def test_page_sizes_follow_what_was_seen() -> None:
    """A page begins small, grows with small messages up to its most, and shrinks to one with large ones."""
    size = PageSize(500)
    found = [size.number]
    for seen in ([100] * 4, [100] * 32, [100] * 256, [2**20, 1, 1, 1], [2**23], [], [10, 10]):
        size.saw(seen)
        found.append(size.number)
    assert found == [4, 32, 256, 500, 3, 1, 1, 8]
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
    """A repetition is answered by the entry that the first call made, as far as 8 MiB of letters behind it."""
    [entry] = bury(drive, 1, 5)
    made = drive.run(edit(drive.keys, entry, b"new", now_ms=NOW))
    bury(drive, 4, 1000 * KIB)
    assert drive.run(edit(drive.keys, entry, b"new", now_ms=NOW)) == made
    bury(drive, 6, 1500 * KIB)
    assert drive.run(edit(drive.keys, entry, b"new", now_ms=NOW)) == ""
