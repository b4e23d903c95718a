"""A queue in plain Python: what each script is meant to do, without Redis.

Written from the rules, not from the Lua: it moves whole messages between lists and dicts, one after the other, and
knows nothing of chunks or keys. `table()` is what a queue that did the same must hold in Redis.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from operator import itemgetter
from typing import Any, Final
from urllib.parse import quote

HEARTBEAT_MS: Final = 5000
MAX_TOKENS: Final = 8


@dataclass(frozen=True)
class Item:
    """Something stored: `own` as the header says, or `plain`, `newer`, `foreign`, or `unread` (a broken header)."""

    kind: str
    id: str = ""
    sent_ms: int = 0
    receives: int = 0
    nacks: int = 0
    timeouts: int = 0
    shared: int = 0
    flags: tuple[tuple[str, str], ...] = ()
    body: str = ""

    @property
    def text(self) -> str:
        """The item as stored."""
        if self.kind != "own":
            return self.body
        flags = "".join(f" {key}={quote(value, safe='')}" for key, value in self.flags)
        counts = f"{self.receives} {self.nacks} {self.timeouts} {self.shared}"
        return f"q1 {self.id} {self.sent_ms} {counts}{flags}\n{self.body}"

    @property
    def header(self) -> str | None:
        """The header without its magic; None where it is not one of ours."""
        return self.text.partition("\n")[0][3:] if self.kind in ("own", "unread") else None

    def flag(self, key: str) -> str | None:
        """The value of a flag, or None."""
        return dict(self.flags).get(key) if self.kind == "own" else None

    def with_flag(self, key: str, value: str) -> Item:
        """The item with a flag that it has not got yet."""
        return (
            self if self.flag(key) is not None else replace(self, flags=(*self.flags, (key, value)))
        )

    def ready_from(self, at_ms: int) -> Item:
        """The item as it becomes ready at a time, again or later than it was sent."""
        others = tuple(pair for pair in self.flags if pair[0] not in "to")
        return replace(self, flags=(*others, ("t", str(at_ms))))

    @property
    def since_ms(self) -> int:
        """When it became ready, before what was not to its blame."""
        return int(self.flag("o") or self.flag("t") or self.sent_ms)

    def stays_before(self, other: Item, *, later: bool) -> bool:
        """Whether it stays in front of another one that comes back, both with their old places."""
        if self.since_ms != other.since_ms:
            return self.since_ms < other.since_ms
        mine, its = _made(self.id), _made(other.id)
        return mine[1:] < its[1:] if mine[0] == its[0] != "" else later

    @property
    def suspect(self) -> bool:
        """Whether it is to be delivered alone."""
        return self.timeouts > 0 or self.shared >= 2


def _made(name: str) -> tuple[str, int, int]:
    """Which process made an id, and its numbers there."""
    if len(name) == 20:
        return name[:10], int(name[10:]), 0
    match = re.fullmatch(r"([A-Za-z0-9]+)-(\d+)[\d-]*\.(\d+)", name)
    return (match[1], int(match[2]), int(match[3])) if match else ("", 0, 0)


#: Of a queue that does not say.
#: The time that never comes.
NEVER_MS = 2**53
VISIBILITY_MS = 30_000


@dataclass
class Ending:
    """What one received message came to, for `Model.settle`."""

    kind: str
    index: str
    delay_ms: int = 0
    max_receives: int | None = None
    reason: str = ""
    #: What the journal records of the delivery.
    times: str = ""


@dataclass
class LeaseEnd:
    """What the messages of a lease came to; `uniques` are (index, key, id)."""

    lease: str
    acks: list[str] = field(default_factory=list)
    uniques: list[tuple[str, str, str]] = field(default_factory=list)
    others: list[Ending] = field(default_factory=list)
    ack_all: bool = False
    #: The caller has groups for the journal, of the acks.
    told: bool = False


class Model:
    """The state of a queue, and its scripts as methods. Times are ms."""

    def __init__(self) -> None:
        self.ready: dict[int, list[Item]] = {level: [] for level in range(10)}
        self.levels: list[int] = [0]
        self.suspects: list[Item] = []
        self.delayed: dict[str, tuple[int, Item]] = {}
        self.leases: dict[str, dict[str, Item]] = {}
        self.deadlines: dict[str, int] = {}
        self.dead: list[tuple[Item, str]] = []
        self.unique: dict[str, tuple[str, int]] = {}
        self.cancelled: dict[str, int] = {}
        #: Lane → last number, its time, and what that call answered: ids and positions kept out.
        self.lanes: dict[str, tuple[int, int, list[str], list[int]]] = {}
        self.stats: Counter[str] = Counter()
        self.notes: dict[str, int] = {}
        self.tokens = 0
        self.paused = ""
        self.maxlen = 0
        self.max_receives = 5
        self.fired_ms: int | None = None
        self.now = 0
        #: What the journal must say of each message, in order; `-` is what has no id.
        self.story: dict[str, list[str]] = {}

    def tell(
        self, event: str, item: Item, *, place: str = "-", reason: str = "-", times: str = "- - - -"
    ) -> None:
        """Note an event; `place` names a plain message."""
        header = item.header
        if header is None:
            header = f"{place if item.kind == 'plain' else '-'} {self.now} 0 0 0 0"
        line = f"{event} {times or '- - - -'} {reason} - {header}"
        self.story.setdefault(header.partition(" ")[0], []).append(line)

    # -- sending -------------------------------------------------------------------------------

    def send(
        self,
        now: int,
        messages: list[tuple[Item, str | None]],
        lane: str,
        sequence: int,
        *,
        delay_ms: int = 0,
        ttl_ms: int = 0,
        priority: int = 0,
        hold_ms: int = 0,
    ) -> Any:
        """Store (message, unique key or None) pairs; ids and positions kept out, or the name of a refusal."""
        if lane in self.lanes and lane:
            last, _, ids, outside = self.lanes[lane]
            if sequence == last:
                return (ids, outside, True)
            if sequence < last:
                return "GhostSendError"
        ids, outside = [], []
        holds: dict[str, str] = {}
        for position, (item, key) in enumerate(messages):
            holder = self._holder(key, now) or holds.get(key) if key else None
            if holder and holder != item.id:
                outside.append(position)
            elif key:
                holds.setdefault(key, item.id)
            ids.append(holder or item.id)
        number = len(messages) - len(outside)
        if refusal := self._refusal(number):
            return refusal
        stamped = [
            replace(
                item,
                sent_ms=now,
                flags=((("x", str(now + ttl_ms)),) if ttl_ms else ())
                + ((("t", str(now + delay_ms)),) if delay_ms else ())
                + item.flags,
            )
            for position, (item, _) in enumerate(messages)
            if position not in outside
        ]
        self._accept(stamped, priority, delay_ms, now)
        for key, holder in holds.items():
            self.unique[key] = (holder, now + (min(hold_ms, ttl_ms) if ttl_ms else hold_ms))
        if lane:
            self.lanes[lane] = (sequence, now, ids, outside)
        return (ids, outside, False)

    def fire(self, now: int, slot_ms: int, item: Item) -> Any:
        """Send the message of a slot once."""
        if self.fired_ms is not None and self.fired_ms >= slot_ms:
            return False
        if refusal := self._refusal(1):
            return refusal
        self._accept([replace(item, sent_ms=now)], 0, 0, now)
        self.fired_ms = slot_ms
        return True

    def push(self, item: Item) -> None:
        """RPUSH by any program."""
        self.ready[0].append(item)

    def _holder(self, key: str, now: int) -> str | None:
        holder, until_ms = self.unique.get(key, ("", 0))
        return holder if until_ms > now else None

    def _refusal(self, number: int) -> str | None:
        if self.paused in ("in", "all"):
            return "QueuePausedError"
        if self.maxlen and self.stats["stored"] + number > self.maxlen:
            return "QueueFullError"
        return None

    def _accept(self, items: list[Item], priority: int, delay_ms: int, now: int) -> None:
        self.stats.update(sent=len(items), stored=len(items))
        for item in items:
            self.tell("sent", item)
        if delay_ms:
            self.delayed |= {item.text: (now + delay_ms, item) for item in items}
            return
        if items:
            self._use(priority)
        self.ready[priority] += items
        self._ring(len(items))

    # -- receiving -----------------------------------------------------------------------------

    def receive(
        self, now: int, lease: str, count: int, visibility_ms: int, suspects: int
    ) -> tuple[list[tuple[str, Item]], int, bool]:
        """Take messages into a new lease: (index, message) pairs, hint, and whether it is a suspect."""
        if self.paused in ("out", "all"):
            return [], -1, False
        taken: list[Item] = []
        behind = 0
        tombstones = bool(self.cancelled)
        first_lease = not self.deadlines
        alone = suspects == 2 and bool(self.suspects)
        if not alone:
            for level in self.levels:
                place = self.ready[level]
                moved: list[Item] = []
                while place and len(taken) < count:
                    self._take(place.pop(0), taken, moved, now, tombstones=tombstones)
                behind += len(moved)
                place += moved
            alone = not taken and suspects == 1 and bool(self.suspects)
        if alone:
            moved = []
            self._take(self.suspects.pop(0), taken, moved, now, tombstones=tombstones)
            behind += len(moved)
            self.ready[0] += moved
        indices = ["0"] if len(taken) == 1 else [str(n) for n in range(1, len(taken) + 1)]
        for index, item in zip(indices, taken, strict=True):
            self.tell("delivered", item, place=f"{lease}.{index}", times=f"{now} - - -")
        if taken:
            self.leases[lease] = dict(zip(indices, taken, strict=True))
            self.deadlines[lease] = now + visibility_ms
            if first_lease:
                self.notes["reaped_ms"] = now
        self.stats.update(received=len(taken), unacked=len(taken))
        left = sum(len(self.ready[level]) for level in self.levels) - behind
        left += len(self.suspects) if suspects else 0
        # Given back by the same call: who may take suspects is to know.
        waiting = left or (self._settle_rung if self.suspects else 0)
        self._ring(waiting)
        return list(zip(indices, taken, strict=True)), self._hint(left, len(taken), now), alone

    def resume(self, lease: str) -> tuple[list[tuple[str, Item]], bool]:
        """What a lease holds, in order."""
        held = sorted(self.leases.get(lease, {}).items(), key=lambda pair: int(pair[0]))
        return held, bool(held) and held[0][0] == "0" and held[0][1].suspect

    def _take(
        self, item: Item, taken: list[Item], moved: list[Item], now: int, *, tombstones: bool
    ) -> None:
        if item.kind == "own" and self._over(item, now, tombstones=tombstones):
            return
        if item.kind == "newer":
            self.stats["unsupported"] += 1
            moved.append(item)
        elif item.kind == "foreign":
            self.tell("dead", item, reason="foreign")
            self._bury(item, "foreign", stored=0)
        else:
            self.stats["stored"] += item.kind == "plain"
            taken.append(item)
            key = item.flag("u")
            # It may run past its expiry, so it holds its key until its end.
            if key is not None and item.flag("x") and self.unique.get(key, ("",))[0] == item.id:
                self.unique[key] = (item.id, NEVER_MS)

    def _hint(self, left: int, received: int, now: int) -> int:
        if left:
            return 0
        if received:
            return -2
        due = min((due for due, _ in self.delayed.values()), default=None)
        return -2 if due is None else max(1, due - now)

    # -- settling ------------------------------------------------------------------------------

    def lines(self, end: LeaseEnd) -> list[str]:
        """The lines of a caller that reports its acks: one for each, in order."""
        held = self.leases.get(end.lease, {})
        acks = [index for index, _, _ in end.uniques] + end.acks
        if end.ack_all:
            acks += [index for index in held if index not in acks]
        return [self._line(end.lease, index, held.get(index)) for index in acks]

    def _line(self, lease: str, index: str, item: Item | None) -> str:
        header = (item and item.header) or f"{lease}.{index} {self.now} 0 0 0 0"
        return f"acked 5 6 7 task - - {header}"

    def _tell_acks(
        self, end: LeaseEnd, asked: list[str], gone: dict[str, Item], *, per_message: bool
    ) -> None:
        """`gone` were acked, of those `asked` for."""
        if not end.told:
            for index, item in gone.items():
                self.tell("acked", item, place=f"{end.lease}.{index}")
        elif gone and len(asked) != len(gone) and not per_message:
            line = f"unsure - - - - {len(gone)}_of_{len(asked)} - - {self.now} 0 0 0 0"
            self.story.setdefault("-", []).append(line)
        else:
            for index, item in gone.items():
                line = self._line(end.lease, index, item)
                if len(asked) != len(gone):
                    line = line.replace("acked 5 6 7 ", "acked 5 - - ")
                self.story.setdefault(line.split(" ")[7], []).append(line)

    def settle(
        self, now: int, ends: list[LeaseEnd], *, per_message: bool = True
    ) -> tuple[list[int], list[bool]]:
        """Apply outcomes: messages settled per lease, and which outcomes counted.

        `per_message`: the script finds out for each ack whether it counted.
        """
        per_lease: list[int] = []
        counted: list[bool] = []
        rung = 0
        for end in ends:
            held = self.leases.get(end.lease, {})
            before = len(held)
            at_first = dict(held)
            for index, key, message_id in end.uniques:
                counted.append(index in held)
                if held.pop(index, None) and self.unique.get(key, ("",))[0] == message_id:
                    del self.unique[key]
            for index in end.acks:
                counted.append(held.pop(index, None) is not None)
            self.stats["acked"] += before - len(held)
            self.stats["stored"] -= before - len(held)
            asked = [index for index, _, _ in end.uniques] + end.acks
            gone = {index: at_first[index] for index in dict.fromkeys(asked) if index in at_first}
            heads: list[tuple[int, Item]] = []
            tails: list[Item] = []
            suspects: list[Item] = []
            backs: list[tuple[int, Ending, Item]] = []
            for other in end.others:
                if other.index == "*":
                    named = sorted(held, key=int)
                else:
                    counted.append(other.index in held)
                    named = [other.index] if other.index in held else []
                for index in named:
                    item = held.pop(index)
                    if other.kind in "rs":
                        backs.append((int(index), other, item))
                    else:
                        self._end(now, end.lease, other, index, item, heads, tails, suspects)
            # Those that go back come last, in the order of the lease.
            for number, other, item in sorted(backs, key=itemgetter(0)):
                self._end(now, end.lease, other, str(number), item, heads, tails, suspects)
            rung += self._put_back(now, heads, tails, suspects, later=bool(per_lease))
            if end.ack_all:
                self.stats["acked"] += len(held)
                self.stats["stored"] -= len(held)
                asked += held
                gone |= held
                held.clear()
            self._tell_acks(end, asked, gone, per_message=per_message and not end.ack_all)
            self._forget_if_empty(end.lease)
            settled = before - len(held)
            self.stats["unacked"] -= settled
            per_lease.append(settled)
        self.stats["stale"] += counted.count(False)
        self._settle_rung = rung
        return per_lease, counted

    def ring_settled(self) -> None:
        """Wake waiters for what the last settle put back; a receive in the same call does that itself."""
        self._ring(self._settle_rung)

    def _end(
        self,
        now: int,
        lease: str,
        end: Ending,
        index: str,
        item: Item,
        heads: list[tuple[int, Item]],
        tails: list[Item],
        suspects: list[Item],
    ) -> None:
        before, since_ms = item, item.since_ms

        def tell(event: str, reason: str = "-") -> None:
            self.tell(event, before, place=f"{lease}.{index}", reason=reason, times=end.times)

        if end.kind == "d":
            tell("discarded")
            self.stats["discarded"] += 1
            self._gone(item)
            return
        if item.kind == "plain":
            item = Item("own", f"{lease}.{index}", now, body=item.body)
            since_ms = max(0, self.deadlines[lease] - VISIBILITY_MS)
        if item.kind != "own":
            tell("dead", "foreign")
            self._bury(item, "foreign")
        elif end.kind == "b":
            tell("dead", end.reason)
            self._bury(replace(item, receives=item.receives + 1), end.reason)
        elif end.kind == "s":
            self.stats["timeouts"] += 1
            dies = self._blame(now, since_ms, item, alone=False, heads=heads, suspects=suspects)
            tell("dead" if dies else "timed_out", "max_receives" if dies else "shared")
        elif end.kind == "r":
            tell("released")
            self.stats["released"] += 1
            if end.delay_ms:
                item = item.ready_from(now + end.delay_ms)
                self.delayed[item.text] = (now + end.delay_ms, item)
            elif item.suspect:
                suspects.append(item.ready_from(now))
            else:
                heads.append((since_ms, item))
        else:
            self._fail(now, end, item, tell, tails, suspects)

    def _fail(
        self,
        now: int,
        end: Ending,
        item: Item,
        tell: Callable[[str, str], None],
        tails: list[Item],
        suspects: list[Item],
    ) -> None:
        """Count a failure of a message: retry it, or bury it after the last one."""
        crashed = int(end.kind == "c")
        self.stats["timeouts" if crashed else "nacked"] += 1
        item = replace(
            item,
            receives=item.receives + 1,
            nacks=item.nacks + 1 - crashed,
            timeouts=item.timeouts + crashed,
        )
        if end.max_receives is not None:
            item = item.with_flag("m", str(end.max_receives))
        if self._is_spent(item):
            tell("dead", "max_receives")
            self._bury(item, "max_receives")
            return
        tell("timed_out" if crashed else "nacked", "crashed" if crashed else "-")
        item = item.ready_from(now + end.delay_ms)
        if crashed:
            suspects.append(item)
        elif end.delay_ms:
            self.delayed[item.text] = (now + end.delay_ms, item)
        else:
            tails.append(item)

    def split(self, now: int, lease: str, index: str, new: str, visibility_ms: int) -> int:
        """Move a message to its own lease; its deadline or 0."""
        item = self.leases.get(lease, {}).pop(index, None)
        if item is None:
            return 0
        if item.kind == "plain":
            item = Item("own", f"{lease}.{index}", now, body=item.body)
        self.leases[new] = {index: item}
        self.deadlines[new] = now + visibility_ms
        self._forget_if_empty(lease)
        return now + visibility_ms

    def extend(self, now: int, leases: list[str], visibility_ms: int) -> dict[str, int]:
        """Raise deadlines."""
        for lease in leases:
            if lease in self.deadlines:
                raised = max(self.deadlines[lease], now + visibility_ms)
                self.deadlines[lease] = min(raised, now + 43_200_000)
        return {lease: self.deadlines.get(lease, 0) for lease in leases}

    # -- upkeep --------------------------------------------------------------------------------

    def visit(self, now: int, tick_ms: int) -> int:
        """Note a visit; the latest deadline that counts as overdue."""
        last = self.notes.get("reaped_ms")
        self.notes["reaped_ms"] = now
        if last is None:
            return now
        if now < last or now - last > max(3 * tick_ms, 2000):
            self.notes |= {"gap_from_ms": last, "gap_until_ms": now + HEARTBEAT_MS + 1000}
            self.stats["gaps"] += 1
            return min(now, last)
        if now < self.notes.get("gap_until_ms", 0):
            return min(now, self.notes["gap_from_ms"])
        return now

    def sweep(self, now: int, tick_ms: int, most: int) -> list[str]:
        """The leases that are overdue, the longest first."""
        if not self.deadlines:
            return []
        overdue_ms = self.visit(now, tick_ms)
        late = sorted((at, lease) for lease, at in self.deadlines.items() if at <= overdue_ms)
        return [lease for _, lease in late[:most]]

    def reap(self, now: int, leases: list[str], tick_ms: int) -> tuple[int, int]:
        """Take overdue leases back: leases and messages."""
        overdue_ms = self.visit(now, tick_ms)
        reaped = messages = rung = 0
        tombstones = bool(self.cancelled)
        for lease in leases:
            if self.deadlines.get(lease, overdue_ms + 1) > overdue_ms:
                continue
            heads: list[tuple[int, Item]] = []
            suspects: list[Item] = []
            for index, before in sorted(self.leases[lease].items(), key=lambda pair: int(pair[0])):
                messages += 1
                item, alone, since_ms = before, index == "0", before.since_ms
                if item.kind == "unread":
                    self.tell("dead", item, reason="foreign")
                    self._bury(item, "foreign")
                    continue
                if item.kind == "plain":
                    item = Item("own", f"{lease}.{index}", now, body=item.body)
                    since_ms = max(0, self.deadlines[lease] - VISIBILITY_MS)
                elif self._over(item, now, tombstones=tombstones):
                    continue
                # By the queue's visibility: the ids of these leases tell no other one.
                item = item.with_flag("f", str(max(0, self.deadlines[lease] - VISIBILITY_MS)))
                dies = self._blame(now, since_ms, item, alone=alone, heads=heads, suspects=suspects)
                reason = "max_receives" if dies else "alone" if alone else "shared"
                event = "dead" if dies else "timed_out"
                self.tell(event, before, place=f"{lease}.{index}", reason=reason)
            rung += self._put_back(now, heads, [], suspects, later=reaped > 0)
            self.leases.pop(lease)
            self.deadlines.pop(lease)
            reaped += 1
        self.stats.update(unacked=-messages, timeouts=messages)
        self._ring(rung)
        return reaped, messages

    def promote(self, now: int, limit: int) -> tuple[int, int]:
        """Move due messages: moved and ended."""
        due = sorted((at, text) for text, (at, _) in self.delayed.items() if at <= now)[:limit]
        moved = ended = 0
        tombstones = bool(self.cancelled)
        for _, text in due:
            _, item = self.delayed.pop(text)
            if item.kind == "own" and self._over(item, now, tombstones=tombstones):
                ended += 1
                continue
            level = int(item.flag("p") or 0)
            self._use(level)
            self.ready[level].append(item)
            self.tell("promoted", item)
            moved += 1
        self.stats["promoted"] += moved
        self._ring(moved)
        return moved, ended

    def trim(self, now: int, limit: int) -> int:
        """Remove expired messages at the heads."""
        expired = 0
        for level in self.levels:
            for _ in range(limit):
                head = self.ready[level][0] if self.ready[level] else None
                if head is None or int(head.flag("x") or now + 1) > now:
                    break
                self.tell("expired", head)
                self._free(self.ready[level].pop(0))
                expired += 1
        self.stats.update(expired=expired, stored=-expired)
        return expired

    def prune(self, now: int, idle_ms: int) -> int:
        """Forget lanes and unique keys that are over."""
        before = len(self.lanes) + len(self.unique)
        self.lanes = {k: v for k, v in self.lanes.items() if v[1] > now - idle_ms}
        self.unique = {k: v for k, v in self.unique.items() if v[1] > now}
        return before - len(self.lanes) - len(self.unique)

    def purge(self, state: str, limit: int) -> int:
        """Delete the oldest of a state."""
        gone: list[Item] = []
        if state == "ready":
            for place in (self.suspects, *(self.ready[level] for level in self.levels)):
                while place and len(gone) < limit:
                    gone.append(place.pop(0))
        elif state == "delayed":
            for _, text in sorted((at, text) for text, (at, _) in self.delayed.items())[:limit]:
                gone.append(self.delayed.pop(text)[1])
        else:
            number = len(self.dead[:limit])
            for item, _ in self.dead[:limit]:
                self.tell("purged", item, reason="dead")
            del self.dead[:limit]
            self.stats["purged"] += number
            return number
        for item in gone:
            self.tell("purged", item, reason=state)
            self._free(item)
            self.stats["stored"] -= item.kind in ("own", "unread")
        self.stats["purged"] += len(gone)
        return len(gone)

    def redrive(self, now: int, positions: list[int]) -> list[int]:
        """Put dead letters back, named by their positions; 1 or -1 for each."""
        answer = []
        for position in positions:
            item, _ = self.dead[position]
            kept_out = item.kind == "own" and not self._take_key(item, now)
            answer.append(-2 if kept_out else 1 if item.kind == "own" else -1)
            if answer[-1] != 1:
                continue
            self.tell("redriven", item)
            redrives = int(item.flag("d") or 0) + 1
            kept = [(key, value) for key, value in item.flags if key not in "dxt"]
            flags = (*kept, ("d", str(redrives)), ("t", str(now)))
            item = replace(item, receives=0, nacks=0, timeouts=0, shared=0, flags=flags)
            level = int(item.flag("p") or 0)
            self.ready[level if level in self.levels else 0].append(item)
        done = [position for position, each in zip(positions, answer, strict=True) if each == 1]
        self.dead = [dead_letter for n, dead_letter in enumerate(self.dead) if n not in done]
        self.stats.update(redriven=len(done), stored=len(done))
        self._ring(len(done))
        return answer

    def _take_key(self, item: Item, now: int) -> bool:
        """Let a redriven message hold its unique key again; False if another one does."""
        key = item.flag("u")
        if key is None:
            return True
        if self._holder(key, now) not in (None, item.id):
            return False
        self.unique[key] = (item.id, NEVER_MS)
        return True

    def drop(self, positions: list[int]) -> int:
        """Delete dead letters, named by their positions."""
        for position in positions:
            self.tell("purged", self.dead[position][0], reason="dead")
        self.dead = [dead_letter for n, dead_letter in enumerate(self.dead) if n not in positions]
        self.stats["purged"] += len(positions)
        return len(positions)

    def recount(self) -> int:
        """Bring the count of stored messages between its bounds."""
        least = len(self.suspects) + len(self.delayed) + sum(map(len, self.leases.values()))
        most = least + sum(map(len, self.ready.values()))
        change = max(least, min(self.stats["stored"], most)) - self.stats["stored"]
        self.stats["stored"] += change
        return change

    def pause(self, paused: str) -> None:
        """Set the pause; opening the output wakes every waiter."""
        opened = self.paused in ("out", "all") and paused not in ("out", "all")
        self.paused = paused
        if opened:
            self._ring(MAX_TOKENS)

    # -- parts ---------------------------------------------------------------------------------

    def _over(self, item: Item, now: int, *, tombstones: bool) -> bool:
        if int(item.flag("x") or now + 1) <= now:
            self.stats["expired"] += 1
            self.tell("expired", item)
        elif tombstones and item.id in self.cancelled:
            del self.cancelled[item.id]
            self.stats["cancelled"] += 1
            self.tell("cancelled", item)
        else:
            return False
        self._gone(item)
        return True

    def _blame(
        self,
        now: int,
        since_ms: int,
        item: Item,
        *,
        alone: bool,
        heads: list[tuple[int, Item]],
        suspects: list[Item],
    ) -> bool:
        """Count a delivery without an outcome; whether the message is dead of it."""
        item = replace(
            item,
            receives=item.receives + 1,
            timeouts=item.timeouts + alone,
            shared=item.shared + (not alone),
        )
        if self._is_spent(item):
            self._bury(item, "max_receives")
            return True
        if item.suspect:
            suspects.append(item.ready_from(now))
        else:
            heads.append((since_ms, item))
        return False

    def _is_spent(self, item: Item) -> bool:
        return item.nacks + item.timeouts >= int(item.flag("m") or self.max_receives)

    def _bury(self, item: Item, reason: str, *, stored: int = 1) -> None:
        self.dead.append((item, reason))
        self.stats.update({"dead": 1, f"dead:{reason}": 1, "stored": -stored})
        self._free(item)

    def _gone(self, item: Item) -> None:
        self.stats["stored"] -= 1
        self._free(item)

    def _free(self, item: Item) -> None:
        key = item.flag("u")
        if key is not None and self.unique.get(key, ("",))[0] == item.id:
            del self.unique[key]

    def _put_back(
        self,
        now: int,
        heads: list[tuple[int, Item]],
        tails: list[Item],
        suspects: list[Item],
        *,
        later: bool,
    ) -> int:
        groups: dict[int, list[Item]] = {}
        for since_ms, item in heads:
            group = groups.setdefault(self._home(item), [])
            at_ms = max(since_ms, group[-1].since_ms) if group else since_ms
            group.append(item.ready_from(now).with_flag("o", str(at_ms)))
        for level, group in groups.items():
            passed: list[Item] = []
            for each in self.ready[level]:
                if each.flag("o") is None or not each.stays_before(group[-1], later=later):
                    break
                passed.append(each)
            rest, merged = self.ready[level][len(passed) :], list[Item]()
            for item in group:
                while passed and passed[0].stays_before(item, later=later):
                    merged.append(passed.pop(0))
                merged.append(item)
            self.ready[level] = merged + passed + rest
        for item in tails:
            self.ready[self._home(item)].append(item)
        self.suspects += suspects
        return len(heads) + len(tails) + len(suspects)

    def _home(self, item: Item) -> int:
        level = int(item.flag("p") or 0)
        return level if level in self.levels else 0

    def _use(self, level: int) -> None:
        if level not in self.levels:
            self.levels = sorted([*self.levels, level], reverse=True)

    def _forget_if_empty(self, lease: str) -> None:
        if not self.leases.get(lease):
            self.leases.pop(lease, None)
            self.deadlines.pop(lease, None)

    def _ring(self, messages: int) -> None:
        if self.paused not in ("out", "all"):
            self.tokens = max(self.tokens, min(messages, MAX_TOKENS))

    # -- looking -------------------------------------------------------------------------------

    def table(self) -> dict[str, Any]:
        """The queue as it stands in Redis; empty keys and counters of 0 are left out."""
        parts: dict[str, Any] = {
            f"ready:{level}" if level else "ready": [item.text for item in place]
            for level, place in self.ready.items()
        }
        parts |= {f"lease:{lease}": _texts(held) for lease, held in self.leases.items()}
        parts |= {
            "suspect": [item.text for item in self.suspects],
            "delayed": {text: at for text, (at, _) in self.delayed.items()},
            "unacked": dict(self.deadlines),
            "dead": [(item.text, reason) for item, reason in self.dead],
            "unique": {key: f"{holder} {until}" for key, (holder, until) in self.unique.items()},
            "cancelled": dict(self.cancelled),
            "producers": {lane: _lane_text(*known) for lane, known in self.lanes.items()},
            "wake": ["1"] * self.tokens,
            "levels": self.levels,
            "stats": {k: v for k, v in (*self.stats.items(), *self.notes.items()) if v},
        }
        return {part: value for part, value in parts.items() if value}


def _lane_text(last: int, at_ms: int, ids: list[str], outside: list[int]) -> str:
    return " ".join([f"{last} {at_ms}", *(f"{n + 1} {ids[n]}" for n in outside)])


def _texts(held: dict[str, Item]) -> dict[str, str]:
    return {index: item.text for index, item in held.items()}
