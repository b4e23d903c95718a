"""Journals give way to messages on a server that is nearly full."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from qworker.daemon.journal_shedding import JournalShedding
from qworker.engine.command import Command
from qworker.engine.reap import shed
from qworker.store.nodes import Address
from tests import servers
from tests.lua.drive import Drive
from tests.timing import Clock

Logs = list[dict[str, object]]
ONE = Address("only", 1)


class Memory:
    """Executes commands, except INFO: `part` of 1,000 bytes are used, or memory is unlimited."""

    def __init__(self, queue: Drive) -> None:
        self.queue = queue
        self.part: float | None = 0.5
        self.calls: list[str] = []

    def __call__(self, command: Command[Any], /) -> Any:
        if command.script is not None:
            self.calls.append(command.script.name)
            return self.queue.run(command)
        used, most = (999, 0) if self.part is None else (round(self.part * 1000), 1000)
        return command.decode(f"# Memory\r\nused_memory:{used}\r\nmaxmemory:{most}\r\n".encode())


@pytest.fixture
def queue(store_url: str, namespace: str, queue_name: str) -> Iterator[Drive]:
    """A queue with a journal."""
    drive = Drive(store_url, namespace, queue_name)
    drive.redis.hset(drive.keys.meta, "journal", "all")
    yield drive
    drive.close()


def is_shed(queue: Drive) -> bool:
    """Whether the queue's journal is not written."""
    return bool(queue.redis.hget(queue.keys.meta, "journal_shed") == b"1")


def test_sheds_above_85_percent_and_writes_again_below_75(queue: Drive, logs: Logs) -> None:
    """Between the two nothing changes, so that journals do not flicker."""
    memory = Memory(queue)
    shedding = JournalShedding(memory, lambda: [ONE], clock=Clock())
    seen = []
    for memory.part in (0.85, 0.851, 0.8, 0.75, 0.749, 0.85, None):
        shedding.check([queue.keys])
        seen.append(is_shed(queue))
    assert seen == [False, True, True, True, False, False, False]
    assert [line["event"] for line in logs] == ["journals_shed", "journals_resumed"]


def test_sets_queues_again_every_ten_seconds(queue: Drive) -> None:
    """A queue that another daemon left shed is set at the first pass, and one whose journal began later in time."""
    queue.redis.hset(queue.keys.meta, "journal_shed", 1)
    memory, clock = Memory(queue), Clock()
    shedding = JournalShedding(memory, lambda: [ONE], clock=clock)
    for _ in range(3):
        shedding.check([queue.keys])
    assert (is_shed(queue), memory.calls) == (False, ["shed"])
    memory.part = 0.9
    shedding.check([])
    clock.now_s += 10
    shedding.check([queue.keys])
    assert is_shed(queue)


def test_queues_without_a_journal_are_left_alone(queue: Drive) -> None:
    """Neither a queue without one nor a key of another type is touched, nor stops the others."""
    queue.redis.hdel(queue.keys.meta, "journal")
    assert queue.run(shed([queue.keys], on=True)) == 0
    assert queue.state() == {}
    queue.redis.delete(queue.keys.meta)
    queue.redis.set(queue.keys.meta, "x")
    assert queue.run(shed([queue.keys, queue.keys], on=True)) == 0


def test_full_server_sheds() -> None:
    """On a real server that is full one pass is enough."""
    for engine, _ in servers.engines():
        with servers.start(engine) as server:
            drive = Drive(server.url, "n", "q")
            drive.redis.hset(drive.keys.meta, "journal", "outcomes")
            drive.redis.config_set("maxmemory", 1000)
            JournalShedding(drive.run, drive.client.factory.masters).check([drive.keys])
            assert is_shed(drive)
            drive.close()


def test_the_fullest_server_counts_for_all(queue: Drive) -> None:
    """Whichever of them it is: their queues are mostly alike."""
    nodes = [Address("one", 1), Address("two", 2), Address("three", 3)]
    parts = dict.fromkeys(nodes, 0.1)
    memory = Memory(queue)

    def execute(command: Command[Any], /) -> Any:
        if command.node is not None:
            memory.part = parts[command.node]
        return memory(command)

    for node in nodes:
        shedding = JournalShedding(execute, lambda: nodes, clock=Clock())
        parts[node] = 0.9
        shedding.check([queue.keys])
        assert is_shed(queue)
        parts[node] = 0.1
        shedding.check([queue.keys])
        assert not is_shed(queue)
