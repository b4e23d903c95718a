"""`raise RateLimited("30s")`: another system refuses calls, so the queue waits."""

from __future__ import annotations

from typing import Any

import pytest

from qworker import QWorker, RateLimited
from qworker.errors import InvalidOptionError
from qworker.testing import advance, drain
from tests.tables import each


@pytest.mark.parametrize("kind", ["sync", "async", "batch"])
@pytest.mark.slow
def test_queue_waits_and_the_message_comes_first_again(app: QWorker, kind: str) -> None:
    """Uncounted: one that may fail only once is not dead. Other queues continue."""
    tries: list[int] = []

    def call(number: int) -> None:
        tries.append(number)
        if len(tries) == 1:
            raise RateLimited("30s")

    def of_batch(numbers: list[int]) -> Any:
        results: list[BaseException | None] = []
        for number in numbers:
            try:
                results.append(call(number))
            except RateLimited as limited:
                results.append(limited)
        return results

    async def acall(number: int) -> None:
        call(number)

    options: dict[str, Any] = {"queue": "api", "max_receives": 1, "name": "call"}
    task: Any = (
        app.task(batch=2, **options)(of_batch)
        if kind == "batch"
        else app.task(**options)(acall if kind == "async" else call)
    )
    done: list[str] = []
    app.task(queue="other", name="other")(lambda: done.append("other"))
    task.send(0)
    drain(app)
    assert (tries, app.queue("api").inspect().ready) == ([0], 1)
    task.send(1)
    app.tasks["other"].send()
    drain(app)
    assert (tries, done) == ([0], ["other"])
    inspection = app.queue("api").inspect()
    left_ms = (inspection.limited_until_ms or 0) - inspection.now_ms
    assert (0 < left_ms <= 30_000, inspection.paused) == (True, "")
    advance(app, "31s")
    drain(app)
    assert tries == [0, 0, 1]
    inspection = app.queue("api").inspect()
    assert (inspection.stored, inspection.dead, inspection.limited_until_ms) == (0, 0, None)


@pytest.mark.bad_input("values: a rate limit that is not a duration")
@each("delay", [0, -1, "soon", None, "25h", float("nan")])
def test_wrong_time_is_refused(delay: Any) -> None:
    """It is from 1 ms to a day."""
    with pytest.raises(InvalidOptionError, match="delay"):
        RateLimited(delay)


@pytest.mark.slow
def test_a_task_with_a_key_lets_all_groups_of_the_key_wait(app: QWorker) -> None:
    """The other system limits the key, not the customer whose call it refused."""
    tries: list[str] = []

    @app.task(queue="api", limit_key="stripe", group=lambda customer: customer)
    def charge(customer: str) -> None:
        tries.append(customer)
        if len(tries) == 1:
            raise RateLimited("30s")

    for customer in ("a", "b", "c"):
        charge.send(customer)
        drain(app)
    assert tries == ["a"]
    advance(app, "31s")
    drain(app)
    assert sorted(tries) == ["a", "a", "b", "c"]
