"""Faults of unique keys: those of single messages, under a load of keys that are held, debounced and throttled, and of
schedules whose slots must not overlap.

What keys promise is read from the history, outside of Redis:

- `beside`: the most handlers of one key held until the end that ran at a time;
- `slots_beside`: the same of one schedule, over its policies skip, queue and cancel;
- `held_after_s`: the longest time for which a key was still held after its holder had ended for the last time, or had
  begun, if it is held until then;
- `throttled_twice`: messages that were stored although another was stored less than the time before;
- `kept_longer_s`: how long beyond that time a throttled key kept others out;
- `debounced_lost`: keys of which the last confirmed message did not run, nor a later one;
- `replaced_ran`: messages that ran although a later one was stored before they were due; `too_soon`: before that;
- `postponed_s`: the longest time from a debounced send with a limit until it, or a later one, began;
- `locked`: keys and schedules that were not free within a minute after the load.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from itertools import pairwise
from pathlib import Path
from typing import Final

from verification.faults import clocks
from verification.faults.flow import STALLED, most_at_once
from verification.faults.history import Event, events_of
from verification.faults.key_kinds import (
    DELAY_S,
    FOR_S,
    MAX_S,
    PRESSED,
    STARTED,
    TIMED,
    TYPED,
    UNIQUE,
)
from verification.faults.producer import Sending
from verification.faults.row import Bound, Row, at_least, at_most, exactly, within
from verification.faults.under import COMMON, SINGLE, under

__all__ = ["ROWS", "figures", "figures_of"]

#: Faults that stop neither the server nor all consumers.
_SERVED: Final = {"F1", "F1t", "F18"}
#: The scripts count milliseconds.
_ROUNDING_NS: Final = 3 * 10**6
_S: Final = 10**9


@dataclass
class _Message:
    """What became of one message: moments in ns, 0 for none."""

    sending: int = 0
    sent: int = 0
    began: list[int] = field(default_factory=list)
    done: int = 0


def figures_of(history: Path) -> Mapping[str, float]:
    """Read what keys promise from the histories of all processes."""
    return figures(events_of(history))


def figures(events: Iterable[Event]) -> Mapping[str, float]:
    """Read the same from events."""
    ended_at: dict[int, int] = {}
    messages: dict[str, _Message] = defaultdict(_Message)
    keys, kept = dict[str, str](), list[tuple[Event, str]]()
    runs: dict[str, list[Event]] = defaultdict(list)
    slots: dict[str, list[Event]] = defaultdict(list)
    locked = 0
    for event in sorted(events, key=lambda each: each.at):
        ended_at[event.pid] = event.at
        match event.word, event.rest:
            case "named", (key, message_id):
                keys[message_id] = key
            case "sending", (producer, first, _):
                messages[f"{producer}-{first}"].sending = event.at
            case (("sent" | "latest"), (producer, first, *_)):
                messages[f"{producer}-{first}"].sent = event.at
            case "kept", (key, holder):
                kept.append((event, holder))
            case (("started" | "done" | "failed"), (key, *_)):
                runs[_unique_of(key)].append(event)
                if event.word == "started":
                    messages[key].began.append(event.at)
                elif event.word == "done":
                    messages[key].done = event.at
            case (("slot_began" | "slot_ended"), (message_id, number)):
                word = "started" if event.word == "slot_began" else "done"
                slots[number].append(replace(event, word=word, rest=(message_id,)))
            case (("locked" | "silent"), _):
                locked += 1
    by_producer: dict[str, dict[int, _Message]] = defaultdict(dict)
    for key, message in messages.items():
        producer, _, number = key.rpartition("-")
        by_producer[producer][int(number)] = message
    held = [each for unique, each in runs.items() if unique.startswith(UNIQUE)]
    return {
        "kept_out": len(kept),
        "slots_began": sum(each.word == "started" for some in slots.values() for each in some),
        "beside": max((most_at_once(each, ended_at) for each in held), default=0),
        "slots_beside": max((most_at_once(each, ended_at) for each in slots.values()), default=0),
        "locked": locked,
        **_holds(messages, keys, kept),
        **_throttles(messages),
        **_debounces(by_producer),
    }


def _unique_of(key: str) -> str:
    """The unique key of a kind that all producers share."""
    return key.rpartition("-")[0].rpartition("/")[2]


def _kind(key: str) -> str:
    return _unique_of(key).rstrip("0123456789")


def _holds(
    messages: Mapping[str, _Message], keys: Mapping[str, str], kept: list[tuple[Event, str]]
) -> dict[str, float]:
    longest = timed = 0
    for event, holder in kept:
        key = event.rest[0]
        asked, one = messages[key].sending, messages.get(keys.get(holder, ""))
        if one is None:
            continue
        match _kind(key):
            case kind if kind == UNIQUE and one.done:
                longest = max(longest, asked - one.done)
            case kind if kind == STARTED and one.began:
                longest = max(longest, asked - one.began[0])
            case kind if kind == TIMED and one.sent:
                timed = max(timed, asked - one.sent - int(FOR_S * _S))
    return {"held_after_s": round(longest / _S, 2), "kept_longer_s": round(timed / _S, 2)}


def _throttles(messages: Mapping[str, _Message]) -> dict[str, float]:
    stored: dict[str, list[_Message]] = defaultdict(list)
    for key, message in messages.items():
        if _kind(key) == TIMED and message.sent:
            stored[_unique_of(key)].append(message)
    twice = 0
    for some in stored.values():
        some.sort(key=lambda each: each.sent)
        for one, other in pairwise(some):
            twice += other.sent - one.sending < FOR_S * _S - _ROUNDING_NS
    return {"throttled": sum(map(len, stored.values())), "throttled_twice": twice}


def _debounces(by_producer: Mapping[str, Mapping[int, _Message]]) -> dict[str, float]:
    lost = ran = soon = postponed = replaced = 0
    for producer, numbered in by_producer.items():
        kind = _kind(f"{producer}-0")
        if kind not in (TYPED, PRESSED):
            continue
        confirmed = sorted(number for number, one in numbered.items() if one.sent)
        begun = sorted((number, one.began[0]) for number, one in numbered.items() if one.began)
        last_done = max((number for number, one in numbered.items() if one.done), default=0)
        lost += bool(confirmed) and last_done < confirmed[-1]
        replaced += sum(not numbered[number].began for number in confirmed)
        for number, following in pairwise(confirmed):
            one, due = numbered[number], numbered[number].sending + int(DELAY_S * _S)
            in_time = numbered[following].sent < due - _ROUNDING_NS
            ran += kind == TYPED and in_time and bool(one.began)
        for number in confirmed:
            one = numbered[number]
            if kind == TYPED and one.began:
                soon += one.began[0] < one.sending + DELAY_S * _S - _ROUNDING_NS
            first = min((at for later, at in begun if later >= number), default=None)
            if kind == PRESSED and first is not None:
                postponed = max(postponed, first - one.sent)
    return {
        "replaced": replaced,
        "debounced_lost": lost,
        "replaced_ran": ran,
        "too_soon": soon,
        "postponed_s": round(postponed / _S, 2),
    }


_SENDING: Final = Sending(rate=120, chunk=1, backlog=300, nap_ms=40)
_USED: Final = (
    at_least("kept_out", 2),
    at_least("throttled", 1),
    at_least("replaced", 1),
    at_least("slots_began", 3),
)
_FREE: Final = exactly("locked", 0)
_ALONE: Final = (at_most("beside", 1), at_most("slots_beside", 1))
_TIMES: Final = (exactly("throttled_twice", 0), exactly("replaced_ran", 0), exactly("too_soon", 0))
#: An ack that comes late because its connection was lost, and what a killed process leaves behind.
_HELD_S: Final = 3.0
#: So long no ack can arrive, and a handler that has ended keeps its key.
_AWAY_S: Final = {"F23": 30.0}


def _bounds(row: Row) -> list[Bound]:
    # What a server has forgotten runs again, beside and after what has gone on since.
    if row.takes or row.undoes:
        return [*_USED, _FREE]
    bounds = [*_USED, _FREE, exactly("debounced_lost", 0), *_TIMES]
    if row.name in STALLED:
        return bounds
    if row.name in _SERVED:
        bounds.append(within("postponed_s", MAX_S + 3.0))
    held_s = _HELD_S + _AWAY_S.get(row.name, 0.0)
    return [*bounds, *_ALONE, within("held_after_s", held_s), within("kept_longer_s", 0.1)]


def _with_keys(row: Row) -> Row:
    """Play the course of a row under a load of unique keys."""
    load = replace(
        row.load,
        app="verification.faults.key_jobs:app",
        producer="verification.faults.key_producer",
        sending=_SENDING,
    )
    return under(row, f"U{row.name[1:]}", load, figures_of, *_bounds(row))


def _with_clocks(row: Row) -> Row:
    """The same while the server's clock jumps: times are as long as it says, but nothing is lost or stays locked."""
    made = _with_keys(row)
    # A gap is seen in a queue with leases; of this load there may be none when the clock jumps.
    kept = (b for b in made.bounds if b not in _TIMES and not b.timing and b.figure != "gaps")
    return replace(made, bounds=tuple(kept))


ROWS = [
    *(_with_keys(SINGLE[name]) for name in COMMON),
    *(_with_clocks(row) for row in clocks.ROWS if row.name in ("F38", "F38b")),
]
