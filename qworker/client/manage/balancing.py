"""Passes that divide limits over several queues among the shards of these queues.

The key of the namespace says which shard has how many slots, and which part of the rate; each shard keeps its share as
it keeps limits of its own. All shares together are never more than the limit: a shard gets only what others have given
up and reported, see `lua/queue/allot.lua`. So a limit is not exceeded by a pass that fails halfway or runs twice.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Final

from qworker.client.manage.shared_limits import (
    NO_LIMIT,
    SharedLimit,
    declared,
    give_shares,
    share_words,
)
from qworker.client.manage.shares import Divider
from qworker.client.plan import Plan
from qworker.engine import shares as commands
from qworker.engine.raw import server_time
from qworker.engine.shards import read_shards
from qworker.engine.shares import MAX_LIMITED_SHARDS, TAKEN_AWAY, Allotted, Report, Wish
from qworker.errors import QworkerError, ServerError
from qworker.wire.keys import QueueKeys
from qworker.wire.names import split_shard_name
from qworker.wire.shards import Shards

__all__ = ["REST_MS", "Balanced", "Balancer"]

#: A share that was given up is given to others this long after it was written: by then replicas have it.
REST_MS: Final = 100
#: Of a pass: the first takes away, the second gives others what the reports of that show to be free.
_ROUNDS: Final = 2

#: Limit, version, words.
Share = tuple[str, int, str]


@dataclass(frozen=True, slots=True)
class Balanced:
    """What a pass did: shares it changed; `unsettled`: some wait until others have given up theirs.

    `active`: something runs or waits. `silent`: shards that did not answer, with the error.
    """

    changed: int = 0
    unsettled: bool = False
    active: bool = False
    silent: Mapping[str, QworkerError] = field(default_factory=dict)


class Balancer:
    """Makes passes over the limits of a namespace, and remembers what each shard did at the last one.

    `rest_ms` and `now_ms` of a pass are for tests.
    """

    def __init__(self, namespace: str, *, rest_ms: int = REST_MS) -> None:
        self._namespace = namespace
        self._rest_ms = rest_ms
        self._dividers: dict[str, Divider] = {}

    def balance(self, only: str | None = None, *, now_ms: int | None = None) -> Plan[Balanced]:
        """Make one pass: read what each shard does with its shares, divide the limits again, and write new shares."""
        known = yield from declared(self._namespace)
        self._dividers = {name: self._dividers.get(name, Divider()) for name in known}
        limits = {name: one for name, one in known.items() if only in (None, name)}
        silent: dict[str, QworkerError] = {}
        for name, one in limits.items():
            outside = {s: v for s, v in one.versions.items() if not _covers(one, s)}
            yield from self._take_back(name, outside, silent)
        shards = yield from self._shards(limits.values(), silent)
        asked: dict[str, list[Share]] = {}
        for name, one in limits.items():
            for shard in shards[name]:
                asked.setdefault(shard, []).append((name, *_written(one, shard)))
        reports = yield from self._share(asked, silent, now_ms)
        pass_ms: int = now_ms or (yield server_time())
        wanted = {}
        for name, one in limits.items():
            lasting = {
                shard: reports[name, shard]
                for shard, lasts in shards[name].items()
                if lasts and (name, shard) in reports
            }
            wanted[name] = self._dividers[name].divide(one.limit, lasting, one.shares, pass_ms)
        active = any(report.running or report.waiting for report in reports.values())
        changed = 0
        for _ in range(_ROUNDS):
            writes, unsettled = yield from self._allot(limits, shards, reports, wanted)
            if not writes:
                break
            changed += sum(map(len, writes.values()))
            reports |= yield from self._share(writes, silent, now_ms)
            yield from self._take_back_late(writes, silent)
        return Balanced(changed, unsettled or bool(writes), active, silent)

    def _allot(
        self,
        limits: Mapping[str, SharedLimit],
        shards: Mapping[str, Mapping[str, bool]],
        reports: Mapping[tuple[str, str], Report],
        wanted: Mapping[str, Mapping[str, tuple[int | None, int]]],
    ) -> Plan[tuple[dict[str, list[Share]], bool]]:
        """Allot what is wanted, as far as it is free; returns what to write, and whether more is wanted."""
        writes: dict[str, list[Share]] = {}
        unsettled = False
        for name, one in limits.items():
            wishes = [
                Wish(
                    shard,
                    reports.get((name, shard)),
                    *_wish(wanted[name].get(shard)),
                    drop=not lasts,
                )
                for shard, lasts in shards[name].items()
            ]
            allotted: dict[str, Allotted] | None = yield commands.allot(
                self._namespace, name, one.words, wishes, rest_ms=self._rest_ms
            )
            if allotted is None:  # It has just been changed.
                unsettled = True
                continue
            for wish in wishes:
                has = allotted[wish.shard]
                want = wanted[name].get(wish.shard)
                if has.held or (want is not None and (has.slots, has.part) != want):
                    unsettled = True
                if wish.report is not None and wish.report.version != has.version:
                    words = share_words(one.limit, has.slots, has.part, has.version)
                    writes.setdefault(wish.shard, []).append((name, has.version, words))
        return writes, unsettled

    def _share(
        self, shares: Mapping[str, list[Share]], silent: dict[str, QworkerError], now_ms: int | None
    ) -> Plan[dict[tuple[str, str], Report]]:
        """Write shares; returns the reports of shards that answer, by limit and shard."""
        reports: dict[tuple[str, str], Report] = {}
        for shard, some in shares.items():
            keys = QueueKeys(self._namespace, shard)
            try:
                answers = yield from give_shares(keys, some, now_ms=now_ms)
            except QworkerError as error:
                silent[shard] = error
                continue
            for (name, *_), report in zip(some, answers, strict=True):
                reports[name, shard] = report
        return reports

    def _take_back_late(
        self, writes: Mapping[str, list[Share]], silent: dict[str, QworkerError]
    ) -> Plan[None]:
        """Take shares back that were written after their queues had left: these may have looked for them before."""
        known = yield from declared(self._namespace)
        late: dict[str, dict[str, int]] = {}
        for shard, some in writes.items():
            for name, version, _ in some:
                if name not in known or not _covers(known[name], shard):
                    late.setdefault(name, {})[shard] = version
        for name, versions in late.items():
            yield from self._take_back(name, versions, silent)

    def _take_back(
        self, name: str, versions: Mapping[str, int], silent: dict[str, QworkerError]
    ) -> Plan[None]:
        """Take shares, by shard their versions, away from queues that a limit is not over, and forget them."""
        for shard, version in versions.items():
            try:
                yield commands.share(
                    QueueKeys(self._namespace, shard), [(name, version + 1, TAKEN_AWAY)]
                )
            except QworkerError as error:
                silent[shard] = error
            else:
                yield commands.forget(self._namespace, [f"{name}\n{shard}"])

    def _shards(
        self, limits: Iterable[SharedLimit], silent: dict[str, QworkerError]
    ) -> Plan[dict[str, dict[str, bool]]]:
        """Return the shards of each limit; False for one that its queue has given up."""
        of_queue: dict[str, list[str] | None] = {}
        found: dict[str, dict[str, bool]] = {}
        for one in limits:
            shards: dict[str, bool] = {}
            for queue in one.queues:
                if queue not in of_queue:
                    try:
                        known: Shards = yield read_shards(QueueKeys(self._namespace, queue))
                        of_queue[queue] = known.names(queue)
                    except ServerError as error:
                        silent[queue] = error
                        of_queue[queue] = None
                names = of_queue[queue]
                if names is None:  # Its shards keep their shares.
                    names = [each for each in one.shares if each.partition("/")[0] == queue]
                shards.update(dict.fromkeys(names, True))
            for shard in filter(partial(_covers, one), one.shares):
                shards.setdefault(shard, False)
            found[one.name] = dict([*shards.items()][:MAX_LIMITED_SHARDS])
        return found


def _covers(one: SharedLimit, shard: str) -> bool:
    """Whether a limit is over the queue of a shard."""
    return split_shard_name(shard)[0] in one.queues


def _written(one: SharedLimit, shard: str) -> tuple[int, str]:
    """Return the share of a shard as it was allotted last: its write may not have arrived."""
    if shard not in one.versions:
        return 0, ""
    version = one.versions[shard]
    return version, share_words(one.limit, *one.shares[shard], version)


def _wish(wanted: tuple[int | None, int] | None) -> tuple[int | None, int]:
    if wanted is None:
        return None, 0
    slots, part = wanted
    return (NO_LIMIT if slots is None else slots), part
