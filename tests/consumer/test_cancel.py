"""Cancel: what the answer says, and how what runs learns of it and ends."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable
from typing import Any

import pytest

from qworker import (
    Bury,
    Cancel,
    Cancellation,
    Handle,
    Middleware,
    QueueAttributes,
    QWorker,
    Retry,
    TaskEndedError,
    TaskFailedError,
    current,
    group,
)
from qworker.consumer.board.clock import boot_time
from qworker.consumer.supervisor.leases.lease_keeper import LeaseKeeper
from qworker.testing import drain
from qworker.wire.keys import QueueKeys
from tests.consumer.driving import DEADLINE_S, Child, history_of, redis_of, running, until
from tests.consumer.workers import Lab
from tests.journals import event_lines


def ended_as(handle: Handle[Any], state: str) -> None:
    """A wait for the result of a message ends with a state."""
    with pytest.raises(TaskEndedError) as caught:
        handle.result("10s")
    assert caught.value.state == state


async def in_async_code(app: QWorker, handle: Handle[Any]) -> Cancellation:
    """Cancel, and close the loop's connections."""
    try:
        return await handle.acancel()
    finally:
        await app.aclose()


def heartbeat(app: QWorker, child: Child) -> None:
    """Extend the leases of a child now, as its supervisor does when they are due."""
    keys = QueueKeys(app.namespace, "default")
    for lease in child.board.leases.views():
        child.board.leases.set_deadline(lease.slot, boot_time() + lease.visibility_s / 2)
    LeaseKeeper(app.client).extend_due([(child.board, (keys,))])


def journalled(app: QWorker) -> list[str]:
    """The events of the journal, but for deliveries."""
    with redis_of(app) as redis:
        entries = redis.xrange(QueueKeys(app.namespace, "default").journal)
    lines = [line for _, entry in entries for line in event_lines(entry[b"e1"])]
    return [event for line in lines if (event := line.partition(" ")[0]) != "delivered"]


def tombstones(app: QWorker) -> list[bytes]:
    """What is left of cancels."""
    with redis_of(app) as redis:
        return list(redis.zrange(QueueKeys(app.namespace, "default").cancelled, 0, -1))


# -- answers -----------------------------------------------------------------------------------


@pytest.mark.parametrize("where", ["ready", "delayed", "held"])
@pytest.mark.parametrize("by", ["queue", "handle", "async"])
def test_message_that_waits_is_gone_at_once(app: QWorker, where: str, by: str) -> None:
    """The answer is `cancelled`, the wait for its result ends, and no trace stays, however late it was due."""

    @app.task(result="1h")
    def work() -> None:
        raise AssertionError("it ran")

    handle = work.options(delay="30d" if where == "delayed" else 0).start()
    queue = app.queue("default")
    if where == "held":
        assert queue.hold(handle.id) == [handle.id]
    answers: dict[str, Callable[[], Cancellation]] = {
        "queue": lambda: queue.cancel(handle.id),
        "handle": handle.cancel,
        "async": lambda: asyncio.run(in_async_code(app, handle)),
    }
    assert answers[by]() is Cancellation.CANCELLED
    assert not Cancellation.CANCELLED.too_late
    ended_as(handle, "cancelled")
    assert tombstones(app) == []
    assert history_of(queue) == {"cancelled": 1, "sent": 1}
    drain(app)
    assert answers[by]() is Cancellation.CANCELLED, "a repetition says the same"


def test_a_call_that_runs_is_stopped_by_the_first_success_of_its_group(app: QWorker) -> None:
    """The worker that acked the first success relays it, and the next heartbeat names the others."""
    begun, stopped = threading.Event(), threading.Event()

    @app.task(result="1h")
    async def ask(slow: bool) -> str:
        if slow:
            begun.set()
            try:
                await asyncio.sleep(DEADLINE_S)
            except asyncio.CancelledError:
                stopped.set()
                raise
        while not begun.is_set():
            await asyncio.sleep(0.01)
        return "slow" if slow else "fast"

    @app.task(result="1h")
    async def keep(answer: str) -> str:
        return answer

    calls = group([ask.call(slow=True), ask.call(slow=False)], policy="first", cancel_rest=True)
    with running(app, concurrency=4) as child:
        handle = calls.then(keep).start()
        assert handle.result(DEADLINE_S) == "fast"
        until(lambda: tombstones(app) == [f"{handle.id}.0".encode()])
        heartbeat(app, child)
        assert stopped.wait(DEADLINE_S)
        until(lambda: tombstones(app) == [])


