"""How much of each limit of a queue is used: what runs and waits under it, and when the next one may start."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from qworker.client.manage.limit import Limit
from qworker.client.manage.limits import groups, limits
from qworker.client.plan import Plan
from qworker.client.queue_ref import QueueRef
from qworker.engine.groups import GroupState
from qworker.formats import count, span
from qworker.wire.groups import ORDERED

__all__ = ["LimitLoad", "limit_loads"]

#: Groups that are looked at, of each queue.
_MAX_GROUPS = 1000


class LimitLoad(NamedTuple):
    """A limit of a queue, and what it holds for.

    `groups`: how many groups that wait or run have it; `waiting`, `running`: their messages; `full`: how many have as
    many running as may; `until_ms`: when the first that waits for a time may start, None if none does, `by_handler`:
    it waits because a handler raised `RateLimited`, `by_delay`: only delayed first messages hold up its ordered groups;
    `share`: how many of a limit over several queues may run in this one now, if fewer than all.
    """

    name: str
    limit: Limit
    groups: int
    waiting: int
    running: int
    full: int
    until_ms: int | None
    share: int | None = None
    by_handler: bool = False
    by_delay: bool = False

    def waits_for(self, now_ms: int) -> str:
        """Say for people what holds up messages that wait; '' if nothing does."""
        if not self.waiting:
            return ""
        if self.until_ms is not None:
            what = "a handler's RateLimited," if self.by_handler else "its rate,"
            what = "a first message, delayed for" if self.by_delay else what
            return f"{what} {span(max(self.until_ms - now_ms, 0) / 1000)} more"
        if not self.full:
            return ""
        if self.share is not None:
            return f"one running: its share is {self.share:,} of {self.limit.concurrency:,}"
        return "one running" if self.groups == 1 else f"one running, in {count(self.full, 'group')}"


def limit_loads(queue: QueueRef, *, most_read: int = _MAX_GROUPS) -> Plan[list[LimitLoad]]:
    """Read the limits of a queue, the one with the most waiting messages first, of about `most_read` groups a shard."""
    stored: dict[str, Limit] = yield from limits(queue)
    if not stored:
        return []
    found: list[GroupState] = yield from groups(queue, most=most_read, most_read=most_read)
    loads = [_load(name, limit, found) for name, limit in stored.items()]
    return sorted(loads, key=lambda load: (-load.waiting, -load.running, load.name))


def _load(name: str, limit: Limit, found: list[GroupState]) -> LimitLoad:
    has = _has(name)
    under = [state for state in found if has(_bare(state))]
    waiting = sum(state.waiting for state in under)
    if name.endswith("/"):
        parents = {_bare(state) for state in under}
        waiting = sum(
            state.waiting
            for state in found
            if not _bare(state).endswith("/") and _bare(state).partition("/")[0] + "/" in parents
        )
    most = limit.concurrency
    delays = [state.until_ms for state in under if state.by_delay and state.until_ms is not None]
    others = [state for state in under if not state.by_delay]
    # At the same time the rate of the limit comes before a handler's word.
    times = [(state.until_ms, state.by_handler) for state in others if state.until_ms is not None]
    until_ms, by_handler = min(times, default=(None, False))
    share = None
    if most is not None and name.endswith("/") and name != "*/":
        shares = [state.concurrency for state in under if state.concurrency is not None]
        share = sum(shares) if shares and max(shares) < most else None
    full = sum(
        most is not None and state.running >= (most if share is None else state.concurrency or 0)
        for state in others
    )
    # What a change of limits would let run comes before a delay.
    by_delay = bool(delays) and until_ms is None and not full
    return LimitLoad(
        name,
        limit,
        len({state.name for state in under}),
        waiting,
        sum(state.running for state in under),
        full,
        min(delays) if by_delay else until_ms,
        share,
        by_handler,
        by_delay,
    )


def _bare(state: GroupState) -> str:
    return state.name.removeprefix(ORDERED)


def _has(name: str) -> Callable[[str], bool]:
    """Return whether a group or parent has a limit of that name."""
    if name == "*/":
        return lambda group: group.endswith("/")
    if name.endswith("*"):
        parent = name[:-1]
        return lambda group: group.startswith(parent) and not group.endswith("/")
    return lambda group: group == name
