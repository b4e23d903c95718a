"""The supervisor's second thread, and a child into whose board a handler has written."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from qworker import QWorker
from qworker.consumer.board import Board, boot_time
from qworker.consumer.death import Death
from qworker.consumer.keeping import Keeping
from qworker.wire.keys import QueueKeys
from tests.consumer.driving import until


def test_a_spoiled_board_is_told_once(app: QWorker, logs: list[dict[str, object]]) -> None:
    """Its lease is left to run out, and what the child had in hand with it; the thread goes on."""
    board = Board.create(1)
    board.enter_lease(0, "L-1", 0, 30.0)
    board.hold_lease(0, 1, boot_time(), 30.0)
    base = board.lease_base(0)
    board.bytes[base + 2 : base + 20] = b"\xff" * 18
    closed: list[bool] = []
    keys = (QueueKeys(app.namespace, "q"),)
    child: Any = SimpleNamespace(board=board, keys=keys, pid=7, close=lambda: closed.append(True))
    living, looks = [child], [0]

    def children() -> list[Any]:
        looks[0] += 1
        return living

    keeping = Keeping(app.client, children, lambda: None)

    def told() -> list[dict[str, object]]:
        return [line for line in logs if line["event"] == "board_spoiled"]

    keeping.start()
    until(lambda: looks[0] > 3)
    living.clear()
    keeping.settle_dead(child, Death(-11))
    until(lambda: closed)
    keeping.end(5.0)

    assert told() == [{"event": "board_spoiled", "log_level": "error", "pid": 7}]
    assert not [line for line in logs if line["event"] == "keeping_failed"]
    board.close()
