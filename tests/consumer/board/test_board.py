"""The board: layout, cost, and the rule of mark and recall."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator

import pytest

from qworker.consumer.board.board import Board
from qworker.consumer.board.clock import boot_time
from qworker.consumer.board.counters import BUCKETS, MAX_TASKS, OUTCOMES, TaskCounts
from qworker.consumer.board.leases import MAX_LEASE
from qworker.consumer.board.states import ChildState, LeaseState, Mark

LEASE_ID = "0123456789abcdef01234567-12345678901234567890"


@pytest.fixture
def board() -> Iterator[Board]:
    """A board for three handlers."""
    board = Board.create(3)
    yield board
    board.close()


def test_a_board_costs_memory_only_where_it_is_written() -> None:
    """A board for 1,000 handlers and 4,096 tasks takes a few pages until it is used."""
    board = Board.create(1000)
    try:
        assert os.fstat(board.descriptor).st_size > 3_000_000
        assert os.fstat(board.descriptor).st_blocks * 512 <= 16_384
    finally:
        board.close()


def test_two_processes_see_one_board(board: Board) -> None:
    """What is written over one mapping of the board's file is read over another."""
    other = Board(os.dup(board.descriptor), 3)
    try:
        board.leases.enter(1, LEASE_ID, 2, 30.0)
        board.leases.hold(1, 5, 100.0, 30.0)
        board.beat, board.state, board.handled, board.stop = 1.5, ChildState.READY, 7, True
        view = other.leases.view(1)
        assert view is not None
        assert (view.lease_id, view.queue, view.count, view.deadline) == (LEASE_ID, 2, 5, 100.0)
        assert (other.beat, other.state, other.handled, other.stop) == (
            1.5,
            ChildState.READY,
            7,
            True,
        )
    finally:
        other.close()


def test_slots_do_not_overlap(board: Board) -> None:
    """Leases with every mark set, running handlers and counters leave each other alone."""
    for slot in range(board.leases.number):
        board.leases.enter(slot, f"lease-{slot}", slot, float(slot + 1))
        board.leases.hold(slot, MAX_LEASE, slot + 0.5, float(slot + 1))
        for place in range(MAX_LEASE):
            board.leases.mark(slot, place, Mark(slot % 6))
    for slot in range(board.slots):
        board.running.begin(slot, slot, MAX_LEASE - 1 - slot, slot + 10, slot + 0.25, slot + 0.75)
    counts = TaskCounts.none()
    counts.outcomes[0] = 3
    board.tally.add(0, counts, (), 0)
    board.tally.add(MAX_TASKS - 1, counts, (), 0)

    views = board.leases.views()
    assert [
        (v.slot, v.lease_id, v.queue, v.count, v.visibility_s, v.deadline, v.marks) for v in views
    ] == [
        (n, f"lease-{n}", n, MAX_LEASE, n + 1.0, n + 0.5, bytes([n % 6]) * MAX_LEASE)
        for n in range(board.leases.number)
    ]
    assert [
        (v.slot, v.lease, v.position, v.task, v.started, v.limit) for v in board.running.views()
    ] == [(n, n, MAX_LEASE - 1 - n, n + 10, n + 0.25, n + 0.75) for n in range(3)]
    assert board.counters.read(0).outcomes[0] == board.counters.read(MAX_TASKS - 1).outcomes[0] == 3
    assert not board.counters.read(1)


def test_a_lease_goes_from_free_over_pending_to_held(board: Board) -> None:
    """A slot is watched from the moment in which the lease may be created until nothing of it is left."""
    assert board.leases.view(0) is None
    before = boot_time()
    begun = board.leases.enter(0, LEASE_ID, 1, 30.0)
    pending = board.leases.view(0)
    assert pending is not None
    assert (pending.state, pending.count, pending.marks) == (LeaseState.PENDING, 0, b"")
    assert before <= begun == pending.begun
    assert pending.deadline == begun + 30.0

    board.leases.hold(0, 2, begun + 29.0, 30.0)
    board.leases.mark(0, 1, Mark.RUNNING)
    held = board.leases.view(0)
    assert held is not None
    assert (held.state, held.marks) == (LeaseState.HELD, bytes([Mark.UNSTARTED, Mark.RUNNING]))

    board.leases.free(0)
    assert board.leases.views() == []


