"""Limits of groups: set, remove and read them, in one queue or over several."""

from __future__ import annotations

import heapq
from collections import Counter
from collections.abc import Iterable, Mapping
from typing import Any, Final

from qworker.client.manage import shared_limit_writes
from qworker.client.manage.limit import (
    Limit,
    check_value,
    limit_of,
    read_value,
    share_version,
)
from qworker.client.manage.limit_writes import ATTEMPTS, changed_by_others, write_everywhere
from qworker.client.manage.shared_limits import SharedLimit, declared, undeclared
from qworker.client.per_shard import everywhere
from qworker.client.plan import Plan
from qworker.client.queue_ref import QueueRef
from qworker.config.fields import kinds_of
from qworker.engine import groups as commands
from qworker.engine.attributes import configure
from qworker.engine.command import Command
from qworker.engine.groups import GroupState
from qworker.engine.raw import server_time
from qworker.errors import InvalidOptionError
from qworker.formats import span
from qworker.wire.groups import is_limit
from qworker.wire.keys import QueueKeys
from qworker.wire.names import check_queue

__all__ = [
    "GroupState",
    "Limit",
    "SharedLimit",
    "check_limit",
    "declared",
    "groups",
    "limit_of",
    "limits",
    "read_value",
    "remove_limit",
    "resume_group",
    "set_limit",
    "shared_limits",
    "stored_limits",
    "waits_for",
]

#: Groups of a shard that are looked at one by one.
_READ: Final = 20_000
#: Large groups that are looked for among more.
_LARGE: Final = 100


def set_limit(
    queue: QueueRef, name: str, /, *, with_queues: Iterable[str] = (), **given: object
) -> Plan[Limit]:
    """Set limits: of a group (`acme/ann`), a parent (`acme/`), each of its groups (`acme/*`), or each group (`*`).

    Options: concurrency, rate, burst, weight, max_waiting; those that are not given stay, None removes one. They hold
    at once, for messages that start from now on. A queue that does not exist is created. `with_queues`: concurrency and
    rate of a parent hold over this queue and those together, from now on and until `remove_limit`. Returns the limits
    of the name. Raises `InvalidOptionError`, `TooManyLimitsError`, and `QueueNotFoundError` if the queue is removed
    meanwhile.
    """
    others = check_limit(name, with_queues, **given)
    yield configure(queue.keys, {})
    for _ in range(ATTEMPTS):
        written: dict[str, str] = yield commands.limits(queue.keys)
        words = written.get(name, "")
        is_shared = bool(others or share_version(words))
        shared = (yield from declared(queue.namespace)).get(name) if is_shared else None
        after = _changed(Limit.of_words(words) if shared is None else shared.limit, given)
        if is_shared:
            has = () if shared is None else shared.queues
            queues = sorted({queue.keys.name, *others, *has})
            one = undeclared(name) if shared is None else shared
            read = {queue.keys.name: words}
            stored = yield from shared_limit_writes.change(
                queue.namespace, one, after, queues, read
            )
        else:
            stored = yield from write_everywhere(queue, name, after.words, words)
        if stored:
            yield from queue.announce()
            return after
    raise changed_by_others(name)


def check_limit(name: str, with_queues: Iterable[str] = (), **given: object) -> list[str]:
    """Check the arguments of `set_limit`, without a server; returns the other queues. Raises `InvalidOptionError`."""
    _check(name)
    others = [check_queue(each, "with") for each in with_queues]
    if others and (not name.endswith("/") or name == "*/"):
        raise InvalidOptionError(
            "limit",
            f"{ascii(name)[:80]} cannot span several queues",
            "only the limit of one parent can: write acme/, and send to its groups, such as acme/ann",
        )
    if not given and not others:
        raise InvalidOptionError(
            "limit", "none is given", "give at least one of concurrency, rate, weight, max_waiting"
        )
    for option, value in given.items():
        check_value(option, value)
    _check_effect(name, given)
    return others


def _check_effect(name: str, given: Mapping[str, object]) -> None:
    """Raise `InvalidOptionError` for an option that would limit nothing under this name."""
    if given.get("max_waiting") is not None and name.endswith("/"):
        raise InvalidOptionError(
            "max_waiting",
            f"is given for the parent {ascii(name)[:80]}; what waits is counted for each group alone",
            f"limit each group: write {name.removesuffix('*/')}*",
        )
    parent, slash, group = name.partition("/")
    if given.get("weight") is not None and slash and group:
        raise InvalidOptionError(
            "weight",
            f"is given for {ascii(name)[:80]}; groups of a parent take its turns one after the other",
            f"give it to the parent: write {parent}/",
        )


def remove_limit(queue: QueueRef, name: str, /) -> Plan[bool]:
    """Remove the limits of a name; returns whether there were any.

    A limit over several queues no longer covers this queue, but still covers the others.
    """
    _check(name)
    for _ in range(ATTEMPTS):
        written: dict[str, str] = yield commands.limits(queue.keys)
        if share_version(written.get(name, "")):
            left_ms: int = yield server_time()
            yield from shared_limit_writes.leave(queue.namespace, name, queue.keys.name)
            yield from shared_limit_writes.take_away(queue, name, left_ms)
            return True
        if (yield from write_everywhere(queue, name, "")):
            return name in written
    raise changed_by_others(name)


