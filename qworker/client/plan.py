"""Plans: operations without I/O, which the sync and the async client run alike."""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterable, Sequence
from itertools import islice
from typing import Any, Generic, TypeVar, cast

from qworker.engine.command import Brief, Command, Pause, Soon, Together
from qworker.engine.send import SendCall
from qworker.errors import QworkerError

__all__ = ["Plan", "Trips", "all_together", "each_soon", "run_plan", "run_plans", "side_by_side"]

T = TypeVar("T")

#: Yields commands, sends and pauses, gets their results, and returns the operation's result.
Plan = Generator[Command[Any] | Brief[Any] | Soon[Any] | Together | SendCall | Pause, Any, T]


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
    """Perform plans `side_by_side`, all at a time, without a client to run them; returns their results or errors."""
    steps = side_by_side(plans, len(plans))
    answers: Any = None
    try:
        while True:
            answers = execute_each([*steps.send(answers).commands])
    except StopIteration as end:
        outcomes: list[T | QworkerError] = end.value
        return outcomes


class Trips(Generic[T]):
    """A plan of commands, performed a trip at a time by a reaper that has little time in each pass.

    `answers`: to the trip before; who makes it leaves them here. `result`: of the plan, after its last trip.
    """

    def __init__(self, plan: Plan[T]) -> None:
        self.answers: Any = None
        self.result: T | None = None
        self._steps = side_by_side([plan], 1)

    def next(self) -> Together | None:
        """Return the commands of the next trip; None after the last one. Raises the error of the plan."""
        try:
            return self._steps.send(self.answers)
        except StopIteration as end:
            (outcome,) = end.value
            if isinstance(outcome, QworkerError):
                raise outcome from None
            self.result = outcome
            return None


def side_by_side(
    plans: Iterable[Plan[T]], width: int
) -> Generator[Together, Any, list[T | QworkerError]]:
    """Perform plans of commands side by side, `width` of them at a time: each trip has one step of each.

    A step is a command, or a `Together`.

    Returns the result or the error of each. Raises errors of commands inside their plans, which may continue.
    """
    waiting = enumerate(plans)
    running: dict[int, Plan[T]] = {}
    replies: dict[int, Any] = {}
    outcomes: dict[int, T | QworkerError] = {}
    try:
        while True:
            for index, plan in islice(waiting, width - len(running)):
                running[index], replies[index] = plan, None
            steps: dict[int, Command[Any] | Together] = {}
            for index, reply in replies.items():
                plan = running[index]
                try:
                    failed = isinstance(reply, QworkerError)
                    step = plan.throw(reply) if failed else plan.send(reply)
                    assert isinstance(step, Command | Together), step
                    steps[index] = step
                except StopIteration as end:
                    outcomes[index] = end.value
                    del running[index]
                except QworkerError as error:
                    outcomes[index] = error
                    del running[index]
            if steps:
                commands = [
                    command
                    for step in steps.values()
                    for command in (step.commands if isinstance(step, Together) else (step,))
                ]
                results = iter((yield Together(commands)))
                replies = {
                    index: [next(results) for _ in step.commands]
                    if isinstance(step, Together)
                    else next(results)
                    for index, step in steps.items()
                }
            elif not replies:
                return [outcomes[index] for index in sorted(outcomes)]
            else:
                replies = {}
    finally:
        for plan in running.values():
            plan.close()


def all_together(commands: Sequence[Command[T]]) -> Plan[list[T]]:
    """Execute commands of one queue each in one trip. Raises the first error of them."""
    replies: list[T | QworkerError] = (yield Together(commands)) if commands else []
    for reply in replies:
        if isinstance(reply, QworkerError):
            raise reply
    return cast(list[T], replies)


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