def test_a_slot_used_again_has_forgotten_recall_and_marks(board: Board) -> None:
    """A new lease in a slot begins unmarked, unrecalled and not lost."""
    board.leases.enter(0, "long-" * 10, 0, 30.0)
    board.leases.hold(0, 3, 1.0, 30.0)
    board.leases.mark(0, 2, Mark.DONE)
    board.leases.lose(0)
    board.leases.free(0)

    board.leases.enter(0, "short", 0, 30.0)
    board.leases.hold(0, 3, 1.0, 30.0)

    view = board.leases.view(0)
    assert view is not None
    assert (view.lease_id, view.marks, view.recalled) == ("short", bytes(3), False)
    assert not board.leases.lost(0)


def test_a_recall_does_not_undo_a_loss(board: Board) -> None:
    """A lease that is lost stays lost when it is recalled."""
    board.leases.enter(0, LEASE_ID, 0, 30.0)
    board.leases.recall(0)
    assert (board.leases.recalled(0), board.leases.lost(0)) == (True, False)
    board.leases.lose(0)
    board.leases.recall(0)
    assert (board.leases.recalled(0), board.leases.lost(0)) == (True, True)


def test_an_ended_handler_leaves_its_slot(board: Board) -> None:
    """A running slot says nothing between two handlers."""
    board.running.begin(2, 1, 0, 4, 10.0, 0.0)
    (view,) = board.running.views()
    assert (view.slot, view.lease, view.position, view.limit) == (2, 1, 0, 0.0)
    board.running.end(2)
    assert board.running.views() == []


def test_mark_and_recall_never_miss_each_other(board: Board) -> None:
    """Child and supervisor race for every message: none is run and released as well, and none is forgotten."""
    rounds, both, neither = 200, 0, 0
    for _ in range(rounds):
        board.leases.enter(0, LEASE_ID, 0, 30.0)
        board.leases.hold(0, 1, 1.0, 30.0)
        ran = []

        def child(ran: list[int] = ran) -> None:
            board.leases.mark(0, 0, Mark.RUNNING)
            if board.leases.recalled(0):
                board.leases.mark(0, 0, Mark.GONE)
            else:
                ran.append(1)

        thread = threading.Thread(target=child)
        thread.start()
        board.leases.recall(0)
        thread.join()
        view = board.leases.view(0)
        assert view is not None
        released = view.marks[0] in (Mark.UNSTARTED, Mark.GONE)
        both += bool(ran) and released
        neither += not ran and not released
        board.leases.free(0)

    assert (both, neither) == (0, 0)


def test_a_closed_board_can_still_be_read() -> None:
    """A reader of the board of a child that ends just then sees its last state."""
    board = Board.create(1)
    board.handled = 3
    board.close()
    assert (board.handled, board.running.views(), board.leases.views()) == (3, [], [])


def test_counters_add_up_and_are_read_back(board: Board) -> None:
    """Outcomes and both histograms come back as they were added, batch by batch."""
    counts = TaskCounts(
        list(range(len(OUTCOMES))), list(range(BUCKETS)), 1.5, list(range(1, BUCKETS + 1)), 2.5
    )
    board.tally.add(7, counts, (), 0)
    board.tally.add(7, counts, (), 0)

    read = board.counters.read(7)
    assert read.outcomes == [2 * n for n in range(len(OUTCOMES))]
    assert (read.run, read.run_s) == ([2 * n for n in range(BUCKETS)], 3.0)
    assert (read.wait, read.wait_s) == ([2 * n for n in range(1, BUCKETS + 1)], 5.0)


def one_acked() -> TaskCounts:
    """Counts of a batch of one message."""
    counts = TaskCounts.none()
    counts.outcomes[0] = 1
    return counts


def test_message_is_counted_once_however_long_its_lease_is_held(board: Board) -> None:
    """A lease that waits for one handler sees many batches counted; those counted before are counted still."""
    board.leases.enter(3, "L", 0, 30.0)
    board.leases.hold(3, 3, boot_time() + 30, 30.0)
    for place in (0, 1):
        board.leases.mark(3, place, Mark.DONE)
    board.tally.add(0, one_acked(), [board.leases.marks_at(3)], 0)
    for _ in range(100):
        assert board.tally.uncounted(3) == [1]
        board.tally.add(0, one_acked(), (), 0)


