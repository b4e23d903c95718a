"""Leases whose receive lost its reply come back by the supervisor, if the child cannot give them back itself."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from dataclasses import dataclass

import pytest

from qworker import QWorker
from qworker.client.execute.sync import Client
from qworker.client.queue import Queue
from qworker.consumer.board.board import Board
from qworker.consumer.supervisor.leases.lease_keeper import LeaseKeeper
from qworker.consumer.supervisor.leases.postmortem import Death
from qworker.engine.receive import settle_receive
from qworker.store.connections import ConnectionFactory
from qworker.wire.keys import QueueKeys
from tests import servers
from tests.consumer.driving import history_of, running, until

CLOCK = "qworker.consumer.supervisor.leases.doubtful_leases.boot_time"


@dataclass
class Doubt:
    """A queue with a message, a board, its keeper, and the keeper's clock."""

    app: QWorker
    board: Board
    keeper: LeaseKeeper
    keys: QueueKeys
    now: float = 1000.0

    def lose(self) -> str:
        """Note a lease in doubt; returns its id."""
        lease_id = self.app.client.ids.lease_id()
        self.board.doubts.note(lease_id, 0)
        self.keeper.doubtful.note(self.board, [self.keys])
        return lease_id

    def create(self, lease_id: str) -> None:
        """Let the server carry out the receive."""
        batch = self.app.client.execute(settle_receive(self.keys, lease_id, 1))
        assert len(batch.items) == 1

    def give_back(self, at_s: float) -> int:
        """Give back what is due this long after the loss."""
        self.now = 1000.0 + at_s
        return self.keeper.doubtful.give_back()


@pytest.fixture
def doubt(app: QWorker, monkeypatch: pytest.MonkeyPatch) -> Iterator[Doubt]:
    """One message is ready."""
    board, keys = Board.create(1), QueueKeys(app.namespace, "default")
    app.queue("default").send(b"{}")
    doubt = Doubt(app, board, LeaseKeeper(app.client), keys)
    monkeypatch.setattr(CLOCK, lambda: doubt.now)
    yield doubt
    board.close()


def test_a_lease_in_doubt_is_given_back_uncounted(doubt: Doubt) -> None:
    """After a moment in which its child has the chance to; the message has no blame."""
    doubt.create(doubt.lose())
    assert doubt.give_back(1.4) == 0
    assert doubt.give_back(1.5) == 1
    assert not doubt.keeper.doubtful._due
    stats = history_of(doubt.app.queue("default"))
    assert stats == {"sent": 1, "stored": 1, "received": 1, "released": 1}


def test_all_leases_in_doubt_are_given_back_however_many_there_are(
    doubt: Doubt, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A server that was away for a moment leaves those of many children; a call takes some."""
    monkeypatch.setattr("qworker.consumer.supervisor.leases.doubtful_leases._AT_ONCE", 2)
    doubt.app.queue("default").send_many([b"{}"] * 4)
    for _ in range(5):
        doubt.create(doubt.lose())
    assert doubt.give_back(1.5) == 5


def test_a_lease_that_is_created_late_is_given_back_too(doubt: Doubt) -> None:
    """For half a minute; no server reads the bytes of a closed connection later than that."""
    late = doubt.lose()
    for at_s in (1.5, 3.0, 5.0, 10.0, 20.0):
        assert doubt.give_back(at_s) == 0
    doubt.create(late)
    assert doubt.give_back(29.9) == 0
    assert doubt.give_back(30.0) == 1
    assert doubt.app.queue("default").inspect().unacked == 0


def test_a_lease_that_never_comes_is_forgotten(
    doubt: Doubt, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Six calls in all."""
    doubt.lose()
    for at_s in range(31):
        doubt.give_back(float(at_s))
    monkeypatch.setattr(doubt.keeper.doubtful, "_give_back", None)
    assert doubt.give_back(1000.0) == 0


def test_leases_in_doubt_of_a_dead_child_are_given_back(doubt: Doubt) -> None:
    """The child has noted it and died before the supervisor looked."""
    lease_id = doubt.app.client.ids.lease_id()
    doubt.board.doubts.note(lease_id, 0)
    doubt.create(lease_id)
    doubt.keeper.settle_dead(doubt.board, [doubt.keys], Death(-9))
    assert doubt.give_back(1.5) == 1
    assert history_of(doubt.app.queue("default"))["released"] == 1


@pytest.mark.parametrize(("after_s", "comes_back"), [(59.0, 1), (62.0, 0)])
def test_a_server_that_is_away_is_asked_again_for_a_minute(
    app: QWorker, monkeypatch: pytest.MonkeyPatch, after_s: float, comes_back: int
) -> None:
    """Each time for a moment only: the same thread extends leases."""
    with servers.start("valkey", far=False) as server:
        path = server.socket
        with Client(ConnectionFactory(server.url)) as client:
            keys, board = QueueKeys("ns", "q"), Board.create(1)
            lease_id = client.ids.lease_id()
            now = [1000.0]
            monkeypatch.setattr(CLOCK, lambda: now[0])
            keeper = LeaseKeeper(Client(ConnectionFactory(f"unix://{path}.gone")))
            keeper.doubtful._calls._give_up_s = 0.0
            board.doubts.note(lease_id, 0)
            keeper.doubtful.note(board, [keys])
            while now[0] < 1000.0 + after_s:
                now[0] += 1.0
                assert keeper.doubtful.give_back() == 0
            back = LeaseKeeper(client)
            back.doubtful._due = keeper.doubtful._due
            Queue(client, "ns", "q").send(b"{}")
            client.execute(settle_receive(keys, lease_id, 1))
            now[0] += 1.0
            assert back.doubtful.give_back() == comes_back
            board.close()


def test_a_child_with_long_handlers_gets_its_lost_messages_back(
    app: QWorker, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It asks for nothing while no slot is free; so what its call receives late goes back by its supervisor."""
    go, begun = threading.Event(), list[int]()

    @app.task
    async def work(n: int) -> None:
        begun.append(n)
        while not go.is_set():
            await asyncio.sleep(0.01)

    keys, keeper, now = QueueKeys(app.namespace, "default"), LeaseKeeper(app.client), [1000.0]
    monkeypatch.setattr(CLOCK, lambda: now[0])
    work.send_many(work.call(n) for n in (1, 2))
    with running(app, concurrency=2) as child:
        try:
            until(lambda: len(begun) == 2)
            fetcher = child.broker._fetcher
            [queue] = fetcher._chooser.queues
            late = app.client.ids.lease_id()
            fetcher.receiver.returns.in_doubt(queue, late)
            keeper.doubtful.note(child.board, [keys])
            work.send(3)
            assert len(app.client.execute(settle_receive(keys, late, 1)).items) == 1
            now[0] += 1.5
            given_back = keeper.doubtful.give_back()
        finally:
            go.set()
        until(lambda: len(begun) == 3)
    assert given_back == 1
    stats = history_of(app.queue("default"))
    assert (stats["released"], stats.get("timeouts", 0), stats["acked"]) == (1, 0, 3)
