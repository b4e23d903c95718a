"""Received messages by shard and by lease, in pages that one call settles."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Final

from qworker.chunks import chunks
from qworker.client.message import Message, check_received
from qworker.client.plan import Plan, each_soon
from qworker.client.queue_ref import QueueRef
from qworker.errors import (
    QworkerError,
    ServerError,
)
from qworker.telemetry.logger import logger

__all__ = ["by_lease", "cut_leases", "pages_of", "shard_by_shard"]

_log = logger(__name__)

#: Leases of one call.
_LEASES: Final = 64
#: Seconds that a shard has to reply while others wait.
_SOON_S: Final = 0.5


def shard_by_shard(
    queue: QueueRef,
    messages: Sequence[Message],
    settle_in: Callable[[QueueRef, Sequence[Message], list[Message]], Plan[None]],
) -> Plan[list[Message]]:
    """Settle the messages of each shard; returns those that counted, which `settle_in` adds to its list.

    A shard that does not reply soon is tried again after the others.
    """
    check_received(messages)
    shards: dict[int, list[Message]] = {}
    for message in messages:
        shards.setdefault(message.receipt.shard, []).append(message)
    counted: list[Message] = []
    refused: QworkerError | None = None
    waiting = list(shards)
    if len(shards) > 1:
        for number in shards:
            shard = queue.shard(number)
            plan = each_soon(settle_in(shard, shards[number], counted), _SOON_S)
            try:
                yield from plan
            except ServerError:
                continue  # It has more time below.
            except QworkerError as error:
                _log.warning("settle_failed", queue=shard.keys.queue, error=str(error))
                refused = error
            waiting.remove(number)
    for number in waiting:
        shard = queue.shard(number)
        try:
            yield from settle_in(shard, shards[number], counted)
        except QworkerError as error:
            if not counted:
                raise
            _log.warning("settle_failed", queue=shard.keys.queue, error=str(error))
    if refused is not None and not counted:
        raise refused
    return counted


def by_lease(messages: Iterable[Message]) -> list[list[Message]]:
    """Group messages by their leases, in order."""
    leases: dict[str, list[Message]] = {}
    for message in messages:
        leases.setdefault(message.receipt.lease_id, []).append(message)
    return list(leases.values())


def cut_leases(
    leases: Iterable[list[Message]], most: int, most_bytes: int
) -> Iterator[list[Message]]:
    """Cut leases into pieces that one call moves. Two pieces of a lease never fit in one call."""
    for lease in leases:
        yield from chunks(
            lease, lambda message: len(message.body), most_bytes=most_bytes, most=most
        )


def pages_of(
    leases: Iterable[list[Message]], most: int, most_bytes: int | None = None
) -> Iterator[list[list[Message]]]:
    """Divide leases into pages of up to 64 leases, `most` messages and `most_bytes` of their bodies."""
    page: list[list[Message]] = []
    number = size = 0
    for lease in leases:
        more = 0 if most_bytes is None else sum(len(message.body) for message in lease)
        over = number + len(lease) > most or (most_bytes is not None and size + more > most_bytes)
        if page and (len(page) == _LEASES or over):
            yield page
            page, number, size = [], 0, 0
        page.append(lease)
        number, size = number + len(lease), size + more
    if page:
        yield page
