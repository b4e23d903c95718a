"""What operators do to tasks and to messages that run: pause a task without its queue, cancel a running message."""

from __future__ import annotations

import asyncio
import json
import re
import threading
from typing import Any

import pytest

from qworker import QWorker
from qworker.client.message import Receipt
from qworker.client.namespace.paused_tasks import pause_task, read_paused_tasks, resume_task
from qworker.consumer.board.board import Board
from qworker.consumer.board.clock import boot_time, since_of
from qworker.consumer.board.orders import MAX_CANCELLED
from qworker.consumer.child.handlers.unrunnable import pause_of_paused_ms
from qworker.daemon.schedules import server_now_ms
from qworker.errors import InvalidNameError
from qworker.wire.keys import workers_key
from tests.consumer.driving import DEADLINE_S, drain, history_of, make_due, running, until
from tests.consumer.supervisor.test_control import ask, name_of_worker, operate
from tests.consumer.workers import Lab

WAITING = """
@app.task(max_receives=1)
async def wait(n: int) -> None:
    note("started", n)
    try:
        await asyncio.sleep(600)
    finally:
        note("left", n)

@app.task(queue="slow", max_receives=1)
def block(n: int) -> None:
    note("started", n)
    while not os.path.exists("go"):
        time.sleep(0.02)
    note("ended", n)
"""


def pause(app: QWorker, task: str) -> None:
    execute = app.client.execute
    pause_task(execute, app.namespace, task, server_now_ms(execute))


# -- pausing a task ----------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["sync", "async", "batch", "at most once", "by name"])
def test_messages_of_a_paused_task_wait_uncounted_and_hold_up_no_others(
    app: QWorker, kind: str
) -> None:
    """Of any kind of handler; they keep their tries, and run when the task is resumed."""
    ran: list[Any] = []
    if kind == "async":

        @app.task(name="paused", max_receives=1)
        async def _(n: int) -> None:
            await asyncio.sleep(0)
            ran.append(n)

    elif kind == "batch":
        app.task(name="paused", batch=10, max_receives=1)(_extend(ran))
    else:
        options = {"at_most_once": kind == "at most once", "max_receives": 1}
        app.task(name="paused", **options)(_append(ran))
    app.task(name="other")(lambda: ran.append("other"))
    queue = app.queue("default")
    pause(app, "paused")
    call: dict[str, Any] = {"task": "paused", "args": [1]}
    if kind == "by name":
        call = {"task": "paused", "kwargs": {"n": 1}}
    queue.send_many([call, call, {"task": "other"}])

    for _ in range(3):
        drain(app)
        make_due(app)
    assert ran == ["other"]
    assert [message.nacks + message.timeouts for message in queue.peek(10)] == [0, 0]

    assert resume_task(app.client.execute, app.namespace, "paused") is True
    drain(app)
    assert ran == ["other", 1, 1]
    assert history_of(queue)["acked"] == 3


def _append(ran: list[Any]) -> Any:
    def handler(n: int) -> None:
        ran.append(n)

    return handler


def _extend(ran: list[Any]) -> Any:
    def handler(numbers: list[int]) -> None:
        ran.extend(numbers)

    return handler


def test_a_child_that_runs_follows_a_pause_and_a_resume(app: QWorker) -> None:
    """By its board, between two messages."""
    ran: list[int] = []
    app.task(name="first")(ran.append)
    app.task(name="second")(ran.append)
    queue = app.queue("default")
    with running(app) as child:
        child.board.orders.pause([0.0, boot_time()])
        queue.send_many([{"task": "second", "args": [2]}, {"task": "first", "args": [1]}])
        until(lambda: ran == [1] and queue.inspect().delayed == 1)
        child.board.orders.pause([0.0, 0.0])
        make_due(app)
        until(lambda: ran == [1, 2])


