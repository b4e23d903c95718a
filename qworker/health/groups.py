"""The check of `qworker doctor` for groups that wait and cannot run, or that refuse sends."""

from __future__ import annotations

import heapq
from collections import Counter
from collections.abc import Generator, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from qworker.formats import safe, span, word
from qworker.health.finding import LONG_RUN_S, Finding, Status, counted, listed

if TYPE_CHECKING:
    from qworker.client.inspect.peek import Inspection
    from qworker.client.manage.limits import GroupState, Limit
    from qworker.client.namespace.workers import Running, Worker
    from qworker.engine.command import Command
    from qworker.health.access import NamespaceAccess
    from qworker.wire.keys import QueueKeys

__all__ = ["check_groups"]

#: Queues that are checked: those with the most messages in groups.
_QUEUES: Final = 20
#: Of each queue or shard: pages of 250 to 500 groups, and slots.
_PAGES: Final = 4
_SLOTS: Final = 1000
#: In a queue or shard with more leases, slots are not compared with them.
_LEASES: Final = 2000
#: Groups of a queue or shard that can have waiting messages: a number has 21 bits, see `lua/lib/group_members.lua`.
_NUMBERS: Final = 2**21
#: The part of them from which on `doctor` warns.
_ALMOST: Final = 0.9
#: A group whose waiting messages take longer than this to start is sent more than its rate.
_LONG_S: Final = 3600.0


@dataclass(frozen=True, slots=True)
class _Groups:
    """Groups of a queue or shard that wait, its limits, and the slots of those that wait for one: delivery → group.

    `number`: about how many groups wait or are counted.
    """

    queue: str
    number: int
    limits: Mapping[str, Limit]
    waiting: list[GroupState]
    slots: Mapping[str, str]
    gone: frozenset[str]


def check_groups(
    access: NamespaceAccess, queues: Mapping[str, Inspection], workers: Iterable[Worker] | None
) -> Iterator[Finding]:
    """Name groups that wait for slots or a rate for long, those that refuse sends, and queues with too many groups.

    Reads only queues with messages that wait in groups: the 20 with the most, and about 1,000 groups of each.
    """
    from qworker.client.plan import run_plans
    from qworker.errors import (
        BrokenQueueError,
        InDoubtError,
        LoadingError,
        QworkerError,
        UnavailableError,
    )
    from qworker.wire.keys import QueueKeys

    grouped = {name: queue.grouped for name, queue in queues.items() if queue.grouped}
    shards = [
        (name, QueueKeys(access.namespace, shard))
        for name in heapq.nlargest(_QUEUES, grouped, key=grouped.__getitem__)
        for shard in access.queues.ref(name).shards.names(name)
    ]
    read: list[_Groups] = []
    plans = [_read_groups(name, keys) for name, keys in shards]
    answers = run_plans(access.client.execute_each, plans) if plans else ()
    for (name, _), answer in zip(shards, answers, strict=True):
        if isinstance(answer, BrokenQueueError):
            yield Finding(
                f"groups.{name}",
                Status.PROBLEM,
                f"broken: key {answer.key} holds a {answer.found}, so nothing of its groups is sent or received",
                f"qworker fsck {name} --repair renames it, and gives waiting messages their turns",
            )
        elif not isinstance(answer, QworkerError):
            read.append(answer)
        elif not isinstance(answer, UnavailableError | InDoubtError | LoadingError):
            raise answer  # the check of all queues has reported shards whose node is away
    yield from _gone(read)
    yield from _full(read)
    yield from _many(read)
    long_runs = [
        run
        for worker in workers or ()
        if not worker.is_gone
        for run in worker.running
        if run.seconds >= LONG_RUN_S
    ]
    yield from _held(read, long_runs)
    yield from _slow(read)


def _read_groups(queue: str, keys: QueueKeys) -> Generator[Command[Any], Any, _Groups]:
    from qworker.client.manage.limits import Limit
    from qworker.engine import groups as commands
    from qworker.engine.raw import raw
    from qworker.wire.groups import slots_of

    stored: dict[str, str] = yield commands.limits(keys)
    number: int = yield raw("HLEN", keys.groups, decode=int)
    waiting: list[GroupState] = []
    cursor = "0"
    for _ in range(_PAGES):
        cursor, _, page = yield commands.group_page(keys, cursor)
        waiting += [group for group in page if group.waiting]
        if cursor == "0":
            break
    stuck = {_blocked(group) for group in waiting if group.reason.startswith("concurrency")}
    slots: dict[str, str] = {}
    gone: frozenset[str] = frozenset()
    if stuck:
        _, flat = yield raw("HSCAN", keys.slots, 0, "COUNT", _SLOTS, decode=list)
        some = flat[: 2 * _SLOTS]
        slots = {
            token: name
            for field, value in zip(some[::2], some[1::2], strict=True)
            for token, name in slots_of(field, value).items()
            # Others belong to messages that wait for a retry: `qworker fsck` looks for these.
            if not token.startswith(":") and stuck & {name, _parent(name)}
        }
    if slots:
        leases: list[bytes] = yield raw("ZRANGE", keys.unacked, 0, _LEASES - 1, decode=list)
        known = {lease.decode("utf-8", "replace") for lease in leases}
        lost = [token for token in slots if _lease(token) not in known][:_SLOTS]
        if lost and len(leases) < _LEASES:
            # A delivery that ended between the two reads has freed its slot.
            fields = [*map(_lease, lost), *lost]
            still: list[Any] = yield raw("HMGET", keys.slots, *fields, decode=list)
            there = {field for field, value in zip(fields, still, strict=True) if value}
            gone = frozenset(token for token in lost if {token, _lease(token)} & there)
    limits = {name: Limit.of_words(text) for name, text in stored.items()}
    return _Groups(queue, number, limits, waiting, slots, gone)


