"""The supervisor's second thread, for children that have died or whose handlers have written to their boards."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from qworker import QWorker
from qworker.consumer.board.board import Board
from qworker.consumer.board.clock import boot_time
from qworker.consumer.supervisor.lease_thread import LeaseThread
from qworker.consumer.supervisor.leases.postmortem import Death
from qworker.engine.receive import settle_receive
from qworker.wire.keys import QueueKeys
from tests.consumer.driving import history_of, until


def test_a_spoiled_board_is_reported_once(app: QWorker, logs: list[dict[str, object]]) -> None:
    """Its lease is left to run out, and the child's messages with it; the thread continues."""
    board = Board.create(1)
    board.leases.enter(0, "L-1", 0, 30.0)
    board.leases.hold(0, 1, boot_time(), 30.0)
    id_at = board.leases.recall_at(0) + 1
    board.bytes[id_at : id_at + 18] = b"\xff" * 18
    closed: list[bool] = []
    keys = (QueueKeys(app.namespace, "q"),)
    child: Any = SimpleNamespace(
        board=board, keys=keys, pid=7, cut_off=True, close=lambda: closed.append(True)
    )
    living, looks = [child], [0]

    def children() -> list[Any]:
        looks[0] += 1
        return living

    thread = LeaseThread(app.client, children, lambda: None)

    def warnings() -> list[dict[str, object]]:
        return [line for line in logs if line["event"] == "board_spoiled"]

    thread.start()
    until(lambda: looks[0] > 3)
    living.clear()
    thread.settle_dead(child, Death(-11))
    until(lambda: closed)
    thread.end(5.0)

    assert warnings() == [{"event": "board_spoiled", "log_level": "error", "pid": 7}]
    assert not [line for line in logs if line["event"] == "supervision_failed"]
    board.close()


def test_what_the_wait_of_a_dead_child_still_receives_comes_back(
    app: QWorker, monkeypatch: pytest.MonkeyPatch, logs: list[dict[str, object]]
) -> None:
    """A network that hides the death from the server keeps the wait going; the keeper asks again when it is over."""
    keeper = "qworker.consumer.supervisor.leases.lease_keeper"
    now = [boot_time()]
    monkeypatch.setattr(f"{keeper}.boot_time", lambda: now[0])
    board, keys, default = (
        Board.create(1),
        QueueKeys(app.namespace, "default"),
        app.queue("default"),
    )
    lease_id = app.client.ids.lease_id()
    board.leases.enter(0, lease_id, 0, 30.0)
    closed: list[bool] = []
    child: Any = SimpleNamespace(
        board=board, keys=(keys,), pid=7, cut_off=True, close=lambda: closed.append(True)
    )
    thread, looks = LeaseThread(app.client, list, lambda: None), 0
    look = thread.keeper.release_late

    def count_looks() -> None:
        nonlocal looks
        look()
        looks += 1

    def wait_for_looks(after_s: float) -> None:
        now[0] += after_s
        before = looks
        until(lambda: looks >= before + 2)  # the first one may have begun earlier

    monkeypatch.setattr(thread.keeper, "release_late", count_looks)
    thread.start()
    thread.settle_dead(child, Death(-9))
    until(lambda: closed)
    wait_for_looks(0.4)  # once what the child had sent has arrived, and for its wait
    default.send(b"{}")
    assert len(app.client.execute(settle_receive(keys, lease_id, 1)).items) == 1
    wait_for_looks(2.5)
    assert default.inspect().unacked == 1
    now[0] += 0.2
    until(lambda: default.inspect().ready == 1)
    thread.end(5.0)
    assert history_of(default)["released"] == 1
    assert [
        line["messages"] for line in logs if line["event"] == "messages_went_to_a_dead_child"
    ] == [1]
    board.close()


@pytest.mark.slow
def test_leases_in_doubt_of_living_children_are_given_back(app: QWorker) -> None:
    """The thread reads them from the boards, and makes the calls."""
    board, keys, default = (
        Board.create(1),
        QueueKeys(app.namespace, "default"),
        app.queue("default"),
    )
    lost = app.client.ids.lease_id()
    default.send(b"{}")
    assert len(app.client.execute(settle_receive(keys, lost, 1)).items) == 1
    child: Any = SimpleNamespace(board=board, keys=(keys,), pid=7)
    thread = LeaseThread(app.client, lambda: [child], lambda: None)
    thread.start()
    board.doubts.note(lost, 0)
    until(lambda: default.inspect().ready == 1)
    thread.end(5.0)
    assert history_of(default)["released"] == 1
    board.close()