def test_orders_are_read_as_they_were_written() -> None:
    """Tasks beyond those with counters are never paused; a message is cancelled by its own name alone, and once."""
    board = Board.create(1)
    orders = board.orders
    assert [orders.paused_since(number) for number in (0, 4095, 4096)] == [None, None, None]
    orders.pause([0.0, 5.0, *[0.0] * 4093, 7.0, 8.0])
    assert [orders.paused_since(number) for number in (0, 1, 4095, 4096)] == [None, 5.0, 7.0, None]
    assert board.words[orders.paused_word] == 2
    orders.pause([0.0])
    assert board.words[orders.paused_word] == 0

    assert (orders.any_cancelled, orders.cancelled_at("lease-1", 999)) == (False, None)
    orders.cancel("lease-1", 999, 5.0)
    orders.cancel("lease-1", 999, 6.0)
    assert orders.any_cancelled
    assert orders.cancelled_at("lease-1", 999) == 5.0
    assert [orders.cancelled_at(*it) for it in (("lease-1", 998), ("lease-2", 999))] == [None] * 2
    for number in range(MAX_CANCELLED):
        orders.cancel(f"lease-{number}", 0, float(number))
    assert orders.cancelled_at(f"lease-{MAX_CANCELLED - 1}", 0) == MAX_CANCELLED - 1.0
    assert orders.cancelled_at("lease-1", 999) is None, "the oldest makes room"
    board.close()


def test_pauses_of_messages_grow_to_a_minute() -> None:
    """So long a resume takes at most; a task is paused from its first moment on."""
    pauses = [pause_of_paused_ms(each, lambda: 0.0) for each in (0, 20_000, 100_000, 10**9)]
    assert pauses == [2000, 4000, 20_000, 60_000]
    assert since_of(["a", "b"], {"b": 10**9})[0] == 0.0
    assert since_of(["a", "b"], {"b": 10**9})[1] > 0.0


def test_a_task_is_paused_and_resumed_once(app: QWorker) -> None:
    """What is not the name of a task is refused."""
    execute, namespace = app.client.execute, app.namespace
    assert pause_task(execute, namespace, "a", 5) is True
    assert pause_task(execute, namespace, "a", 9) is False
    assert read_paused_tasks(execute, namespace) == {"a": 5}
    assert resume_task(execute, namespace, "a") is True
    assert resume_task(execute, namespace, "a") is False
    with pytest.raises(InvalidNameError, match="task"):
        pause_task(execute, namespace, "a b", 5)


@pytest.mark.slow
def test_a_task_is_paused_by_the_command_line(lab: Lab) -> None:
    """From the first message of a worker that starts meanwhile, and without a restart of one that runs."""
    lab.app(
        "@app.task\ndef one() -> None:\n    note('one')\n@app.task\ndef two() -> None:\n    note('two')\n"
    )
    assert operate(lab, "task", "pause", "one").stdout == "one: paused\n"
    lab.send("one")
    lab.send("two")
    with lab.worker():
        until(lambda: lab.notes("two"))
        name_of_worker(lab)
        wrong = operate(lab, "task", "pause", "onne")
        assert (wrong.exit_code, "did you mean 'one'?" in wrong.stderr) == (2, True)
        listed = json.loads(operate(lab, "task", "ls", "--json").stdout)["tasks"]
        assert [(row["task"], row["workers"]) for row in listed] == [("one", 1), ("two", 1)]
        assert [task["paused_ms"] is not None for task in listed] == [True, False]
        assert "resume one" in operate(lab, "doctor").stdout
        assert lab.notes("one") == []
        assert operate(lab, "task", "resume", "one").stdout == "one: resumed\n"
        until(lambda: lab.notes("one"))
    again = operate(lab, "task", "resume", "one")
    assert (again.exit_code, "no task is paused" in again.stderr) == (2, True)


# -- cancelling what runs ----------------------------------------------------------------------


def receipts(lab: Lab) -> list[str]:
    """Receipts of what runs, as the worker tells them."""
    documents = [json.loads(each) for each in ask(lab, "HVALS", workers_key(lab.namespace))]
    children = [child for document in documents for child in document["children"]]
    return [message["id"] for child in children for message in child["running"]]


