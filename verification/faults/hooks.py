"""Notes from inside of the product's processes: every ack that the server has confirmed, and that a process hears it.

held KEY …      a child has received them
delivered MS KEY …  when, by the server's clock; not noted of a repeated call, whose lease may be older
acked KEY …     by a child, or by a supervisor for a dead one
heard           a call has succeeded; four times a second at most
ticked          a reaper has made a pass; likewise
"""

from __future__ import annotations

import os
import re
import time
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from verification.faults.history import History

if TYPE_CHECKING:
    from qworker.engine.settle import Outcomes

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


def _note_acks_with_effects() -> Callable[[Outcomes], list[Any]]:
    """Remember which messages are acked with effects; returns what takes the indices of those of some outcomes."""
    from qworker.engine.settle import Outcomes

    ack_with = Outcomes.ack_with
    #: By the id of the words, which outcomes that are sent by themselves share; the words stay, and so does their id.
    noted: dict[int, tuple[list[Any], list[Any]]] = {}

    def ack_and_remember(self: Outcomes, index: int | str, *args: Any, **given: Any) -> None:
        ack_with(self, index, *args, **given)
        noted.setdefault(id(self._kept), (self._kept, []))[1].append(index)

    Outcomes.ack_with = ack_and_remember  # type: ignore[method-assign]
    return lambda outcomes: noted.pop(id(outcomes._kept), ([], []))[1]


def _watch_children(history: History) -> None:
    from qworker.consumer.child.connection import Connection
    from qworker.consumer.child.leases.board_slots import ChildLeases
    from qworker.consumer.child.settle.ack_buffer import AckBuffer

    _after(Connection, "finish", _seldom(history, "heard"))
    held: dict[str, dict[str, str]] = {}
    hold, settled = ChildLeases.hold, AckBuffer.settled
    with_effects = _note_acks_with_effects()

    def hold_and_remember(self: Any, pending: Any, batch: Any) -> Any:
        held[batch.lease_id] = {
            index: key_of(item) for index, item in zip(batch.indices, batch.items, strict=True)
        }
        if known := _known([*held[batch.lease_id].values()]):
            history.note("held", *known)
            if not batch.resumed:
                history.note("delivered", batch.now_ms, *known)
        return hold(self, pending, batch)

    def settle_and_note(self: Any, in_flight: Any, counts: Any) -> None:
        acked: list[str] = []
        for sent, count in zip(in_flight, counts, strict=True):
            # Only if all of them counted is it sure which did.
            if count == sent.messages:
                keys, outcomes = held[sent.lease.id], sent.outcomes
                indices = [*outcomes.acks, *outcomes.uniques[::3], *with_effects(outcomes)]
                acked += [
                    keys.pop(index) for index in (list(keys) if outcomes.ack_all else indices)
                ]
        if acked:
            history.note("acked", *_known(acked), synced=True)
        settled(self, in_flight, counts)
        # A child holds a few dozen leases.
        while len(held) > 1000:
            del held[next(iter(held))]

    ChildLeases.hold = hold_and_remember  # type: ignore[method-assign]
    AckBuffer.settled = settle_and_note  # type: ignore[method-assign, assignment]


def _watch_supervisors(history: History) -> None:
    from qworker.client.execute.sync import Client
    from qworker.consumer.supervisor.leases.lease_keeper import LeaseKeeper

    _after(Client, "execute", _seldom(history, "heard"))
    found: dict[tuple[str, str], str] = {}
    read, settle = LeaseKeeper._read, LeaseKeeper._settle
    with_effects = _note_acks_with_effects()

    def read_and_remember(self: Any, keys: Any, lease: Any, others: Any) -> Any:
        items = read(self, keys, lease, others)
        for position, envelope in items.items():
            found[lease.lease_id, lease.index_of(position)] = key_of(envelope.body)
        return items

    def settle_and_note(self: Any, keys: Any, outcomes: Any, *until: Any, **given: Any) -> int:
        count = settle(self, keys, outcomes, *until, **given)
        if count and count == len(outcomes):
            indices = [*outcomes.acks, *outcomes.uniques[::3], *with_effects(outcomes)]
            acked = [found[outcomes.lease_id, index] for index in indices]
            if acked:
                history.note("acked", *_known(acked), synced=True)
        found.clear()
        return count

    LeaseKeeper._read = read_and_remember  # type: ignore[method-assign]
    LeaseKeeper._settle = settle_and_note  # type: ignore[method-assign]
