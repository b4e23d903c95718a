"""Operations on a queue of several shards: the plan of one shard, made for each of them.

A queue that is not divided is its own only shard, so this is how every verb runs.
"""

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
#: A plan of a queue with its arguments.
Operation = Callable[Concatenate[QueueRef, P], Plan[T]]


def chained(lists: list[list[T]]) -> list[T]:
    """Put lists behind each other."""
    return [each for some in lists for each in some]


def nothing(_: list[None]) -> None:
    """Make nothing of what returns nothing."""


def sum_of(numbers: list[int]) -> int:
    """Add numbers up."""
    return sum(numbers)


def everywhere(
    merge: Callable[[list[T]], T],
) -> Callable[[Operation[P, T]], Operation[P, T]]:
    """Do it in every shard; `merge` makes one result of theirs, in the order of the shards."""

    def spread(operation: Operation[P, T]) -> Operation[P, T]:
        @wraps(operation)
        def done(queue: QueueRef, /, *args: P.args, **kwargs: P.kwargs) -> Plan[T]:
            results = []
            for shard in (yield from queue.every_shard()):
                results.append((yield from operation(shard, *args, **kwargs)))
            return results[0] if len(results) == 1 else merge(results)

        return done

    return spread


def until_found(operation: Operation[P, T | None]) -> Operation[P, T | None]:
    """Do it in one shard after the other, until one of them has a result."""

    @wraps(operation)
    def done(queue: QueueRef, /, *args: P.args, **kwargs: P.kwargs) -> Plan[T | None]:
        found = None
        for shard in (yield from queue.every_shard()):
            found = yield from operation(shard, *args, **kwargs)
            if found is not None:
                break
        return found

    return done


def where_held(
    operation: Callable[Concatenate[QueueRef, Message, P], Plan[T]],
) -> Callable[Concatenate[QueueRef, Message, P], Plan[T]]:
    """Do it in the shard that delivered the message, which its receipt names."""

    @wraps(operation)
    def done(
        queue: QueueRef, message: Message, /, *args: P.args, **kwargs: P.kwargs
    ) -> Generator[Any, Any, T]:
        return operation(queue.shard(message.receipt.shard), message, *args, **kwargs)

    return done
