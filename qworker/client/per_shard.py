"""Run the plan of an operation for each shard of a queue. A queue that is not divided is its only shard.

A shard that cannot serve (a key of another type, its node away) does not keep the others from it.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Sequence
from functools import wraps
from typing import Any, Concatenate, ParamSpec, TypeVar

from qworker.client.message import Message, check_received
from qworker.client.plan import Plan
from qworker.client.queue_ref import QueueRef
from qworker.errors import (
    BrokenQueueError,
    InDoubtError,
    LoadingError,
    QworkerError,
    UnavailableError,
    server_refused,
)
from qworker.telemetry.logger import logger

__all__ = [
    "chained",
    "each_readable",
    "everywhere",
    "nothing",
    "of_one_key",
    "of_one_shard",
    "sum_of",
    "until_found",
    "where_held",
]

_log = logger(__name__)

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


def of_one_key(error: QworkerError) -> bool:
    """Say whether an error is one that other keys of the queue may not have: its type."""
    return isinstance(error, BrokenQueueError) or server_refused(error)


def of_one_shard(error: QworkerError) -> bool:
    """Say whether an error is one that other shards of the queue may not have: a key, or a node that is away."""
    away = isinstance(error, UnavailableError | InDoubtError | LoadingError)
    return away or of_one_key(error)


def each_readable(shards: Sequence[QueueRef], read: Callable[[QueueRef], Plan[T]]) -> Plan[list[T]]:
    """Read every shard; one that cannot be read is logged (`shard_unread`). If none can, raises the first error."""
    results: list[T] = []
    failed: list[tuple[QueueRef, QworkerError]] = []
    for shard in shards:
        try:
            results.append((yield from read(shard)))
        except QworkerError as error:
            if not of_one_shard(error):
                raise
            failed.append((shard, error))
    if failed and not results:
        raise failed[0][1]
    for shard, problem in failed:
        _log.warning("shard_unread", queue=shard.keys.queue, error=str(problem))
    return results


def everywhere(
    merge: Callable[[list[T]], T],
    *,
    reads: bool = False,
    shards_of: Callable[[QueueRef], Plan[list[QueueRef]]] = QueueRef.every_shard,
) -> Callable[[Operation[P, T]], Operation[P, T]]:
    """Run an operation in every shard; `merge` makes one result of theirs, in the order of the shards.

    `shards_of` finds the shards. The error of one is raised after all others had their turn; with `reads` as by
    `each_readable`.
    """

    def decorate(operation: Operation[P, T]) -> Operation[P, T]:
        @wraps(operation)
        def run(queue: QueueRef, /, *args: P.args, **kwargs: P.kwargs) -> Plan[T]:
            shards = yield from shards_of(queue)
            if reads:
                results = yield from each_readable(
                    shards, lambda shard: operation(shard, *args, **kwargs)
                )
                return results[0] if len(shards) == 1 else merge(results)
            results, failed = [], None
            for shard in shards:
                try:
                    results.append((yield from operation(shard, *args, **kwargs)))
                except QworkerError as error:
                    if not of_one_shard(error):
                        raise
                    failed = failed or error
            if failed is not None:
                raise failed
            return results[0] if len(results) == 1 else merge(results)

        return run

    return decorate


def until_found(operation: Operation[P, T | None]) -> Operation[P, T | None]:
    """Run an operation in one shard after the other, until one has a result.

    What is in none of them may be in a new one, which another client has made since the shards were read: they are read
    again. Raises the error of a shard that could not be asked if the known ones have no result.
    """

    @wraps(operation)
    def run(queue: QueueRef, /, *args: P.args, **kwargs: P.kwargs) -> Plan[T | None]:
        failed, shards, asked = None, (yield from queue.every_shard()), 0
        while asked < len(shards):
            for shard in shards[asked:]:
                try:
                    result = yield from operation(shard, *args, **kwargs)
                except QworkerError as error:
                    if not of_one_shard(error):
                        raise
                    failed = failed or error
                else:
                    if result is not None:
                        return result
            if failed is not None:
                raise failed
            asked, shards = len(shards), (yield from queue.every_shard(refresh=True))
        return None

    return run


def where_held(
    operation: Callable[Concatenate[QueueRef, Message, P], Plan[T]],
) -> Callable[Concatenate[QueueRef, Message, P], Plan[T]]:
    """Run an operation in the shard that delivered the message, which its receipt names."""

    @wraps(operation)
    def run(
        queue: QueueRef, message: Message, /, *args: P.args, **kwargs: P.kwargs
    ) -> Generator[Any, Any, T]:
        check_received([message])
        return operation(queue.shard(message.receipt.shard), message, *args, **kwargs)

    return run
