"""Limits over several queues: which there are, and passes that divide them among the shards of these queues.

The key of the namespace says which shard has how many slots, and which part of the rate; each shard keeps its share as
it keeps limits of its own. All shares together are never more than the limit: a shard gets only what others have given
up and reported, see `lua/queue/allot.lua`. So a limit is not exceeded by a pass that fails halfway or runs twice.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

from qworker.client.manage.limit import Limit
from qworker.client.manage.shares import Divider
from qworker.client.plan import Plan
from qworker.engine import shares as commands
from qworker.engine.command import Pause
from qworker.engine.raw import server_time
from qworker.engine.shards import read_shards
from qworker.engine.shares import MOST_SHARDS, TAKEN_AWAY, WHOLE, Allotted, Report, Wish
from qworker.errors import InvalidOptionError, QworkerError, ServerError
from qworker.wire.keys import QueueKeys
from qworker.wire.numbers import whole
from qworker.wire.shards import Shards

__all__ = [
    "Balanced",
    "Balancer",
    "SharedLimit",
    "change",
    "declared",
    "leave",
    "zero_share",
]

#: A share that was given up is given to others this long after it was written: by then replicas have it.
REST_MS: Final = 100
#: Passes that a change waits for until its shares are written, at most.
_PASSES: Final = 3
_MOST_LIMITS: Final = 100
#: Of a pass: the first takes away, the second gives others what the reports of that show to be free.
_ROUNDS: Final = 2


_NO_LIMIT: Final = 10**12

#: Limit, version, words.
Share = tuple[str, int, str]


@dataclass(frozen=True, slots=True)
class SharedLimit:
    """A limit over several queues. `shares`: slots (None: no limit) and millionths of the rate of each shard."""

    name: str
    limit: Limit
    queues: tuple[str, ...]
    words: str
    shares: Mapping[str, tuple[int | None, int]]
    versions: Mapping[str, int]


@dataclass(frozen=True, slots=True)
class Balanced:
    """What a pass did: shares it changed; `unsettled`: some wait until others have given up theirs.

    `active`: something runs or waits. `silent`: shards that did not answer, with the error.
    """

    changed: int = 0
    unsettled: bool = False
    active: bool = False
    silent: Mapping[str, QworkerError] = field(default_factory=dict)


def declared(namespace: str) -> Plan[dict[str, SharedLimit]]:
    """Read the limits over several queues of a namespace."""
    stored: dict[str, str] = yield commands.shared_limits(namespace)
    found = {}
    for name, words in sorted(stored.items()):
        if not name.endswith("/"):
            continue
        parts = dict(part.split("=", 1) for part in words.split() if "=" in part)
        queues = tuple(filter(None, parts.get("q", "").split(",")))
        shares, versions = {}, {}
        for key, text in stored.items():
            limit, _, shard = key.partition("\n")
            values = [whole(each) for each in text.split()]
            if limit == name and shard and len(values) == 6 and None not in values:
                version, slots, _, part, *_ = (int(each or 0) for each in values)
                shares[shard] = (slots if slots < _NO_LIMIT else None, part)
                versions[shard] = version
        found[name] = SharedLimit(name, Limit.of_words(words), queues, words, shares, versions)
    return found


def words_of(limit: Limit, queues: Sequence[str], changed_ms: int) -> str:
    """Write a limit over several queues as it is stored."""
    return f"{limit.words} q={','.join(queues)} v={changed_ms}".strip()


def share_words(limit: Limit, slots: int | None, part: int, version: int) -> str:
    """Write the share of a shard. Old versions keep it as any other limit."""
    parts = []
    rated = limit.rate is not None
    if slots == 0 or (rated and part == 0):
        parts.append("c=0")
    elif limit.concurrency is not None:
        parts.append(f"c={slots}")
    if rated and part:
        every = -(-limit.period_ms * WHOLE // limit.starts)
        burst = max(1, round(limit.at_once * part / WHOLE))
        parts.append(f"r={part}/{every} b={burst}")
    if limit.weight is not None:
        parts.append(f"w={limit.weight:g}")
    if limit.max_waiting is not None:
        parts.append(f"m={limit.max_waiting}")
    return " ".join([*parts, f"s={version}"])


def zero_share() -> str:
    """Write a share that lets nothing start, for a shard that has none yet."""
    return "c=0 s=1"


class Balancer:
    """Makes passes over the limits of a namespace, and remembers what each shard did at the last one.

    `rest_ms` and `now_ms` of a pass are for tests.
    """

    def __init__(self, namespace: str, *, rest_ms: int = REST_MS) -> None:
        self._namespace = namespace
        self._rest_ms = rest_ms
        self._dividers: dict[str, Divider] = {}

    def balance(self, only: str | None = None, *, now_ms: int | None = None) -> Plan[Balanced]:
        """Make one pass: read what each shard does with its shares, divide the limits anew, and write new shares."""
        known = yield from declared(self._namespace)
        self._dividers = {name: self._dividers.get(name, Divider()) for name in known}
        limits = {name: one for name, one in known.items() if only in (None, name)}
        silent: dict[str, QworkerError] = {}
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
                answers: list[Report] = yield commands.share(keys, some, now_ms=now_ms)
            except QworkerError as error:
                silent[shard] = error
                continue
            for (name, *_), report in zip(some, answers, strict=True):
                reports[name, shard] = report
        return reports

    def _shards(
        self, limits: Iterable[SharedLimit], silent: dict[str, QworkerError]
    ) -> Plan[dict[str, dict[str, bool]]]:
        """Return the shards of each limit; False for one that its queue has given up, or whose queue left the limit."""
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
                if names is None:  # Its shards stay as they were.
                    names = [each for each in one.shares if each.partition("/")[0] == queue]
                shards.update(dict.fromkeys(names, True))
            for shard in one.shares:
                shards.setdefault(shard, False)
            found[one.name] = dict([*shards.items()][:MOST_SHARDS])
        return found


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
    return (_NO_LIMIT if slots is None else slots), part


def change(namespace: str, name: str, limit: Limit, queues: Sequence[str]) -> Plan[None]:
    """Store a limit over several queues, and divide it until all have their shares, as far as they answer.

    Raises `InvalidOptionError` if it is over more shards than can be kept, or one limit too many.
    """
    number = 0
    for queue in queues:
        known: Shards = yield read_shards(QueueKeys(namespace, queue))
        number += known.kept
    if number > MOST_SHARDS:
        raise InvalidOptionError(
            "with", f"makes a limit over {number} shards", f"the most is {MOST_SHARDS}"
        )
    others = yield from declared(namespace)
    if name not in others and len(others) >= _MOST_LIMITS:
        raise InvalidOptionError(
            "with",
            f"makes a limit over several queues of {_MOST_LIMITS + 1}",
            f"the most is {_MOST_LIMITS}",
        )
    now_ms: int = yield server_time()
    yield commands.declare(namespace, name, words_of(limit, queues, now_ms))
    balancer = Balancer(namespace)
    for _ in range(_PASSES):
        balanced = yield from balancer.balance(name)
        if not balanced.unsettled:
            break
        yield Pause(1.2 * REST_MS / 1000)


def leave(
    namespace: str, name: str, queue: str, shards: Sequence[QueueKeys]
) -> Plan[tuple[str, ...]]:
    """Take a queue out of a limit; without a queue there is no limit. Returns the queues that it is still over."""
    one = (yield from declared(namespace)).get(name)
    rest = tuple(each for each in one.queues if each != queue) if one else ()
    now_ms: int = yield server_time()
    if one is not None:
        gone = [
            f"{name}\n{shard}"
            for shard in one.shares
            if not rest or shard.partition("/")[0] == queue
        ]
        if rest:
            yield commands.declare(namespace, name, words_of(one.limit, rest, now_ms))
        yield commands.forget(namespace, [*([] if rest else [name]), *gone])
    for attempt in range(2 if one and shards else 1):
        if attempt:
            # A pass that read the limit before may write a share once more.
            yield Pause(0.3)
        for keys in shards:
            yield commands.share(keys, [(name, now_ms + 3_600_000, TAKEN_AWAY)])
    return rest
