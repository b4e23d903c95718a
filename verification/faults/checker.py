"""The verdict over a history: Jepsen's total-queue, and what a queue with acks promises beyond it.

Words of a history (keys are `<producer>-<number>`, a key is sent once):

    sending PRODUCER FIRST LAST     about to send these
    sent PRODUCER FIRST LAST        the server has confirmed them
    refused PRODUCER FIRST LAST     definitely not stored
    started KEY RECEIVES            a handler began, at this delivery
    poisoned KEY …                  one began that ends its process
    held KEY …                      a child has received these
    done KEY                        it came to its end
    scheduled ID                    the message of a schedule, which no producer has sent, came to its end
    acked KEY …                     the server has confirmed these acks
    crashed PID …                   these processes end now
    thawed PID …                    these were frozen, and continue now

A send that is neither confirmed nor refused is in doubt: its messages may come or not.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise

from verification.faults.history import Event

__all__ = ["Account", "account_of"]

#: Keys of each kind that an account names.
NAMED = 10


@dataclass(frozen=True)
class Account:
    """What a history comes to, in messages. The examples name some keys of each kind of damage.

    `lost`: confirmed, and neither handled to the end nor dead. `unexpected`: started, but never sent, or refused.
    `acked_unstarted`: acked, and no handler ever began with it. `finished`: handled to the end, and not dead.
    `maybe_cancelled`: those of them whose send was not confirmed, as of a call that may be cancelled, nor their ack:
    cancelled while the ack was on its way.
    `duplicates`: starts beyond the first of each message. `recovered`: started although their send was in doubt.
    `unexplained`: those of them whose process before was not lost. `latest_receives`: the highest receive count of a
    start. `redelivered_ns`: for each delivery that a lost process had begun, the times of the loss and of the next
    start. `held_s`: the seconds between them, of all that processes held which crashed by themselves, begun or not.
    `taken`: what the fault itself has deleted, by name; it is not `lost`. `uncounted`: starts with a receive count that
    the message had before: its lease was given back, uncounted, while a handler ran.
    """

    attempts: int = 0
    acked: int = 0
    lost: int = 0
    unexpected: int = 0
    acked_twice: int = 0
    started_after_ack: int = 0
    acked_unstarted: int = 0
    duplicates: int = 0
    recovered: int = 0
    handled: int = 0
    finished: int = 0
    maybe_cancelled: int = 0
    latest_receives: int = 0
    unexplained: int = 0
    taken: int = 0
    uncounted: int = 0
    held_s: list[float] = field(default_factory=list)
    redelivered_ns: list[tuple[int, int]] = field(default_factory=list)
    examples: dict[str, list[str]] = field(default_factory=dict)

    @property
    def redelivery_s(self) -> list[float]:
        """Seconds from each loss to the next start, in order of length."""
        return self.waits_s()

    def waits_s(self, gaps: Sequence[tuple[int, int]] = ()) -> list[float]:
        """Return the same without the time within `gaps`, which are from one ns to another and may overlap."""
        waits = []
        for lost, again in self.redelivered_ns:
            waited, at = 0, lost
            for first, last in sorted(gaps):
                waited += max(0, min(first, again) - at)
                at = max(at, last)
            waits.append((waited + max(0, again - at)) / 1e9)
        return sorted(waits)


def account_of(
    read: Callable[[], Iterable[Event]],
    *,
    dead: Collection[str] = (),
    gone: Collection[str] = (),
    losses: Mapping[int, Sequence[int]] | None = None,
) -> Account:
    """Check a history; `read` is called twice.

    `dead`: keys of dead letters. `gone`: keys of messages that the fault
    has deleted. `losses`: process → each time at which it was lost, ns.
    """
    seen = _Seen(lost_at={pid: [*times] for pid, times in (losses or {}).items()})
    for event in read():
        seen.add(event)
    thawed = seen.first_after_thaws()
    late = {
        event.rest[0]
        for event in read()
        if event.word == "started"
        and seen.first_ack.get(event.rest[0], event.at) < event.at
        and (event.at, event.pid) not in thawed
    }
    attempted, starts = seen.attempted, seen.starts
    never = [key for key in seen.confirmed if key not in seen.done and key not in dead]
    damage = {
        "lost": [key for key in never if key not in gone],
        "unexpected": [key for key in starts if key not in attempted or key in seen.refused],
        "acked_twice": [key for key, times in seen.acks.items() if times > 1],
        "started_after_ack": sorted(late),
        "acked_unstarted": [
            key for key in seen.acks if key not in starts and key not in seen.poisoned
        ],
    }
    finished = [key for key in seen.done if key not in dead]
    waits, unexplained = _redeliveries(starts, seen.lost_at, thawed)
    return Account(
        attempts=len(attempted),
        acked=len(seen.confirmed),
        **{kind: len(keys) for kind, keys in damage.items()},
        duplicates=sum(len(start) for start in starts.values()) - len(starts),
        recovered=sum(key in attempted and key not in seen.confirmed for key in starts),
        handled=len(seen.done),
        finished=len(finished) + len(seen.scheduled),
        maybe_cancelled=sum(key not in seen.confirmed and key not in seen.acks for key in finished),
        latest_receives=seen.latest,
        taken=sum(key in gone for key in never),
        held_s=_waits_of_held(seen.holds, starts, seen.crashes, seen.first_ack),
        redelivered_ns=waits,
        unexplained=unexplained,
        uncounted=_uncounted(starts, seen.later_counts),
        examples={kind: keys[:NAMED] for kind, keys in damage.items() if keys},
    )


def _uncounted(
    starts: Mapping[str, list[tuple[int, int]]], later_counts: Mapping[str, Sequence[int]]
) -> int:
    """Count the starts with a receive count that a start of the same message had; most messages start once."""
    uncounted = 0
    for key, runs in starts.items():
        if len(runs) > 1:
            later = later_counts.get(key, ())
            uncounted += len(later) - len({*later}) + max(0, len(runs) - len(later) - 1)
    return uncounted


def _redeliveries(
    starts: Mapping[str, list[tuple[int, int]]],
    losses: Mapping[int, Sequence[int]],
    thawed: Collection[tuple[int, int]],
) -> tuple[list[tuple[int, int]], int]:
    """When deliveries were lost and started again; and how many starts again neither a loss nor a thaw explains."""
    waits, unexplained = [], 0
    for runs in starts.values():
        if len(runs) < 2:
            continue
        runs.sort()
        for (began, pid), (again, by) in pairwise(runs):
            times = [loss for loss in losses.get(pid, ()) if loss <= again]
            if not times:
                unexplained += (again, by) not in thawed
            else:
                lost_at = min((time for time in times if time >= began), default=began)
                waits.append((lost_at, again))
    return waits, unexplained


def _waits_of_held(
    holds: Mapping[str, list[tuple[int, int]]],
    starts: Mapping[str, list[tuple[int, int]]],
    crashes: Mapping[int, int],
    acked: Mapping[str, int],
) -> list[float]:
    """Seconds from the crash of who held a message to its next start, or to its next holder where that crashes too."""
    waits = []
    for key, held in holds.items():
        held.sort()
        for at, (_, pid) in enumerate(held):
            crash = crashes.get(pid)
            if crash is None or acked.get(key, crash + 1) <= crash:
                continue
            after = held[at + 1] if at + 1 < len(held) else None
            if after is not None and after[0] < crash:
                continue  # given back before the crash, and delivered elsewhere by then
            again = min((begun for begun, _ in starts.get(key, ()) if begun > crash), default=None)
            if after is not None and (again is None or crashes.get(after[1], again) < again):
                again = after[0]
            if again is not None:
                waits.append((again - crash) / 1e9)
    return waits


class _Numbers:
    """Keys `<producer>-<number>` as ranges: a million of them take no room. A producer counts upwards."""

    def __init__(self) -> None:
        self._ranges: dict[str, list[range]] = {}

    def add(self, producer: str, first: str, last: str) -> None:
        ranges = self._ranges.setdefault(producer, [])
        begin, end = int(first), int(last) + 1
        if ranges and ranges[-1].stop == begin:
            begin = ranges.pop().start
        ranges.append(range(begin, end))

    def __len__(self) -> int:
        return sum(len(each) for ranges in self._ranges.values() for each in ranges)

    def __iter__(self) -> Iterator[str]:
        for producer, ranges in self._ranges.items():
            for each in ranges:
                for number in each:
                    yield f"{producer}-{number}"

    def __contains__(self, key: str) -> bool:
        producer, _, number = key.rpartition("-")
        ranges = self._ranges.get(producer, [])
        at = bisect_right(ranges, int(number), key=lambda each: each.start)
        return at > 0 and int(number) in ranges[at - 1]


@dataclass(slots=True)
class _Seen:
    """What a history says. `latest`: the highest receive count; `lost_at`: process → when it was lost, ns."""

    lost_at: dict[int, list[int]]
    attempted: _Numbers = field(default_factory=_Numbers)
    confirmed: _Numbers = field(default_factory=_Numbers)
    refused: _Numbers = field(default_factory=_Numbers)
    starts: dict[str, list[tuple[int, int]]] = field(default_factory=dict)
    done: set[str] = field(default_factory=set)
    scheduled: set[str] = field(default_factory=set)
    poisoned: set[str] = field(default_factory=set)
    acks: Counter[str] = field(default_factory=Counter)
    first_ack: dict[str, int] = field(default_factory=dict)
    latest: int = 0
    #: Receive counts above 1, of each message.
    later_counts: dict[str, list[int]] = field(default_factory=dict)
    holds: dict[str, list[tuple[int, int]]] = field(default_factory=dict)
    crashes: dict[int, int] = field(default_factory=dict)
    thaws: dict[int, list[int]] = field(default_factory=dict)

    def first_after_thaws(self) -> set[tuple[int, int]]:
        """Time and process of the first start after each thaw.

        The process may have been frozen between the check of the lease and the note of the start. Another start after
        it had its check in time.
        """
        starts: dict[int, list[int]] = {pid: [] for pid in self.thaws}
        for runs in self.starts.values():
            for at, pid in runs:
                if pid in starts:
                    starts[pid].append(at)
        return {
            (min(after), pid)
            for pid, times in self.thaws.items()
            for thaw in times
            if (after := [at for at in starts[pid] if at > thaw])
        }

    def add(self, event: Event) -> None:
        """Note an event."""
        match event.word:
            case "started":
                key = event.rest[0]
                self.starts.setdefault(key, []).append((event.at, event.pid))
                count = int(event.rest[1])
                self.latest = max(self.latest, count)
                if count > 1:
                    self.later_counts.setdefault(key, []).append(count)
            case "poisoned":
                self.poisoned.add(event.rest[0])
            case "held":
                for key in event.rest:
                    self.holds.setdefault(key, []).append((event.at, event.pid))
            case "done":
                self.done.add(event.rest[0])
            case "scheduled":
                self.scheduled.add(event.rest[0])
            case "acked":
                self.acks.update(event.rest)
                for key in event.rest:
                    self.first_ack[key] = min(event.at, self.first_ack.get(key, event.at))
            case "sending":
                self.attempted.add(*event.rest)
            case "sent":
                self.confirmed.add(*event.rest)
            case "refused":
                self.refused.add(*event.rest)
            case "thawed":
                for pid in event.rest:
                    self.thaws.setdefault(int(pid), []).append(event.at)
            case "crashed":
                for pid in event.rest:
                    self.lost_at.setdefault(int(pid), []).append(event.at)
                    self.crashes[int(pid)] = event.at