def test_too_late_says_which(app: QWorker) -> None:
    """A message that was handled or is dead has ended; one without a result, or without a message, is unknown."""

    @app.task(result="1h")
    def work(how: str) -> str:
        if how == "bury":
            raise Bury("no")
        return how

    @app.task
    def plain(how: str) -> None:
        work(how)

    done, dead = work.start("ok"), work.start("bury")
    lost, letter = plain.send("ok"), plain.send("bury")
    drain(app)
    queue = app.queue("default")
    assert (done.cancel(), dead.cancel()) == (Cancellation.ENDED, Cancellation.ENDED)
    assert queue.cancel(letter) is Cancellation.ENDED
    assert tombstones(app) == [], "a redrive delivers them"
    assert done.result(0) == "ok"
    assert queue.cancel(lost) is Cancellation.UNKNOWN
    assert queue.cancel("never") is Cancellation.UNKNOWN
    assert all(answer.too_late for answer in (Cancellation.ENDED, Cancellation.UNKNOWN))


def test_received_message_is_dropped_when_it_comes_back(app: QWorker) -> None:
    """A receiver without a worker: the answer is `cancelling`, an ack counts, and another delivery never comes."""
    queue = app.queue("default")
    first, second = queue.send_many([{"n": 1}, {"n": 2}])
    one, two = queue.receive(2)
    assert (queue.cancel(first), queue.cancel(second)) == (Cancellation.CANCELLING,) * 2
    assert queue.ack(one)
    queue.release(two)
    assert queue.receive(2) == []
    assert history_of(queue) == {
        "acked": 1,
        "cancelled": 1,
        "received": 2,
        "released": 1,
        "sent": 2,
    }


# -- what runs ---------------------------------------------------------------------------------


class Outcomes(Middleware):
    """Notes how messages end."""

    def __init__(self) -> None:
        self.seen: list[tuple[str, str]] = []

    def after(self, context: Any, outcome: str, error: BaseException | None) -> None:
        self.seen.append((outcome, type(error).__name__))


def test_coroutine_is_cancelled_at_the_next_heartbeat(app: QWorker) -> None:
    """It may clean up, its message ends as cancelled wherever that shows, and its neighbour continues."""
    began, left, go = threading.Semaphore(0), threading.Event(), threading.Event()
    outcomes = Outcomes()
    app.middleware.append(outcomes)
    app.queue("default").configure(QueueAttributes(journal="all"))

    @app.task(result="1h")
    async def wait(n: int) -> bool:
        began.release()
        try:
            while not go.is_set():
                await asyncio.sleep(0.01)
            return current().cancelled  # type: ignore[union-attr]
        except asyncio.CancelledError:
            assert current().cancelled  # type: ignore[union-attr]
            left.set()
            raise

    one, two = wait.start(1), wait.start(2)
    with running(app) as child:
        assert began.acquire(timeout=DEADLINE_S)
        assert began.acquire(timeout=DEADLINE_S)
        assert one.cancel() is Cancellation.CANCELLING
        assert not left.is_set()
        heartbeat(app, child)
        until(left.is_set)
        ended_as(one, "cancelled")
        go.set()
        assert two.result("10s") is False
        until(lambda: len(outcomes.seen) == 2)
    assert outcomes.seen == [("cancelled", "CancelledError"), ("acked", "NoneType")]
    assert tombstones(app) == []
    assert journalled(app) == ["sent", "sent", "cancelled", "acked"]
    history = history_of(app.queue("default"))
    assert (history["acked"], history["cancelled"], history.get("nacked")) == (1, 1, None)


