"""Plans: operations without I/O, which the sync and the async client run alike."""

from __future__ import annotations

from collections.abc import Callable, Generator, Sequence
from typing import Any, TypeVar

from qworker.engine.command import Brief, Command, Pause, Soon
from qworker.engine.send import SendCall
from qworker.errors import QworkerError

__all__ = ["Plan", "each_soon", "run_plan", "run_plans"]

T = TypeVar("T")

#: Yields commands, sends and pauses, gets their results, and returns the operation's result.
Plan = Generator[Command[Any] | Brief[Any] | Soon[Any] | SendCall | Pause, Any, T]


def run_plan(execute: Callable[[Command[Any]], Any], plan: Generator[Any, Any, T]) -> T:
    """Execute the commands of a plan that neither sends nor waits, without a client to run it.

    Raises errors inside the plan, which may continue.
    """
    result: Any = None
    try:
        step = plan.send(None)
        while True:
            try:
                result = execute(step.command if isinstance(step, Brief) else step)
            except QworkerError as error:
                if not isinstance(step, Brief):
                    step = plan.throw(error)
                    continue
                result = None
            step = plan.send(result)
    except StopIteration as end:
        returned: T = end.value
        return returned


def run_plans(
    execute_each: Callable[[list[Command[Any]]], Sequence[Any]],
    plans: Sequence[Generator[Command[Any], Any, T]],
) -> list[T | QworkerError]:
    """Execute plans of commands side by side, one command of each per step; returns their results or errors."""
    outcomes: dict[int, T | QworkerError] = {}
    replies: dict[int, Any] = dict.fromkeys(range(len(plans)))
    while replies:
        commands = {}
        for index, reply in replies.items():
            if isinstance(reply, QworkerError):
                plans[index].close()
                outcomes[index] = reply
                continue
            try:
                commands[index] = plans[index].send(reply)
            except StopIteration as end:
                outcomes[index] = end.value
        results = execute_each([*commands.values()]) if commands else ()
        replies = dict(zip(commands, results, strict=True))
    return [outcomes[index] for index in range(len(plans))]


def each_soon(plan: Plan[T], within_s: float, since: float = float("-inf")) -> Plan[T]:
    """Make every command of a plan a `Soon`."""
    result: Any = None
    try:
        step = next(plan)
        while True:
            if isinstance(step, Command):
                step = Soon(step, within_s, since)
            try:
                result = yield step
            except QworkerError as error:
                step = plan.throw(error)
            else:
                step = plan.send(result)
    except StopIteration as end:
        returned: T = end.value
        return returned
    finally:
        plan.close()
