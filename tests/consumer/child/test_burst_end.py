"""A burst ends when nothing is left to do: neither here nor in another process of its worker."""

from __future__ import annotations

import pytest

from qworker import Failure, QWorker, chain, group
from qworker.consumer.board.board import Board
from qworker.consumer.child.burst_end import BurstEnd
from tests.consumer.driving import drain
from tests.consumer.workers import Lab


def test_a_burst_handles_what_its_acks_send_to_other_queues(app: QWorker) -> None:
    """The steps of chains, and the callbacks of groups of calls in groups, however many queues they go through."""

    @app.task(queue="a", result="1h")
    def first(n: int) -> int:
        return n + 1

    @app.task(queue="b", result="1h")
    def second(n: int) -> int:
        return n + 1

    @app.task(queue="c", result="1h")
    def total(values: list[int | Failure]) -> int:
        return sum(value for value in values if isinstance(value, int))

    steps = chain(first.call(0), second.then(), first.then(), second.then())
    inner = group([chain(first.call(0), second.then()), second.call(0)]).then(total)
    handles = [steps.start(), group([inner, first.call(0)]).then(total).start()]
    drain(app)
    assert [handle.result(0) for handle in handles] == [4, 2 + 1 + 1]


def test_a_single_child_ends_after_its_second_look_and_what_is_on_its_way() -> None:
    """It looks first, and again after all that has ended meanwhile."""
    board, on_its_way = Board.create(1), [True]
    end = BurstEnd(board, lambda: not on_its_way)
    assert not (end.may_end())
    assert not (end.is_to_check())
    on_its_way.clear()
    assert not end.may_end()
    assert end.is_to_check()
    end.asks()
    assert end.may_end()
    end.works()
    assert not end.may_end()
    board.close()


def test_a_child_with_peers_says_that_it_has_nothing_and_looks_again() -> None:
    """It counts as working while a message may be on its way to it; the supervisor ends it."""
    board = Board.create(1)
    board.peers = 2
    end = BurstEnd(board, lambda: True)
    assert end.is_to_check()
    assert board.quiet == 0
    assert not end.may_end()
    assert board.quiet == 1
    assert not end.is_to_check()
    end.works()
    assert board.quiet == 2
    assert end.is_to_check()
    assert not end.may_end()
    assert board.quiet == 3
    board.over = 1
    assert end.may_end()
    board.close()


@pytest.mark.slow
def test_a_burst_of_several_processes_ends_when_none_has_work(lab: Lab) -> None:
    """One that has nothing waits for the others: their last call may bring about the callback."""
    lab.app("""
@app.task(queue="a", result="1h")
def work(n: int) -> int:
    time.sleep(0.3 if n == 7 else 0)
    return n

@app.task(queue="b", result="1h")
def total(values: list[int]) -> None:
    note("total", len(values))
""")

    @lab.sender.task(queue="a", result="1h")
    def work(n: int) -> int:
        return n

    @lab.sender.task(queue="b", result="1h")
    def total(values: list[int]) -> None: ...

    group((work.call(n) for n in range(8)), policy="successes").then(total).send()
    with lab.worker("--burst", "--procs", "2") as worker:
        assert worker.wait() == 0
    assert lab.noted("total") == [[8]]
