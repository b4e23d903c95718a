"""poll.lua: which of several queues have messages to receive."""

from __future__ import annotations

import uuid

import pytest

from qworker.engine.poll import Available, glance, poll
from qworker.wire.keys import QueueKeys
from tests.lua.drive import Drive, own


def others(drive: Drive, number: int) -> list[QueueKeys]:
    """Queues that do not exist, of the same name in other namespaces: in a Cluster in the same slot."""
    return [QueueKeys(f"n{uuid.uuid4().hex[:8]}", drive.keys.queue) for _ in range(number)]


def test_all_levels_and_the_suspects_are_reported(engine_drive: Drive) -> None:
    """Of each queue that can give something: its place, its ready messages, its suspects."""
    drive = engine_drive
    drive.send("a", "b")
    drive.send("c", priority=9)
    drive.send("d", delay_ms=50)
    drive.redis.rpush(drive.keys.suspect, own("e"))
    before, behind = others(drive, 12), others(drive, 12)
    assert drive.run(poll([*before, drive.keys, *behind])).available == {12: Available(3, 1)}
    assert drive.run(poll([drive.keys])).available == {0: Available(3, 1)}
    assert drive.run(poll([])).available == {}


def test_levels_that_are_not_in_use_are_not_received_from(drive: Drive) -> None:
    """What stands where no receive looks is not told: it would be asked for in vain, again and again."""
    drive.redis.rpush(drive.keys.ready[3], own("a"))
    assert drive.run(poll([drive.keys])).available == {}


@pytest.mark.parametrize(
    ("paused", "expected"), [("out", {}), ("all", {}), ("in", {0: Available(1, 0)})]
)
def test_a_queue_whose_output_is_paused_gives_nothing(
    drive: Drive, paused: str, expected: dict[int, Available]
) -> None:
    """A pause of what goes out hides the queue's messages; one of what comes in does not."""
    drive.send("a")
    drive.redis.hset(drive.keys.meta, "paused", paused)
    assert drive.run(poll([drive.keys])).available == expected


@pytest.mark.parametrize("part", ["ready", "suspect", "wake", "meta"])
def test_a_key_of_another_type_is_named_and_harms_no_other_queue(drive: Drive, part: str) -> None:
    """The queue is reported as broken, with its key, and the next one is counted."""
    drive.send("a")
    [broken] = others(drive, 1)
    drive.redis.rpush(broken.ready[0], own("b"))
    key = broken.meta.removesuffix("meta") + part
    drive.redis.delete(key)
    drive.redis.set(key, "x")
    ran = drive.run(poll([broken, drive.keys])).available
    assert ran == {0: Available(0, 0, f"{key} is a string"), 1: Available(1, 0)}
    drive.redis.delete(key, broken.ready[0])


def test_priorities_in_use_are_named_if_asked_for(engine_drive: Drive) -> None:
    """Also of an empty queue: whoever counts its lists later needs to know which there may be."""
    drive = engine_drive
    drive.send("a", priority=9)
    drive.send("b", priority=2)
    drive.redis.delete(drive.keys.ready[9], drive.keys.ready[2])
    [plain, odd] = others(drive, 2)
    drive.redis.set(odd.meta, "x")
    ran = drive.run(poll([plain, odd, *others(drive, 11), drive.keys], levels=True))
    assert ran == ({}, {13: (2, 9)})
    assert drive.run(poll([drive.keys])).levels == {}
    drive.redis.delete(odd.meta)


def test_a_glance_counts_lists_with_messages(engine_drive: Drive) -> None:
    """Ready messages of the priorities given, and suspects; whatever else a queue has does not count."""
    drive = engine_drive
    drive.send("a", delay_ms=50)
    drive.redis.rpush(drive.keys.wake, "1")
    [empty] = others(drive, 1)
    assert drive.run(glance([(drive.keys, ()), (empty, (3,))])) == 0
    drive.send("b", "c")
    drive.send("d", priority=9)
    assert drive.run(glance([(empty, ()), (drive.keys, ())])) == 1
    assert drive.run(glance([(drive.keys, (2, 9))])) == 2
    drive.redis.rpush(drive.keys.suspect, own("e"))
    assert drive.run(glance([(drive.keys, (9,))])) == 3