def resume_group(queue: QueueRef, name: str, /) -> Plan[bool]:
    """End the wait of a group or parent (`acme/`) that a handler asked for by `RateLimited`; returns whether it waited.

    Limits still hold, and a wait of the whole queue ends by `resume`. Raises `InvalidOptionError` for another name.
    """
    if not isinstance(name, str) or not is_limit(name) or "*" in name:
        raise InvalidOptionError(
            "group",
            f"{ascii(name)[:80]} is not the name of a group",
            "write a group such as acme/ann, or a parent such as acme/",
        )
    yield from queue.every_shard(refresh=True)
    return (yield from _end_wait(queue, name))


@everywhere(any)
def _end_wait(queue: QueueRef, name: str) -> Plan[bool]:
    ended: bool = yield commands.end_wait(queue.keys, name)
    return ended


def limits(queue: QueueRef) -> Plan[dict[str, Limit]]:
    """Read the limits of the queue by name; also those over several queues."""
    stored: dict[str, str] = yield commands.limits(queue.keys)
    shared: dict[str, SharedLimit] = {}
    if any(map(share_version, stored.values())):
        shared = yield from declared(queue.namespace)
    return {
        name: shared[name].limit
        if name in shared and share_version(words)
        else Limit.of_words(words)
        for name, words in sorted(stored.items())
    }


def stored_limits(queue: QueueRef) -> Command[dict[str, str]]:
    """Make the command that reads the limits of a queue as they are stored, so that one trip asks many queues."""
    return commands.limits(queue.keys)


def shared_limits(queue: QueueRef) -> Plan[dict[str, SharedLimit]]:
    """Read the limits that hold over this queue and others together, by name."""
    known = yield from declared(queue.namespace)
    return {name: one for name, one in known.items() if queue.keys.name in one.queues}


def groups(
    queue: QueueRef, *, most: int = 10, most_read: int | None = _READ
) -> Plan[list[GroupState]]:
    """Return the groups with the most waiting and running messages, in calls of about 150 groups.

    `most_read`: about how many groups of each shard are compared; None for all. If there are more, it also finds those
    in which at least a 64th of all messages of groups waits.
    """
    found: list[GroupState] = []
    for shard in (yield from queue.every_shard(refresh=True)):
        running = yield from _running(shard.keys, most_read)
        cursor, read, seen = "0", 0, set[str]()
        while True:
            cursor, _, states = yield commands.group_page(shard.keys, cursor)
            page = [_joined(state, running) for state in states]
            found = heapq.nlargest(most, [*found, *page], key=_size)
            read += len(page)
            if cursor == "0":
                break
            if most_read is not None:
                seen.update(state.name for state in page)
                if read >= most_read:
                    large = yield from _large(shard.keys, seen)
                    found += [_joined(state, running) for state in large]
                    break
        only_run = [GroupState(name, 0, number, None, None) for name, number in running.items()]
        found = heapq.nlargest(most, [*found, *only_run], key=_size)
    return found


def _running(keys: QueueKeys, most: int | None) -> Plan[Counter[str]]:
    """Count what runs of groups that nothing limits: of about `most` messages, None for all."""
    running, cursor = Counter[str](), "r0"
    while cursor != "0" and (most is None or running.total() < most):
        cursor, page = yield commands.running_page(keys, cursor)
        running.update(page)
    return running


def _large(keys: QueueKeys, seen: set[str]) -> Plan[list[GroupState]]:
    """Find large groups that were not seen."""
    _, large = yield commands.largest(keys, _LARGE)
    names = [group.name for group in large if group.name not in seen]
    if not names:
        return []
    states: list[GroupState] = yield commands.group_states(keys, names)
    return states


def waits_for(group: GroupState, now_ms: int) -> str:
    """Say for people what the messages of a group wait for; '' if none wait."""
    if group.until_ms is not None and group.reason:
        left = f"{span(max(group.until_ms - now_ms, 0) / 1000)} more"
        if group.by_delay:
            return f"its first message, delayed for {left}"
        if group.by_handler:
            return f"a handler's RateLimited, {left}"
        return f"{'the rate of its parent' if group.by_parent else 'its rate'}, {left}"
    if group.reason == "concurrency of its parent":
        return "one running of its parent"
    if group.reason == "concurrency":
        return f"one of its {group.running:,} running"
    return "its turn" if group.reason == "turn" else ""


def _joined(state: GroupState, running: Counter[str]) -> GroupState:
    more = running.pop(state.name, 0)
    return state._replace(running=state.running + more) if more else state


def _size(group: GroupState) -> tuple[int, str]:
    return group.waiting + group.running, group.name


def _changed(limit: Limit, given: Mapping[str, object]) -> Limit:
    """Return the limit with the options that are given; a burst goes with its rate."""
    kept: dict[str, Any] = {option: getattr(limit, option) for option in kinds_of(Limit)}
    if "rate" in given and "burst" not in given:
        kept["burst"] = None
    return Limit(**{**kept, **given})


def _check(name: str) -> None:
    if not isinstance(name, str) or not is_limit(name):
        raise InvalidOptionError(
            "limit",
            f"{ascii(name)[:80]} cannot have limits",
            "write a group such as acme/ann, a parent such as acme/, acme/* for each of its groups, or *",
        )
