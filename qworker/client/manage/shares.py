"""How a limit over several queues is divided among their shards: by what each has to do. Arithmetic alone."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

from qworker.client.manage.limit import Limit
from qworker.engine.shares import WHOLE, Report

__all__ = ["Divider"]

#: If more shards have work than there are slots, a shard without a slot gets one after this many ms.
TURN_MS: Final = 2000
#: If every shard has a slot, those left over move only after this many ms: a slot that moves is idle for a moment.
REST_TURN_MS: Final = 10_000
#: What a shard may start, of what it has started lately; its waiting messages are added.
_HEADROOM: Final = 1.05
#: What a shard has started is counted over this many ms at least.
_SAMPLE_MS: Final = 500
#: The part of a rate that shards without work have together: their first message starts at once.
_IDLE: Final = WHOLE // 200


@dataclass(slots=True)
class Divider:
    """Divides one limit among shards; remembers what each has started, and whose turn it is."""

    #: Shards in the order in which they get a slot if there are too few.
    order: list[str] = field(default_factory=list)
    turned_ms: int = 0
    #: Per shard: how many had started, and when, in ms.
    _started: dict[str, tuple[int, int]] = field(default_factory=dict)
    _per_s: dict[str, float] = field(default_factory=dict)

    def divide(
        self,
        limit: Limit,
        reports: Mapping[str, Report],
        has: Mapping[str, tuple[int | None, int]],
        now_ms: int,
    ) -> dict[str, tuple[int | None, int]]:
        """Return slots (None: no limit) and part of the rate per shard that reported.

        `has`: what shards have now. What they have is left as it is while it is enough for all of them.
        """
        self.order = [shard for shard in self.order if shard in reports]
        self.order += [shard for shard in sorted(reports) if shard not in self.order]
        slots: dict[str, int] | None = None
        if limit.concurrency is not None:
            slots = self._slots(limit.concurrency, reports, has, now_ms)
        parts = dict.fromkeys(reports, 0)
        if limit.per_s is not None:
            able = [shard for shard in self.order if slots is None or slots[shard] > 0]
            parts |= self._parts(limit.per_s, able, reports, has, now_ms)
        return {shard: (None if slots is None else slots[shard], parts[shard]) for shard in reports}

    def _slots(
        self,
        total: int,
        reports: Mapping[str, Report],
        has: Mapping[str, tuple[int | None, int]],
        now_ms: int,
    ) -> dict[str, int]:
        wants = {
            shard: min(total, report.running + report.waiting) for shard, report in reports.items()
        }
        now = {shard: has.get(shard, (0, 0))[0] for shard in reports}
        known = {shard: slots for shard, slots in now.items() if slots is not None}
        is_known = len(known) == len(now) and sum(known.values()) == total
        if is_known and all(wants[shard] <= known[shard] for shard in reports):
            return known
        some_wait = sum(want > 0 for want in wants.values()) > total
        passed_ms = now_ms - self.turned_ms
        if not 0 <= passed_ms < (TURN_MS if some_wait else REST_TURN_MS):  # < 0: a clock set back
            self.turned_ms = now_ms
            self.order = self.order[1:] + self.order[:1]
        return _filled(total, wants, self.order)

    def _parts(
        self,
        per_s: float,
        able: Sequence[str],
        reports: Mapping[str, Report],
        has: Mapping[str, tuple[int | None, int]],
        now_ms: int,
    ) -> dict[str, int]:
        wants = {}
        for shard in able:
            report = reports[shard]
            started, since_ms = self._started.get(shard, (report.started, 0))
            passed_ms = now_ms - since_ms
            if not 0 <= passed_ms < _SAMPLE_MS:
                if since_ms and passed_ms > 0 and report.started >= started:
                    self._per_s[shard] = (report.started - started) / (passed_ms / 1000)
                self._started[shard] = (report.started, now_ms)
            need = self._per_s.get(shard, 0.0) * _HEADROOM + report.waiting
            wants[shard] = min(WHOLE, int(need / per_s * WHOLE) + _IDLE // len(able))
        now = {shard: has.get(shard, (0, 0))[1] for shard in able}
        if sum(now.values()) == WHOLE and all(wants[shard] <= now[shard] for shard in able):
            return now
        return _filled(WHOLE, wants, able)


def _filled(total: int, wants: Mapping[str, int], order: Sequence[str]) -> dict[str, int]:
    """Divide a number: none gets less than another that wants no more; the rest is spread over all.

    Where a unit cannot be divided the first ones in `order` get it.
    """
    given: dict[str, int] = {}
    left, hungry = total, sorted(order, key=lambda shard: wants[shard])
    for at, shard in enumerate(hungry):
        given[shard] = min(wants[shard], left // (len(hungry) - at))
        left -= given[shard]
    for shard in order:
        if left and given[shard] < wants[shard]:
            given[shard] += 1
            left -= 1
    for at, shard in enumerate(order):
        more = left // (len(order) - at)
        given[shard] += more
        left -= more
    return given