@pytest.mark.slow
def test_a_running_coroutine_is_cancelled(lab: Lab) -> None:
    """It leaves through its finally, the message is done, and the others of its process continue."""
    lab.app(WAITING)
    ids = [lab.send("wait", n) for n in range(3)]
    with lab.worker("--grace", "0s"):
        until(lambda: len(lab.notes("started")) == 3)
        until(lambda: len(receipts(lab)) == 3)
        # The same names as everywhere: what `top` shows is what `message show` finds.
        queue = lab.queue()
        held = {str(message.receipt): message.id for message in queue.peek(10, state="unacked")}
        assert sorted(held[receipt] for receipt in receipts(lab)) == sorted(ids)
        ((_, handlers),) = json.loads(operate(lab, "worker", "stack", "--json").stdout)[
            "workers"
        ].items()
        assert sorted(handler["id"] for handler in handlers) == sorted(receipts(lab))
        done = operate(lab, "message", "cancel", ids[1], "--running", "--yes")
        assert done.exit_code == 0, done.output
        # By its worker at once, or at a heartbeat before.
        assert re.search("its (coroutine is cancelled|handler has ended)", done.stdout)
        until(lambda: lab.noted("left") == [[1]])
        until(lambda: history_of(queue).get("cancelled") == 1)
        assert "dead" not in history_of(queue)
        gone = operate(lab, "message", "cancel", ids[1], "--running", "--yes")
        assert (gone.exit_code, "not found in" in gone.stderr) == (1, True)


def test_a_coroutine_is_cancelled_by_the_id_of_its_lease(app: QWorker) -> None:
    """A lease slot may have another lease by the time that the child looks: that one continues."""
    began, left = threading.Event(), threading.Event()

    @app.task(max_receives=1)
    async def wait() -> None:
        began.set()
        try:
            await asyncio.sleep(600)
        finally:
            left.set()

    wait.send()
    with running(app) as child:
        assert began.wait(DEADLINE_S)
        (view,) = child.board.running.views()
        (lease,) = [each for each in child.board.leases.views() if each.slot == view.lease]
        orders = child.board.orders
        orders.cancel("another-1", view.position, 1.0)
        orders.cancel(lease.lease_id, view.position + 1, 1.0)
        assert not left.wait(0.2)
        orders.cancel(lease.lease_id, view.position, 1.0)
        until(left.is_set)
        until(lambda: history_of(app.queue("default")).get("cancelled") == 1)


@pytest.mark.slow
def test_what_is_one_of_a_batch_is_not_stopped(lab: Lab) -> None:
    """Whichever of them is asked for: the others of its call would be lost with it."""
    lab.app(
        "@app.task(batch=10, max_wait='200ms')\nasync def many(numbers: list[int]) -> None:\n"
        "    note('started', numbers)\n    await asyncio.sleep(600)\n"
    )
    ids = lab.queue().send_many([{"task": "many", "args": [n]} for n in range(3)])
    with lab.worker("--grace", "0s"):
        until(lambda: len(lab.notes("started")) == 1)
        name_of_worker(lab)
        last = operate(lab, "message", "cancel", ids[2], "--kill", "--yes")
    assert last.exit_code == 1
    assert "it runs in a batch of many" in last.stderr
    assert "dropped if it is requeued" in last.stderr


@pytest.mark.slow
def test_a_sync_handler_is_stopped_by_the_end_of_its_process_alone(lab: Lab) -> None:
    """Refused without --kill; with it the message is done, and what ran beside it starts again."""
    lab.app(WAITING)
    ids = [lab.send("block", n, queue="slow") for n in range(2)]
    with lab.worker("--concurrency", "2", "--queues", "slow", "--batch", "1") as worker:
        until(lambda: len(lab.notes("started")) == 2)
        name_of_worker(lab)
        refused = operate(lab, "message", "cancel", ids[0], "--running", "--yes")
        assert refused.exit_code == 1
        assert "block is not async" in refused.stderr
        assert "--kill does so" in refused.stderr
        assert len(lab.notes("started")) == 2

        killed = operate(lab, "message", "cancel", ids[0], "--kill", "--yes", "--json")
        assert json.loads(killed.stdout)["stopped"] is True
        until(lambda: lab.noted("started")[2:] == [[1]])
        (lab.directory / "go").touch()
        until(lambda: lab.noted("ended") == [[1]])
        assert [event["reason"] for event in worker.events("child_ended")] == ["cancelled"]
    assert history_of(lab.queue("slow")) == {
        "acked": 1, "cancelled": 1, "received": 3, "released": 1, "sent": 2
    }  # fmt: skip


def test_a_receipt_names_a_message_alone_and_in_company() -> None:
    """The form that workers tell is the one that commands read."""
    assert str(Receipt("lease", "0")) == "lease:0"
    assert Receipt.parse("lease:3/2") == Receipt("lease", "3", 2)
