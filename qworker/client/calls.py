"""Groups of calls: begin one, read how its members have ended, and list those that have not."""

from __future__ import annotations

from contextlib import suppress
from typing import Final

from msgspec import Struct

from qworker.client.checks import check_count
from qworker.client.follow import NewGroup
from qworker.client.per_shard import everywhere, of_one_key, until_found
from qworker.client.plan import Plan, each_soon
from qworker.client.queue_ref import QueueRef
from qworker.client.relay import relay
from qworker.engine import calls as commands
from qworker.engine.raw import raw
from qworker.errors import QworkerError
from qworker.wire.calls import callback_task, lane_of, run_of
from qworker.wire.keys import QueueKeys
from qworker.wire.names import check_message_id
from qworker.wire.numbers import whole

__all__ = [
    "CallGroup",
    "CallGroupState",
    "abandon_calls",
    "begin_group",
    "call_group",
    "calls",
    "read_group",
]

#: Seconds that a destination has to take the members of a group that begins; then a reaper relays them.
_SOON_S: Final = 1.0


def begin_group(
    queue: QueueRef, opened: NewGroup, *, shard: int = 0, run: commands.WaitingRun | None = None
) -> Plan[bytes]:
    """Begin a group of calls in the queue of its callback, and send its members; returns what it first started with.

    Members that cannot be stored now wait in the outboxes of that queue. A call that fails midway may be repeated, by
    any process: the group continues where it stopped. `run` follows the group, in this `shard`. Raises `LeaseLostError`
    if its delivery was given up.
    """
    place, lane = queue.shard(shard), lane_of(opened.id)
    sent = 0
    for number, (spec, end) in enumerate(zip(opened.specs, opened.ends, strict=True), 1):
        if sent >= end:
            continue
        begun: commands.Begun = yield commands.begin(
            place.keys, opened.id, spec, lane, number, run=run
        )
        if not begun.gone and begun.start != opened.start:
            return begun.start
        # One that has ended before all of its members were sent needs no more of them.
        sent = opened.size if begun.gone else begun.sent
    yield from queue.announce()
    # Without the right to relay, or without an answer in time, a reaper does it.
    with suppress(QworkerError):
        yield from each_soon(relay(queue.namespace, place.keys), _SOON_S)
    return opened.start


class CallGroupState(Struct, frozen=True):
    """How the members of a group have ended, as `wire/result.py` reads it: empty for those that have not.

    `left`: members that have not ended. `over_ms`: when it was decided.
    """

    policy: str
    left: int
    over_ms: int | None
    ends: list[bytes]


def read_group(keys: QueueKeys, group_id: str) -> Plan[CallGroupState | None]:
    """Read how the members of a group have ended; None if it is unknown. In calls of 500 members and 1 MiB."""
    ends: list[bytes] = []
    while True:
        values: commands.Values = yield commands.read_values(keys, group_id, len(ends))
        ends += values.ends
        if not values.size:
            return None
        if len(ends) >= values.size or not values.ends:
            return CallGroupState(values.policy, values.left, values.over_ms, ends)


class CallGroup(Struct, frozen=True):
    """A group of calls at `now_ms`; `id` is also that of its callback's message.

    `state`: starting (not all of its calls are sent), running, blocked (it waits for dead letters to be redriven),
    decided (its callback was sent, or its run woken), or ended. `left`: calls that it waits for. `dead`: the numbers of
    calls that are dead letters, whose messages are `<id>.<number>`, or begin with that. `task`: of the callback, '' if
    that is not known or encrypted. `run_id`: of the run that follows in place of a callback, '' without one.
    `cancel_rest`: its first success cancels the calls that have not ended.
    """

    queue: str
    id: str
    state: str
    policy: str
    size: int
    left: int
    sent: int
    dead: tuple[int, ...]
    began_ms: int | None
    task: str = ""
    run_id: str = ""
    cancel_rest: bool = False

    @property
    def is_open(self) -> bool:
        """Whether it waits for calls."""
        return self.state in ("starting", "running", "blocked")


_FIELDS: Final = ("@size", "@policy", "@left", "@sent", "@dead", "@over", "@made", "@then", "@run")


def _by_age(shards: list[list[CallGroup]]) -> list[CallGroup]:
    return sorted((one for some in shards for one in some), key=lambda one: one.began_ms or 0)


@everywhere(_by_age, reads=True)
def calls(queue: QueueRef, count: int = 100, *, skip: int = 0) -> Plan[list[CallGroup]]:
    """List up to `count` (1-1,000) groups of calls of each shard whose callback has not been sent yet, oldest first."""
    check_count(count)
    names: list[bytes] = yield raw("ZRANGE", queue.keys.joins, skip, skip + count - 1, decode=list)
    found = []
    for name in names:
        try:
            group = yield from _read_group(queue, name.decode("utf-8", "replace"))
        except QworkerError as error:
            if not of_one_key(error):
                raise
            continue  # the others are there
        if group is not None:
            found.append(group)
    return found


@until_found
def call_group(queue: QueueRef, group_id: str) -> Plan[CallGroup | None]:
    """Return where a group of calls stands; None if it is unknown, or has ended and is forgotten."""
    return (yield from _read_group(queue, check_message_id(group_id)))


@until_found
def abandon_calls(queue: QueueRef, group_id: str) -> Plan[bool | None]:
    """End a group of calls without its callback, as cancelled; its calls continue. None if it does not wait for calls.

    A run that gathers them continues, with the values of the calls that have ended.
    """
    [waited] = yield commands.abandon(queue.keys, [check_message_id(group_id)], "cancelled")
    return True if waited else None


def _read_group(queue: QueueRef, group_id: str) -> Plan[CallGroup | None]:
    words: list[bytes | None] = yield raw("HMGET", queue.keys.join(group_id), *_FIELDS, decode=list)
    size, policy, left, sent, dead, over, made, then, run = words
    calls = whole(size)
    if calls is None:  # it has ended, or another program wrote it
        return None
    numbers = tuple(number for word in (dead or b"").split() if (number := whole(word)) is not None)
    cancels = policy == b"first" and (
        yield raw("HEXISTS", queue.keys.join(group_id), "@rest", decode=bool)
    )
    waits, all_sent = whole(left) or 0, whole(sent) or 0
    if over is not None:
        state = "decided" if then or run else "ended"
    elif all_sent < calls:
        state = "starting"
    elif numbers and (policy == b"successes" or not waits):
        state = "blocked"
    else:
        state = "running"
    return CallGroup(
        queue.keys.name,
        group_id,
        state,
        (policy or b"").decode("utf-8", "replace"),
        calls,
        waits,
        all_sent,
        numbers,
        whole(made),
        callback_task(then),
        run_of(run),
        cancels,
    )