@pytest.mark.parametrize("dies_at", ["marks", "counts"])
@pytest.mark.parametrize("before", [0, 1])
def test_batch_counts_whole_or_not_at_all(
    board: Board, monkeypatch: pytest.MonkeyPatch, dies_at: str, before: int
) -> None:
    """Dead while it marks the messages: none is counted; dead after that, all are."""
    for _ in range(before):
        board.tally.add(0, one_acked(), (), 0)
    board.leases.enter(3, "L", 0, 30.0)
    board.leases.hold(3, 2, boot_time() + 30, 30.0)
    at = [board.leases.marks_at(3), board.leases.marks_at(3) + 1]
    for place in (0, 1):
        board.leases.mark(3, place, Mark.DONE)
    counts = one_acked()
    counts.outcomes[0] = 2
    child = Board(board.descriptor, board.slots)
    if dies_at == "counts":
        monkeypatch.setattr(child.tally, "_add_counted", die)
    with pytest.raises(DeadError):
        child.tally.add(0, counts, Marks(at) if dies_at == "marks" else at, 0)
    supervisor = Board(board.descriptor, board.slots)
    supervisor.tally.finish()
    counted = supervisor.counters.read(0).outcomes[0] - before
    assert (counted, supervisor.tally.uncounted(3)) == (
        (0, [0, 1]) if dies_at == "marks" else (2, [])
    )


class DeadError(Exception):
    """The child ends here."""


class Marks(list[int]):
    """Places of marks, after the first of which the child dies."""

    def __iter__(self) -> Iterator[int]:
        yield self[0]
        raise DeadError


def die() -> None:
    """End the child before it adds what it has counted."""
    raise DeadError


def test_tasks_beyond_the_last_block_are_counted_together(board: Board) -> None:
    """There are counters for 4,095 tasks; all further ones share the last block."""
    counts = TaskCounts.none()
    counts.outcomes[0] = 1
    for task in (MAX_TASKS - 1, MAX_TASKS, MAX_TASKS + 900):
        board.tally.add(task, counts, (), 0)
    assert board.counters.read(MAX_TASKS + 5).outcomes[0] == 3
    assert not board.counters.read(MAX_TASKS - 2)


# -- leases in doubt ---------------------------------------------------------------------------


def test_leases_in_doubt_are_read_once(board: Board) -> None:
    """With their queues, in order; over another mapping as well."""
    other = Board(os.dup(board.descriptor), 3)
    try:
        assert other.doubts.unread() == []
        board.doubts.note(LEASE_ID, 3)
        board.doubts.note("short-1", 0)
        assert other.doubts.unread() == [(LEASE_ID, 3), ("short-1", 0)]
        assert other.doubts.unread() == []
        board.doubts.note("next-1", 1)
        assert other.doubts.unread() == [("next-1", 1)]
    finally:
        other.close()


def test_of_many_leases_in_doubt_the_latest_are_read(board: Board) -> None:
    """The latest 64; none is read twice, and a longer id leaves nothing behind in a shorter one."""
    board.doubts.note("z" * 78, 0)
    for number in range(1000):
        board.doubts.note(f"l-{number}", number % 5)
    assert board.doubts.unread() == [(f"l-{number}", number % 5) for number in range(936, 1000)]
    assert board.doubts.unread() == []


def test_what_no_child_writes_is_no_lease_in_doubt(board: Board) -> None:
    """A handler may write anywhere: nothing but ids is read, and the next one is."""
    word = board.doubts._at // 8
    board.doubts.note(LEASE_ID, 0)
    board.words[word] = 2**63
    board.doubts.unread()
    board.words[word] = 0
    assert board.doubts.unread() == []
    base = board.doubts._base(0)
    board.bytes[base + 8 : base + 12] = b"\xff\n$("
    board.words[word] = 1
    assert board.doubts.unread() == []
    board.doubts.note(LEASE_ID, 1)
    assert board.doubts.unread() == [(LEASE_ID, 1)]


def test_leases_in_doubt_end_within_the_board(board: Board) -> None:
    """Orders before them and the stack of a crash behind them stay as they are."""
    board.orders.pause([1.0] * MAX_TASKS)
    for _ in range(64):
        board.doubts.note("z" * 78, 2**32)
    assert all(board.orders.paused_since(task) == 1.0 for task in (0, MAX_TASKS - 1))
    assert board.doubts._base(63) + 88 <= board.size
