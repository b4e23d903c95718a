"""The boards of children, into which a handler may have written anything: their supervisor goes on."""

from __future__ import annotations

import math
import struct
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest
from hypothesis import strategies as st

from qworker import QWorker
from qworker.client.commands.receiving import settle_receive
from qworker.consumer.board import Board, ChildState, Mark, boot_time
from qworker.consumer.crash import slot_of
from qworker.consumer.death import death_of
from qworker.consumer.keeper import Keeper
from qworker.consumer.manifest import TaskEntry
from qworker.consumer.options import RunOptions
from qworker.consumer.presence import _describe
from qworker.consumer.process import ChildProcess
from qworker.consumer.totals import Totals
from qworker.consumer.watch import Watch
from qworker.wire.keys import QueueKeys
from tests.fuzz.exploring import explore

SLOTS = 2
_FLOATS = [math.nan, math.inf, -math.inf, -1.0, 1e300, 1e-300, 2.0**40]
_RUBBISH = st.one_of(
    st.binary(min_size=1, max_size=200),
    st.sampled_from([b"\0" * 200, b"\xff" * 200, b"\x01" * 200, b"\xff" * 8]),
    st.sampled_from([struct.pack("d", each) for each in _FLOATS]),
    st.integers(0, 2**64 - 1).map(lambda number: struct.pack("Q", number)),
)


@pytest.fixture
def app(store_url: str, namespace: str) -> Iterator[QWorker]:
    """An app without tasks, in a namespace of its own."""
    app = QWorker(namespace, url=store_url)
    yield app
    app.close()


def at_work(app: QWorker, keys: QueueKeys) -> Board:
    """A board with a lease of two messages, one of which runs, that is due to be extended."""
    board = Board.create(SLOTS)
    board.state, board.beat = ChildState.READY, boot_time()
    app.queue("q").send_all([{"n": 1}, {"n": 2}])
    lease_id = app.client.ids.lease_id()
    board.enter_lease(0, lease_id, 0, 30.0)
    app.client.execute(settle_receive(keys, lease_id, 2, visibility_ms=30_000))
    board.note_delivered(0, boot_time(), 1_000_000)
    board.hold_lease(0, 2, boot_time() + 5.0, 30.0)
    board.mark(0, 0, Mark.RUNNING)
    board.begin(0, 0, 0, 0, boot_time(), boot_time() + 900.0)
    return board


def child_of(board: Board, keys: QueueKeys) -> Any:
    """A child as its supervisor has it, without the process."""
    child = SimpleNamespace(board=board, keys=(keys,), max_waits_s=(0.0,), pid=1, killed="")
    child.stopping, child.tasks = "", [TaskEntry("t", "q", False, None, None, 0, 0.0)]
    child.ready = child.starting = False
    child.task_name = lambda number: "?"
    return child


def test_rubbish_on_a_board_costs_its_own_child_at_most(app: QWorker) -> None:
    """Whoever reads it goes on, another child's lease is extended, and what ran is told in the worker's document."""
    keys = QueueKeys(app.namespace, "q")
    board, other = at_work(app, keys), at_work(app, keys)
    clean, lease_at = bytes(board.bytes), board.lease_base(0)
    running_at = board.lease_base(board.leases)
    places = st.one_of(
        st.integers(0, 60),
        st.integers(lease_at, lease_at + 160),
        st.integers(running_at, running_at + 40),
        st.integers(0, board.size - 1),
    )
    watch, keeper = Watch(RunOptions()), Keeper(app.client)

    def scribble(scribbles: list[tuple[int, bytes]]) -> None:
        board.bytes[:] = clean
        for at, rubbish in scribbles:
            board.bytes[at : at + len(rubbish)] = rubbish[: board.size - at]
        other.set_deadline(0, boot_time() + 5.0)
        before = boot_time()
        child = child_of(board, keys)

        keeper.extend_due([(board, (keys,)), (other, (keys,))])
        view = other.lease(0)
        assert view is not None
        assert view.deadline >= before + 30.0

        assert ChildProcess.reason(child, 0) in ("crashed", "recycled", "stopped")
        assert len(ChildProcess.overdue_handlers(child)) <= SLOTS
        watch.silent_s(child, 0.0)
        keeper.recall([(board, (keys,), watch.stuck_leases(child))])
        assert msgspec.json.encode(_describe(child))
        totals = Totals()
        totals.add(child)
        assert isinstance(totals.counts(), dict)
        death = death_of(board, child.tasks, -11)
        keeper.settle_dead(board, (keys,), death)
        totals.bury(child, "crashed")

    explore(scribble, st.lists(st.tuples(places, _RUBBISH), min_size=1, max_size=4), examples=300)
    board.close()
    other.close()


def test_last_words_may_name_any_slot() -> None:
    """A number that no slot has, of as many digits as fit behind a board, accuses nobody."""
    assert slot_of("  File x in qworker_slot_7") == 7
    assert slot_of("  File x in qworker_slot_" + "9" * 9000) is None