def _gone(read: Iterable[_Groups]) -> Iterator[Finding]:
    lost = Counter(
        (groups.queue, groups.slots[token]) for groups in read for token in sorted(groups.gone)
    )
    if lost:
        (queue, _), _ = lost.most_common(1)[0]
        named = {_named(*which): number for which, number in lost.items()}
        yield Finding(
            "groups.gone",
            Status.PROBLEM,
            "groups wait for slots of deliveries that are gone: " + counted(named),
            f"check for deleted keys or a failover; qworker fsck {queue} --repair frees them",
        )


def _full(read: Iterable[_Groups]) -> Iterator[Finding]:
    from qworker.client.manage.limits import limit_of

    full = {}
    for groups in read:
        for group in groups.waiting:
            most = limit_of(groups.limits, group.name).max_waiting
            if most is not None and group.waiting >= most:
                full[groups.queue, group.name] = group.waiting
    if full:
        worst = max(full, key=lambda which: full[which])
        named = {_named(*which): number for which, number in full.items()}
        yield Finding(
            "groups.full",
            Status.PROBLEM,
            "sends to these groups are refused (max_waiting): " + counted(named),
            f"add workers, or {_set(*worst)} --max-waiting N",
        )


def _many(read: Iterable[_Groups]) -> Iterator[Finding]:
    many = {groups.queue: groups.number for groups in read if groups.number > _ALMOST * _NUMBERS}
    if many:
        worst = max(many, key=many.__getitem__)
        yield Finding(
            "groups.many",
            Status.WARNING,
            f"of at most {_NUMBERS:,} groups with waiting messages these queues have: {counted(many)}; "
            "messages of further groups are stored without their group, even if it is ordered",
            "name groups by what recurs, such as tenants, and add workers; "
            f"or give each shard fewer: qworker queue shards {worst} N",
        )


def _held(read: Iterable[_Groups], long_runs: Iterable[Running]) -> Iterator[Finding]:
    by_lease = {_lease(run.message_id): run for run in reversed([*long_runs])}
    held: dict[tuple[str, str], Running] = {}
    for groups in read:
        for token, name in groups.slots.items():
            run = by_lease.get(_lease(token))
            which = (groups.queue, name)
            if run is not None and (which not in held or held[which].seconds < run.seconds):
                held[which] = run
    if held:
        worst = max(held, key=lambda which: held[which].seconds)
        run = held[worst]
        ordered = worst[1].startswith("=")
        more = "" if ordered else f"; {_set(*worst)} --concurrency N lets more run"
        yield Finding(
            "groups.held",
            Status.WARNING,
            "groups at their concurrency wait for handlers that have run for minutes: "
            + listed(
                [
                    f"{_named(*which)} for {one.task} in {one.worker}, {span(int(one.seconds))}"
                    for which, one in sorted(held.items(), key=lambda pair: -pair[1].seconds)
                ]
            ),
            safe(
                f"qworker worker stack {word(run.worker)} shows where; a time_limit of the task ends it{more}"
            ),
        )


def _slow(read: Iterable[_Groups]) -> Iterator[Finding]:
    from qworker.client.manage.limits import limit_of

    slow = {}
    for groups in read:
        behind: Counter[str] = Counter()
        for group in groups.waiting:
            if group.reason.startswith("rate"):
                behind[_blocked(group)] += group.waiting
        for name, number in behind.items():
            per_s = limit_of(groups.limits, name).per_s
            # Without a rate it waits because a handler raised RateLimited: that passes.
            if per_s is not None and number / per_s > _LONG_S:
                slow[groups.queue, name] = (number / per_s, number)
    if slow:
        worst = queue, name = max(slow, key=lambda which: slow[which])
        # What waits is counted for each group, not for their parent.
        fewer = (
            f"{_set(queue, f'{name}*')} --max-waiting N" if name[-1:] == "/" else "--max-waiting N"
        )
        yield Finding(
            "groups.rate",
            Status.WARNING,
            "these groups get more messages than their rates let start: "
            + listed(
                [
                    f"{_named(*which)} {number:,}, which takes {span(seconds)}"
                    for which, (seconds, number) in sorted(
                        slow.items(), key=lambda pair: -pair[1][0]
                    )
                ]
            ),
            f"{_set(*worst)} --rate N/s; or send less: {fewer} refuses more",
        )


def _blocked(group: GroupState) -> str:
    """Return the group, or the parent, whose limit a group waits for."""
    return _parent(group.name) if group.by_parent else group.name


def _parent(name: str) -> str:
    from qworker.wire.groups import parent_of

    return f"{parent_of(name)}/"


def _lease(receipt: str) -> str:
    return receipt.partition(":")[0]


def _named(queue: str, group: str) -> str:
    from qworker.wire.groups import shown

    return f"{shown(group)} of {queue}"


def _set(queue: str, group: str) -> str:
    return safe(f"qworker limit set {queue} {word(group.removeprefix('='))}")