@pytest.mark.parametrize(
    ("end", "state"),
    [
        ("Cancel", "cancelled"), ("return", "ok"), ("Retry", "cancelled"), ("ValueError", "cancelled"),
        ("Bury", "dead"),
    ],
)  # fmt: skip
@pytest.mark.parametrize("concurrency", [1, 2])
def test_sync_handler_may_ask_and_says_how_it_ends(
    app: QWorker, concurrency: int, end: str, state: str
) -> None:
    """In the child's thread and in others: Cancel and any failure end it as cancelled, a return counts."""
    began = threading.Event()
    raised = {
        "Cancel": Cancel(),
        "Retry": Retry(0),
        "ValueError": ValueError("x"),
        "Bury": Bury("x"),
    }

    @app.task(result="1h")
    def work() -> str:
        began.set()
        until(lambda: current().cancelled)  # type: ignore[union-attr]
        if end in raised:
            raise raised[end]
        return end

    handle = work.start()
    with running(app, concurrency=concurrency) as child:
        assert began.wait(DEADLINE_S)
        assert handle.cancel() is Cancellation.CANCELLING
        heartbeat(app, child)
        if state == "ok":
            assert handle.result("10s") == "return"
        elif state == "dead":
            with pytest.raises(TaskFailedError):
                handle.result("10s")
        else:
            ended_as(handle, state)


def test_handler_that_finishes_before_it_noticed_has_finished(app: QWorker) -> None:
    """Its result stays, and the next cancel says that it came too late."""
    began, go = threading.Event(), threading.Event()

    @app.task(result="1h")
    def work() -> str:
        began.set()
        assert go.wait(DEADLINE_S)
        return "done"

    handle = work.start()
    with running(app):
        assert began.wait(DEADLINE_S)
        assert handle.cancel() is Cancellation.CANCELLING
        go.set()
        assert handle.result("10s") == "done"
    assert handle.cancel() is Cancellation.ENDED
    assert current() is None


def test_one_of_a_batch_takes_no_other_along(app: QWorker) -> None:
    """The call continues; the message ends with it, and is not tried again if it fails."""
    began, go = threading.Event(), threading.Event()

    @app.task(batch=3, max_wait="10s")
    async def work(numbers: list[int]) -> list[Exception | None]:
        began.set()
        while not go.is_set():
            await asyncio.sleep(0.01)
        return [None, ValueError("x"), None]

    ids = [work.send(n) for n in range(3)]
    queue = app.queue("default")
    with running(app) as child:
        assert began.wait(DEADLINE_S)
        assert queue.cancel(ids[0]) is Cancellation.CANCELLING
        assert queue.cancel(ids[1]) is Cancellation.CANCELLING
        heartbeat(app, child)
        time.sleep(0.2)
        go.set()
        until(lambda: history_of(queue).get("cancelled"))
    assert history_of(queue) == {"acked": 2, "cancelled": 1, "received": 3, "sent": 3}


def test_message_acked_before_its_start_cannot_be_cancelled(app: QWorker) -> None:
    """At most once: it has ended before it runs, and the answer says so."""
    began, go = threading.Event(), threading.Event()

    @app.task(at_most_once=True)
    def work() -> None:
        began.set()
        assert go.wait(DEADLINE_S)

    message_id = work.send()
    with running(app, concurrency=2):
        assert began.wait(DEADLINE_S)
        assert app.queue("default").cancel(message_id) is Cancellation.UNKNOWN
        go.set()


@pytest.mark.slow
def test_process_of_a_handler_that_goes_on_is_ended_after_the_grace(lab: Lab) -> None:
    """Its message ends as cancelled; what ran beside it starts again and carries no blame."""
    lab.app(
        "@app.task(max_receives=1)\n"
        "def work(n: int) -> None:\n"
        "    note('started', n)\n"
        "    while not os.path.exists('go'):\n"
        "        time.sleep(0.02)\n"
    )
    queue = lab.queue()
    ids = [lab.send("work", n) for n in range(2)]
    with lab.worker(
        "--concurrency", "2", "--batch", "1", "--visibility", "6s", "--cancel-grace", "200ms"
    ) as worker:
        until(lambda: len(lab.notes("started")) == 2)
        assert queue.cancel(ids[0]) is Cancellation.CANCELLING
        until(lambda: lab.noted("started")[2:] == [[1]])
        (lab.directory / "go").touch()
        until(lambda: history_of(queue).get("acked") == 1)
        assert [event["reason"] for event in worker.events("child_ended")] == ["cancelled"]
        assert len(worker.events("cancel_grace_exceeded")) == 1
    assert history_of(queue) == {
        "acked": 1, "cancelled": 1, "received": 3, "released": 1, "sent": 2
    }  # fmt: skip
