"""Change the number of shards of a queue while it is in use.

More: workers receive from the new shards before senders use them. Fewer: the last ones take no more sends, and workers
empty them. No message is moved, so none can be lost.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Final

import msgspec

from qworker.client.inspect.stats import workers_of
from qworker.client.manage.limit import FIRST_VERSION, share_version
from qworker.client.manage.limit_writes import write_limit
from qworker.client.manage.shard_upkeep import (
    complete_totals,
    give_up_empty,
    holds_messages,
    stored_shards,
)
from qworker.client.manage.shared_limits import NOTHING, first_share, give_shares
from qworker.client.plan import Plan
from qworker.client.queue_ref import QueueRef
from qworker.config.kinds import IntegerKind
from qworker.durations import Duration, duration_ms
from qworker.engine import attributes
from qworker.engine import shards as commands
from qworker.engine.command import Brief, Pause
from qworker.engine.groups import limits as stored_limits
from qworker.engine.index import announce, present
from qworker.engine.inspect import Inspection, inspect
from qworker.engine.raw import server_time
from qworker.engine.shards import (
    common_meta,
    mark,
    read_shards,
)
from qworker.engine.shares import TAKEN_AWAY, share
from qworker.errors import InvalidOptionError, ShardsChangedError
from qworker.wire.keys import QueueKeys
from qworker.wire.names import MAX_SHARDS
from qworker.wire.shards import Shards

__all__ = ["Division", "divide", "division"]

_NUMBER: Final = IntegerKind("shards", minimum=1, maximum=MAX_SHARDS)
_LONGEST_WAIT_MS: Final = 24 * 3_600_000
#: Pause between two checks of the workers.
_CHECK_S: Final = 0.5
#: While a client waits for the workers, it writes the shards again this often, so that no reaper gives up the new ones.
_RENEW_S: Final = 5.0
#: Attempts while others change the shards of the same queue.
_ATTEMPTS: Final = 5


class Division(msgspec.Struct, frozen=True):
    """The shards of a queue: the first `active` take sends; `shards` are all that may hold messages.

    Those behind the active ones are `draining`: they are given up once they are empty.
    """

    queue: str
    active: int
    shards: tuple[Inspection, ...]

    @property
    def draining(self) -> tuple[Inspection, ...]:
        """The shards that take no sends and run empty."""
        return self.shards[self.active :]


def division(queue: QueueRef) -> Plan[Division]:
    """Inspect the shards of the queue. One call, and one for each shard."""
    known: Shards = yield read_shards(queue.keys)
    inspections = []
    for number in range(known.kept):
        inspections.append((yield inspect(queue.shard_of(number).keys)))
    return Division(queue.keys.name, known.active, tuple(inspections))


def divide(queue: QueueRef, shards: int, *, wait: Duration = "15s") -> Plan[Division]:
    """Divide the queue into `shards` (1-64); returns the shards it has then. May be called again at any time.

    New shards take sends once all workers of the queue receive from them, or after `wait`. Removed shards run empty
    first; another call removes the empty ones. Of two concurrent calls the later one wins, even with the current
    number; the other raises `ShardsChangedError`, as it does if others keep changing the shards.
    """
    number = _NUMBER.check(shards, "shards")
    if queue.single:
        raise InvalidOptionError(
            "queue", f"{queue.keys.queue!r} is a shard", f"divide {queue.keys.name!r}"
        )
    limit_s = duration_ms(wait, "wait", maximum_ms=_LONGEST_WAIT_MS) / 1000
    inspection: Inspection = yield inspect(queue.keys)
    if not inspection.exists:
        yield attributes.configure(queue.keys, {})
    yield commands.ask(queue.keys, number)
    for _ in range(_ATTEMPTS):
        known = yield from _known(queue)
        active = known.active
        yield from _copy_limits(queue, active, number)
        changed, known = yield from _divided(queue, known, number, limit_s)
        queue.learn(known)
        if changed:
            # A client that changed limits before the new shards were known has not changed theirs.
            yield from _copy_limits(queue, active, number)
            break
    else:
        raise ShardsChangedError(queue.keys.name, known.active)
    yield from queue.announce()
    for index in range(1, known.kept):
        yield mark(queue.shard_of(index).keys, known)
    yield from complete_totals(queue, known)
    yield from give_up_empty(queue)
    return (yield from division(queue))


def _copy_limits(queue: QueueRef, first: int, end: int) -> Plan[None]:
    """Let new shards have the limits of the queue; again if these change meanwhile."""
    limits: dict[str, str] = yield stored_limits(queue.keys)
    for _ in range(_ATTEMPTS):
        for index in range(first, end):
            yield from _write_limits(queue.shard_of(index).keys, limits)
        before, limits = limits, (yield stored_limits(queue.keys))
        if limits == before:
            return


def _write_limits(keys: QueueKeys, limits: Mapping[str, str]) -> Plan[None]:
    has: dict[str, str] = yield stored_limits(keys)
    for name in sorted(limits.keys() | has.keys()):
        words, old = limits.get(name, ""), has.get(name, "")
        if share_version(old) == FIRST_VERSION and not share_version(words):
            # The queue has left the limit since this share was given here.
            yield share(keys, [(name, FIRST_VERSION + 1, TAKEN_AWAY)])
            old = ""
        if share_version(words) and not share_version(old):
            # Its share comes with the next pass over the limits of the namespace.
            yield from give_shares(keys, [(name, FIRST_VERSION, first_share(NOTHING))])
        elif words != old and not share_version(words) and not share_version(old):
            yield from write_limit(keys, name, words)


def _known(queue: QueueRef) -> Plan[Shards]:
    """Return the shards of the queue, including forgotten ones that hold messages."""
    yield from queue.look_up()
    known = yield from stored_shards(queue)
    others = [queue.shard_of(number) for number in range(1, MAX_SHARDS)]
    there: list[Shards | None] = yield present([shard.keys for shard in others])
    numbers = [shard.keys.shard for shard, is_there in zip(others, there, strict=True) if is_there]
    known = yield from queue.healed(known, numbers)
    for number in reversed(numbers):
        if number < known.kept:
            break
        if (yield from holds_messages(queue.shard_of(number))):
            _, known = yield commands.divide(queue.keys, known, known.active, number + 1)
            break
    return known


def _divided(
    queue: QueueRef, known: Shards, number: int, limit_s: float
) -> Plan[tuple[bool, Shards]]:
    """Change the number of active shards; returns whether no other change interfered, and the shards then."""
    if number == known.active:
        return True, known
    if number < known.active:
        fewer: tuple[bool, Shards] = yield commands.divide(
            queue.keys, known, number, known.kept, asked=number
        )
        return fewer
    kept = max(known.kept, number)
    # New shards get their attributes, and workers receive from them, before they take sends.
    yield from _make_ready(queue, known.active, number)
    changed, known = yield commands.divide(queue.keys, known, known.active, kept, asked=number)
    if not changed:
        return False, known
    yield Brief(announce(queue.namespace, known.names(queue.keys.name)))
    changed, known = yield from _wait_for_workers(queue, known, number, limit_s)
    if not changed:
        return False, known
    more: tuple[bool, Shards] = yield commands.divide(queue.keys, known, number, kept, asked=number)
    return more


def _make_ready(queue: QueueRef, first: int, end: int) -> Plan[None]:
    """Give shards the attributes of the queue before they take sends."""
    wanted: dict[str, str] = yield common_meta(queue.keys)
    for number in range(first, end):
        keys = queue.shard_of(number).keys
        has: dict[str, str] = yield common_meta(keys)
        yield attributes.configure(keys, {**dict.fromkeys(has, ""), **wanted})


def _wait_for_workers(
    queue: QueueRef, known: Shards, asked: int, limit_s: float
) -> Plan[tuple[bool, Shards]]:
    """Wait until every worker of the queue receives from all `known` shards, or the time is up.

    Returns whether no other change interfered, and the shards then.
    """
    end = time.monotonic() + limit_s
    renew_at = time.monotonic() + _RENEW_S
    wanted = set(known.names(queue.keys.name))
    while True:
        now_ms: int = yield server_time()
        workers = yield from workers_of(queue, now_ms)
        if all(wanted <= {*worker.shards} for worker in workers) or time.monotonic() > end:
            return True, known
        yield Pause(_CHECK_S)
        if time.monotonic() >= renew_at:
            renew_at = time.monotonic() + _RENEW_S
            changed, known = yield commands.divide(
                queue.keys, known, known.active, known.kept, asked=asked
            )
            if not changed:
                return False, known
