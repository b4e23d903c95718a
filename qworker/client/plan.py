"""Plans: operations without I/O, run by the sync and by the async client alike."""

from __future__ import annotations

from collections.abc import Callable, Generator, Sequence
from typing import Any, TypeVar

from qworker.client.commands.command import Brief, Command, Pause, Soon
from qworker.client.commands.sending import SendCall
from qworker.errors import QworkerError

__all__ = ["Plan", "each_soon", "run_plan", "run_plans", "server_ms"]

T = TypeVar("T")

#: Yields commands, sends and pauses, is sent what they came to, and returns the operation's result.
Plan = Generator[Command[Any] | Brief[Any] | Soon[Any] | SendCall | Pause, Any, T]


def run_plan(execute: Callable[[Command[Any]], Any], plan: Generator[Any, Any, T]) -> T:
    """Execute the commands of a plan that neither sends nor waits, where there is no client to run it.

    An error is raised in the plan, which may go on.
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
        found: T = end.value
        return found


def run_plans(
    execute_each: Callable[[list[Command[Any]]], Sequence[Any]],
    plans: Sequence[Generator[Command[Any], Any, T]],
) -> list[T | QworkerError]:
    """Execute plans that only ask side by side, the next command of each together; returns their results or errors."""
    outcomes: dict[int, T | QworkerError] = {}
    replies: dict[int, Any] = dict.fromkeys(range(len(plans)))
    while replies:
        commands = {}
        for number, reply in replies.items():
            if isinstance(reply, QworkerError):
                plans[number].close()
                outcomes[number] = reply
                continue
            try:
                commands[number] = plans[number].send(reply)
            except StopIteration as end:
                outcomes[number] = end.value
        found = execute_each([*commands.values()]) if commands else ()
        replies = dict(zip(commands, found, strict=True))
    return [outcomes[number] for number in range(len(plans))]


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
        found: T = end.value
        return found
    finally:
        plan.close()


def server_ms() -> Command[int]:
    """Ask for the server's time in ms since 1970."""
    return Command(None, (), ("TIME",), lambda reply: int(reply[0]) * 1000 + int(reply[1]) // 1000)
