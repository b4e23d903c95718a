"""Notes from inside of the product's processes: every ack that the server has confirmed, and that a process hears it.

held KEY …      a child has received them
acked KEY …     by a child, or by a supervisor for a dead one
heard           a call has succeeded; four times a second at most
ticked          a reaper has made a pass; likewise
"""

from __future__ import annotations

import os
import re
import time
from collections.abc import Callable, Sequence
from typing import Any

from tests.faults.history import History

__all__ = ["install", "key_of"]

_EVERY_S = 0.25
_KEY = re.compile(rb'"args":\["([^"]+)"')


def key_of(item: bytes) -> str:
    """The key of a message: the first argument of its call."""
    match = _KEY.search(item)
    return match[1].decode() if match else "?"


def _known(keys: Sequence[str]) -> list[str]:
    """Leave out messages that are not the load's."""
    return [key for key in keys if key != "?"]


def install(directory: str, role: str) -> None:
    """Watch this process: a worker's (supervisor or child), a daemon's, or another one, of which nothing is noted."""
    history = History(directory)
    if role.startswith("worker") and "QWORKER_CHILD" in os.environ:
        _watch_children(history)
    elif role.startswith("worker"):
        _watch_supervisors(history)
    elif role.startswith("daemon"):
        _watch_reapers(history)


def _watch_reapers(history: History) -> None:
    from qworker.daemon.reaper import Reaper

    _after(Reaper, "tick", _seldom(history, "ticked"))


def _seldom(history: History, word: str) -> Callable[[], None]:
    next_at = 0.0

    def note() -> None:
        nonlocal next_at
        now = time.monotonic()
        if now >= next_at:
            next_at = now + _EVERY_S
            history.note(word)

    return note


def _after(owner: type, name: str, then: Callable[[], None]) -> None:
    """Call `then` whenever a method has returned, and not where it raises."""
    method = getattr(owner, name)

    def method_and_then(self: Any, *args: Any, **given: Any) -> Any:
        result = method(self, *args, **given)
        then()
        return result

    setattr(owner, name, method_and_then)


def _watch_children(history: History) -> None:
    from qworker.consumer.hand import Hand
    from qworker.consumer.link import Link
    from qworker.consumer.telling import Teller

    _after(Link, "finish", _seldom(history, "heard"))
    held: dict[str, dict[str, str]] = {}
    hold, settled = Hand.hold, Teller.settled

    def hold_and_remember(self: Any, entry: Any, batch: Any) -> Any:
        held[batch.lease_id] = {
            index: key_of(item) for index, item in zip(batch.indices, batch.items, strict=True)
        }
        if known := _known([*held[batch.lease_id].values()]):
            history.note("held", *known)
        return hold(self, entry, batch)

    def settle_and_note(self: Any, told: Any, counts: Any) -> None:
        acked: list[str] = []
        for each, count in zip(told, counts, strict=True):
            # Only where all of it counted is it sure which of it did.
            if count == each.number:
                keys, outcomes = held[each.lease.id], each.outcomes
                indices = [*outcomes.acks, *outcomes.uniques[::3]]
                acked += [
                    keys.pop(index) for index in (list(keys) if outcomes.ack_all else indices)
                ]
        if acked:
            history.note("acked", *_known(acked), synced=True)
        settled(self, told, counts)
        # A child has 64 leases in hand at most.
        while len(held) > 1000:
            del held[next(iter(held))]

    Hand.hold = hold_and_remember  # type: ignore[method-assign]
    Teller.settled = settle_and_note  # type: ignore[method-assign, assignment]


def _watch_supervisors(history: History) -> None:
    from qworker.client.sync import Client
    from qworker.consumer.keeper import Keeper, _index

    _after(Client, "execute", _seldom(history, "heard"))
    found: dict[tuple[str, str], str] = {}
    read, settle = Keeper._read, Keeper._settle

    def read_and_remember(self: Any, keys: Any, lease: Any, uncounted: Any) -> Any:
        items = read(self, keys, lease, uncounted)
        for place, envelope in items.items():
            found[lease.lease_id, _index(lease, place)] = key_of(envelope.body)
        return items

    def settle_and_note(self: Any, keys: Any, outcomes: Any) -> int:
        count = settle(self, keys, outcomes)
        if count and count == len(outcomes):
            indices = [*outcomes.acks, *outcomes.uniques[::3]]
            acked = [found[outcomes.lease_id, index] for index in indices]
            if acked:
                history.note("acked", *_known(acked), synced=True)
        found.clear()
        return count

    Keeper._read = read_and_remember  # type: ignore[method-assign]
    Keeper._settle = settle_and_note  # type: ignore[method-assign]
