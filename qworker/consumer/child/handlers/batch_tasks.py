"""Batch handlers: one call for many messages, each with its own outcome.

A handler returns None (all are handled), or a list with an item for each message: None for a handled one, an exception
for any other (`Retry`, `Discard`, … or an error). An exception that it raises ends all of them.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextvars import copy_context
from typing import TYPE_CHECKING, Any, Final

from qworker.app.context import running
from qworker.app.control import ControlFlow
from qworker.app.log_context import running_batch
from qworker.consumer.board.counters import OUTCOMES, TIME_LIMIT
from qworker.consumer.child.handlers.awaiting import needs_awaiting
from qworker.errors import QworkerError
from qworker.telemetry.guarded import guarded

if TYPE_CHECKING:
    from qworker.app.task import Task
    from qworker.consumer.child.handlers.runner import Runner
    from qworker.consumer.child.leases.delivery import Delivery

__all__ = ["BatchResultError", "arun_group", "run_group"]

_log = guarded(__name__)

#: Messages of a batch named in a line of the log.
_NAMED: Final = 20


class BatchResultError(QworkerError):
    """A batch handler returned neither None nor a list with None or an exception for each message."""


def run_group(runner: Runner, slot: int, group: list[Delivery]) -> None:
    """Run a sync batch handler over a group in its own context; notes how each delivery ends. Raises nothing."""
    running.set(None)
    copy_context().run(_run_group, runner, slot, group)


def _run_group(runner: Runner, slot: int, group: list[Delivery]) -> None:
    ready = _enter(runner, slot, group)
    if not ready:
        return
    task = _task_of(ready)
    outside = running_batch.set((task.name, task.queue, len(ready)))
    try:
        results = task.function([delivery.args[0] for delivery in ready])
        if results is not None and needs_awaiting(results, task.name):
            results = runner.finish(task, results, copy_context())
        _conclude(runner, task, ready, results)
    except BaseException as error:  # noqa: BLE001 - SystemExit of a handler is its failure too
        _fail_all(runner, ready, error)
    running_batch.reset(outside)
    _leave(runner, slot, ready)


async def arun_group(runner: Runner, slot: int, group: list[Delivery]) -> None:
    """Run an async batch handler over a group, as `run_group` does, in the context of the caller."""
    ready = _enter(runner, slot, group)
    if not ready:
        return
    task = _task_of(ready)
    outside = running_batch.set((task.name, task.queue, len(ready)))
    try:
        results = task.function([delivery.args[0] for delivery in ready])
        while results is not None and needs_awaiting(results, task.name):
            results = await results
        _conclude(runner, task, ready, results)
    except BaseException as error:  # noqa: BLE001
        _fail_all(runner, ready, error)
    running_batch.reset(outside)
    _leave(runner, slot, ready)


def _task_of(group: Sequence[Delivery]) -> Task[..., Any]:
    task = group[0].task
    assert task is not None
    return task


def _enter(runner: Runner, slot: int, group: Sequence[Delivery]) -> list[Delivery]:
    """Mark the deliveries of a group as running, without those that have ended already."""
    now = runner.clock()
    ready = [delivery for delivery in group if _begin(runner, delivery, now)]
    if ready:
        # One running slot represents the group: its other messages are only marked on their leases.
        runner.enter(slot, ready, now)
    return ready


def _begin(runner: Runner, delivery: Delivery, now: float) -> bool:
    if not runner.mark_running(delivery, now):
        return False
    if runner.middleware:
        try:
            runner.before(delivery)
        except BaseException as error:  # noqa: BLE001 - the message fails with it
            runner.endings.fail(delivery, error)
            return False
    return True


def _leave(runner: Runner, slot: int, ready: Sequence[Delivery]) -> None:
    took_s = (runner.clock() - ready[0].started) / len(ready)
    for delivery in ready:
        delivery.took_s = took_s
    runner.board.running.end(slot)


def _conclude(
    runner: Runner, task: Task[..., Any], ready: Sequence[Delivery], results: object
) -> None:
    if results is None:
        for delivery in ready:
            runner.endings.succeed(delivery)
        return
    if (
        not isinstance(results, Sequence)
        or len(results) != len(ready)
        or not all(result is None or isinstance(result, BaseException) for result in results)
    ):
        raise BatchResultError(
            f"batch task {task.name!r} must return None, or a list of {len(ready)} entries, each None or "
            f"an exception; it returned {type(results).__name__}"
        )
    for delivery, result in zip(ready, results, strict=True):
        if result is None:
            runner.endings.succeed(delivery)
        else:
            runner.endings.fail(delivery, result)


def _fail_all(runner: Runner, ready: Sequence[Delivery], error: BaseException) -> None:
    """End all with one error, and with one line in the log."""
    if len(ready) == 1:
        runner.endings.fail(ready[0], error)
        return
    for delivery in ready:
        runner.endings.fail(delivery, error, quiet=True)
    first = ready[0]
    if isinstance(error, ControlFlow) and first.cancelled_for != TIME_LIMIT:
        return
    envelopes = [delivery.envelope() for delivery in ready]
    _log.warning(
        "messages_failed",
        queue=first.lease.queue.name,
        task=_task_of(ready).name,
        messages=len(ready),
        message_ids=[envelope.id for envelope in envelopes[:_NAMED] if envelope is not None],
        error=first.error[0],
        exception=first.error[1],
        dead=sum(OUTCOMES[delivery.outcome] == "buried" for delivery in ready),
    )
