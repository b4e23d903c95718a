"""Tasks of one event loop share a search for the servers."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import pytest

from qworker.errors import ServerError, SlotUnservedError, UnavailableError
from qworker.store.connections import ConnectionFactory
from qworker.store.nodes import Address
from qworker.store.topology import Question

A, B = (Address(name, 6379) for name in "ab")
#: `{b}` is in the lower half of the slots, `{a}` in the upper one.
LOW, HIGH = "n:{b}:ready", "n:{a}:ready"


class Asked(ConnectionFactory):
    """A factory whose questions wait until the test answers them."""

    def __init__(self) -> None:
        super().__init__("redis+cluster://a,b")
        self.questions: list[Question] = []
        self.answers: asyncio.Queue[object] = asyncio.Queue()

    async def _aask(self, question: Question, within_s: float | None) -> object:
        self.questions.append(question)
        answer = await self.answers.get()
        if isinstance(answer, ServerError):
            raise answer
        return answer


def slots(*ranges: tuple[int, int, Address]) -> list[object]:
    """Return a reply of CLUSTER SLOTS."""
    return [
        [first, last, [node.host.encode(), node.port, b"id", []]] for first, last, node in ranges
    ]


WHOLE, HALF = slots((0, 8191, A), (8192, 16383, B)), slots((0, 8191, A))


def results_of(
    keys: list[str],
    answers: list[object],
    meanwhile: Callable[[list[asyncio.Task[Address]]], object] = lambda tasks: None,
    within_s: float | None = None,
) -> tuple[list[Address | BaseException], int]:
    """What tasks find that search at once, and how many questions they ask."""

    async def search() -> tuple[list[Address | BaseException], int]:
        factory = Asked()
        tasks = [asyncio.create_task(factory.alocate(key, within_s)) for key in keys]
        await asyncio.sleep(0)
        meanwhile(tasks)
        for answer in answers:
            factory.answers.put_nowait(answer)
        results = await asyncio.wait_for(asyncio.gather(*tasks, return_exceptions=True), 60)
        return results, len(factory.questions)

    return asyncio.run(search())


def test_one_question_serves_all_tasks() -> None:
    """Each finds the server of its own key."""
    results, asked = results_of([LOW, HIGH] * 50, [WHOLE])
    assert results == [A, B] * 50
    assert asked == 1


def test_all_tasks_get_the_error_of_the_search() -> None:
    """They ask no node again for themselves."""
    down = UnavailableError("down")
    results, asked = results_of([LOW] * 50, [down] * 4)
    assert asked == 4  # each node quickly, then patiently
    assert {type(result) for result in results} == {UnavailableError}


def test_a_slot_without_a_node_fails_its_own_tasks_alone() -> None:
    """The map that lacks it serves the others."""
    results, asked = results_of([HIGH, LOW] * 10, [HALF])
    assert [type(result) for result in results] == [SlotUnservedError, Address] * 10
    assert asked == 1


def test_the_next_task_searches_if_the_first_is_cancelled() -> None:
    """The others notice nothing of it."""
    results, asked = results_of([LOW] * 5, [WHOLE], lambda tasks: tasks[0].cancel())
    assert isinstance(results[0], asyncio.CancelledError)
    assert results[1:] == [A] * 4
    assert asked == 2


def test_a_cancelled_task_does_not_end_the_search_of_another() -> None:
    """It only stops waiting."""
    results, asked = results_of([LOW] * 3, [WHOLE], lambda tasks: tasks[1].cancel())
    assert isinstance(results[1], asyncio.CancelledError)
    assert results[::2] == [A, A]
    assert asked == 1


def test_a_task_waits_for_the_search_of_another_no_longer_than_its_own_time() -> None:
    """The other goes on."""

    async def search() -> None:
        factory = Asked()
        first = asyncio.create_task(factory.alocate(LOW))
        await asyncio.sleep(0)
        with pytest.raises(UnavailableError, match="took too long"):
            await factory.alocate(LOW, 0.01)
        factory.answers.put_nowait(WHOLE)
        assert await first == A

    asyncio.run(search())


def test_a_search_of_another_loop_is_not_waited_for() -> None:
    """That loop may never run again."""

    factory = Asked()

    loop = asyncio.new_event_loop()
    left = loop.create_task(factory.alocate(LOW))
    loop.run_until_complete(asyncio.sleep(0))

    async def search() -> Address:
        factory.answers = asyncio.Queue()
        factory.answers.put_nowait(WHOLE)
        return await asyncio.wait_for(factory.alocate(LOW), 60)

    assert asyncio.run(search()) == A
    left.cancel()
    loop.run_until_complete(asyncio.wait([left]))
    loop.close()
