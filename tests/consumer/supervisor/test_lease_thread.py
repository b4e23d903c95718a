"""The supervisor's second thread, and a child into whose board a handler has written."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from qworker import QWorker
from qworker.consumer.board.board import Board
from qworker.consumer.board.clock import boot_time
from qworker.consumer.supervisor.lease_thread import LeaseThread
from qworker.consumer.supervisor.leases.postmortem import Death
from qworker.wire.keys import QueueKeys
from tests.consumer.driving import until


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
    assert not [line for line in logs if line["event"] == "keeping_failed"]
    board.close()
