"""Run the plan of an operation for each shard of a queue. A queue that is not divided is its only shard."""

from __future__ import annotations

from collections.abc import Callable, Generator
from functools import wraps
from typing import Any, Concatenate, ParamSpec, TypeVar

from qworker.client.message import Message
from qworker.client.plan import Plan
from qworker.client.queue_ref import QueueRef

__all__ = ["chained", "everywhere", "nothing", "sum_of", "until_found", "where_held"]

P = ParamSpec("P")
T = TypeVar("T")
#: Makes a plan for a queue and arguments.
Operation = Callable[Concatenate[QueueRef, P], Plan[T]]


def chained(lists: list[list[T]]) -> list[T]:
    """Concatenate lists."""
    return [item for items in lists for item in items]


def nothing(_: list[None]) -> None:
    """Return None."""


def sum_of(numbers: list[int]) -> int:
    """Add up numbers."""
    return sum(numbers)


def everywhere(
    merge: Callable[[list[T]], T],
) -> Callable[[Operation[P, T]], Operation[P, T]]:
    """Run an operation in every shard; `merge` makes one result of theirs, in the order of the shards."""

    def decorate(operation: Operation[P, T]) -> Operation[P, T]:
        @wraps(operation)
        def run(queue: QueueRef, /, *args: P.args, **kwargs: P.kwargs) -> Plan[T]:
            results = []
            for shard in (yield from queue.every_shard()):
                results.append((yield from operation(shard, *args, **kwargs)))
            return results[0] if len(results) == 1 else merge(results)

        return run

    return decorate


def until_found(operation: Operation[P, T | None]) -> Operation[P, T | None]:
    """Run an operation in one shard after the other, until one has a result."""

    @wraps(operation)
    def run(queue: QueueRef, /, *args: P.args, **kwargs: P.kwargs) -> Plan[T | None]:
        result = None
        for shard in (yield from queue.every_shard()):
            result = yield from operation(shard, *args, **kwargs)
            if result is not None:
                break
        return result

    return run


def where_held(
    operation: Callable[Concatenate[QueueRef, Message, P], Plan[T]],
) -> Callable[Concatenate[QueueRef, Message, P], Plan[T]]:
    """Run an operation in the shard that delivered the message, which its receipt names."""

    @wraps(operation)
    def run(
        queue: QueueRef, message: Message, /, *args: P.args, **kwargs: P.kwargs
    ) -> Generator[Any, Any, T]:
        return operation(queue.shard(message.receipt.shard), message, *args, **kwargs)

    return run
