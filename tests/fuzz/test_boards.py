"""The boards of children, into which a handler may have written anything: their supervisor continues."""

from __future__ import annotations

import math
import struct
from collections.abc import Iterator
from functools import partial
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest
from hypothesis import strategies as st

from qworker import QWorker
from qworker.consumer.board.board import Board
from qworker.consumer.board.clock import boot_time
from qworker.consumer.board.crash import slot_of
from qworker.consumer.board.states import ChildState, Mark
from qworker.consumer.manifest import ManifestTask
from qworker.consumer.options import RunOptions
from qworker.consumer.supervisor.leases.lease_keeper import LeaseKeeper
from qworker.consumer.supervisor.leases.postmortem import death_of
from qworker.consumer.supervisor.operators.presence import _describe
from qworker.consumer.supervisor.processes.process import ChildProcess
from qworker.consumer.supervisor.processes.totals import Totals
from qworker.consumer.supervisor.watches import Watch
from qworker.engine.receive import settle_receive
from qworker.wire.keys import QueueKeys
from tests.fuzz.exploring import explore

SLOTS = 2
_FLOATS = [math.nan, math.inf, -math.inf, -1.0, 1e300, 1e-300, 2.0**40]
_RUBBISH = st.one_of(
    st.binary(min_size=1, max_size=200),
    st.sampled_from([b"\0" * 200, b"\xff" * 200, b"\x01" * 200, b"\xff" * 8]),
    st.sampled_from([struct.pack("d", value) for value in _FLOATS]),
    st.integers(0, 2**64 - 1).map(lambda number: struct.pack("Q", number)),
)


@pytest.fixture
def app(store_url: str, namespace: str) -> Iterator[QWorker]:
    """An app without tasks, in its own namespace."""
    app = QWorker(namespace, url=store_url)
    yield app
    app.close()


def at_work(app: QWorker, keys: QueueKeys) -> Board:
    """A board with a lease of two messages, one of which runs, that is due to be extended."""
    board = Board.create(SLOTS)
    board.state, board.beat = ChildState.READY, boot_time()
    app.queue("q").send_many([{"n": 1}, {"n": 2}])
    lease_id = app.client.ids.lease_id()
    board.leases.enter(0, lease_id, 0, 30.0)
    app.client.execute(settle_receive(keys, lease_id, 2, visibility_ms=30_000))
    board.leases.note_delivered(0, boot_time(), 1_000_000)
    board.leases.hold(0, 2, boot_time() + 5.0, 30.0)
    board.leases.mark(0, 0, Mark.RUNNING)
    board.running.begin(0, 0, 0, 0, boot_time(), boot_time() + 900.0)
    return board


def child_of(board: Board, keys: QueueKeys) -> Any:
    """A child as its supervisor has it, without the process."""
    child = SimpleNamespace(board=board, keys=(keys,), max_waits_s=(0.0,), pid=1, killed="")
    child.stopping, child.tasks = "", [ManifestTask("t", "q", False, None, 0, 0.0)]
    child.ready = child.starting = False
    child.task_name = lambda number: "?"
    child.receipt = partial(ChildProcess.receipt, child)
    return child


@pytest.mark.slow
def test_rubbish_on_a_board_costs_its_own_child_at_most(app: QWorker) -> None:
    """Its readers continue, another child's lease is extended, and running handlers are in the worker's document."""
    keys = QueueKeys(app.namespace, "q")
    board, other = at_work(app, keys), at_work(app, keys)
    clean, lease_at = bytes(board.bytes), board.leases.recall_at(0) - 1
    running_at = board.running.word(0) * 8
    places = st.one_of(
        st.integers(0, 60),
        st.integers(lease_at, lease_at + 160),
        st.integers(running_at, running_at + 40),
        st.integers(0, board.size - 1),
    )
    watch, keeper = Watch(RunOptions()), LeaseKeeper(app.client)

    def scribble(scribbles: list[tuple[int, bytes]]) -> None:
        board.bytes[:] = clean
        for at, rubbish in scribbles:
            board.bytes[at : at + len(rubbish)] = rubbish[: board.size - at]
        other.leases.set_deadline(0, boot_time() + 5.0)
        before = boot_time()
        child = child_of(board, keys)

        keeper.extend_due([(board, (keys,)), (other, (keys,))])
        view = other.leases.view(0)
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
        totals.note_exit(child, "crashed")

    explore(scribble, st.lists(st.tuples(places, _RUBBISH), min_size=1, max_size=4), examples=300)
    board.close()
    other.close()


def test_last_words_may_name_any_slot() -> None:
    """A number that no slot has, of as many digits as fit behind a board, blames no message."""
    assert slot_of("  File x in qworker_slot_7") == 7
    assert slot_of("  File x in qworker_slot_" + "9" * 9000) is None
