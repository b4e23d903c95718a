"""A world: the actors on one queue, and every state that they can reach.

A state is the queue (a table), what each actor knows, the calls that are still on their way, and two memories that no
actor has: which messages were ever stored, and which lease names have been used. A real lease name is random and never
comes back. Here the leases of each consumer are numbered in the order in which they stand in the state, and those that
no client knows any more lose their names: two states that differ in names alone are one.
"""

from __future__ import annotations

import marshal
import re
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import cache, cached_property, lru_cache
from typing import Any, Final, NamedTuple

import msgspec

from verification.interleavings.actors import (
    ANSWERED,
    GHOST,
    LATE,
    NOT_SENT,
    Actor,
    Known,
    Sight,
    Step,
)
from verification.interleavings.bench import Bench, Outcome, Refused, Trial
from verification.interleavings.consumers import Once
from verification.interleavings.fixed import NOW, Call
from verification.interleavings.promises import breach
from verification.interleavings.tables import renamed, shifted
from verification.interleavings.view import view

__all__ = ["After", "Clients", "State", "Tried", "World"]


#: A time that a client remembers and that is so long ago is not a lease's deadline.
_FORGOTTEN_MS: Final = 7000
#: The name of a lease: its consumer's, and one digit.
_LEASE: Final = re.compile(rb"[a-z]+\.[1-9]")


class Clients(NamedTuple):
    """What stands outside of the server."""

    known: tuple[Known, ...]
    #: Calls that have timed out and may yet arrive.
    on_their_way: tuple[Call, ...] = ()
    #: Messages that were ever stored.
    stored: tuple[str, ...] = ()
    #: Names that leases were made under, as long as a client knows them.
    made: tuple[str, ...] = ()


class State(NamedTuple):
    """One state of a world: the queue, what the clients know, and what none knows; see `unpacked`."""

    table: bytes
    clients: bytes
    memory: bytes

    @classmethod
    def of(cls, table: bytes, clients: Clients) -> State:
        """Pack a state."""
        return cls(table, _packed(clients[:2]), _packed_memory(clients.stored, clients.made))

    @property
    def unpacked(self) -> Clients:
        """The clients."""
        return Clients(*marshal.loads(self.clients), *marshal.loads(self.memory))


class After(NamedTuple):
    """What a step has led to: a state, a broken promise or None, and the leases that have other names now."""

    state: State
    problem: str | None
    renames: tuple[tuple[str, str], ...]


@dataclass(frozen=True, slots=True)
class Tried:
    """What a call came to; it depends on the queue alone, so it is tried once for each."""

    result: Any
    table: bytes
    problem: str | None
    new_messages: frozenset[str]
    new_leases: frozenset[str]

    @classmethod
    def of(cls, trial: Trial, outcome: Outcome) -> Tried:
        """Judge an outcome."""
        before = view(trial.table)
        problem = breach(trial.call, before, outcome)
        if isinstance(outcome.result, str):
            return cls(outcome.result, trial.table, problem, frozenset(), frozenset())
        after = view(outcome.written.table)
        return cls(
            outcome.result,
            after.table,
            problem,
            frozenset(after.locations.keys() - before.locations.keys()),
            frozenset(after.leases.keys() - before.leases.keys()),
        )


@dataclass(frozen=True)
class World:
    """Actors, the attributes of the queue, and the calls that were made before they begin.

    `late`: how many timed-out calls may be on their way at once. `writes`: of each call, this many writes are made to
    fail in turn.
    """

    name: str
    about: str
    actors: Sequence[Actor]
    before: Sequence[Call] = ()
    attributes: dict[str, str] = field(default_factory=dict)
    late: int = 1
    writes: int = 0

    def __post_init__(self) -> None:
        for number, actor in enumerate(self.actors):
            actor.number = number

    @cached_property
    def _once(self) -> list[int]:
        """The actors that run messages at most once."""
        return [actor.number for actor in self.actors if isinstance(actor, Once)]

    def begin(self, bench: Bench) -> State:
        """The state in which everything begins."""
        meta = {"test": "1", "visibility_ms": "2000", "max_receives": "2", **self.attributes}
        fields = [word for name in sorted(meta) for word in (name, meta[name])]
        rows = [["meta", "hash", fields], ["schedules", "hash", ["s", "spec"]]]
        table = msgspec.msgpack.encode(rows)
        stored: set[str] = set()
        for call in self.before:
            outcome = next(bench.run([Trial(table, call)]))
            assert not isinstance(outcome.result, (str, Refused)), outcome.result
            table = outcome.written.table
            stored |= view(table).locations.keys()
        clients = Clients(tuple(actor.start for actor in self.actors), stored=tuple(sorted(stored)))
        return State.of(table, clients)

    def steps(self, state: State, clients: Clients) -> Iterator[Step]:
        """All steps that may happen next."""

        def fresh(owner: str) -> str:
            # A name is known to the client or is that of a lease: no message speaks of leases.
            for number in range(1, 10):
                word = f"{owner}.{number}"
                if word.encode() not in state.table and word.encode() not in state.clients:
                    return word
            raise AssertionError("more leases of one consumer than there are names")

        sight = Sight(view(state.table), fresh)
        for actor, known in zip(self.actors, clients.known, strict=True):
            for step in actor.steps(known, sight):
                if step.way != LATE or len(clients.on_their_way) < self.late:
                    yield step
        for call in clients.on_their_way:
            yield Step(-1, "network", _nothing, call, GHOST)
            yield Step(-1, "network", _nothing, call, NOT_SENT)

    def after(self, state: State, clients: Clients, step: Step, tried: Tried | None) -> After:
        """The state after a step, and the promise that was broken by it."""
        table, (known, on_their_way, stored, made) = state.table, clients
        problem = None
        if step.clock_ms:
            table = shifted(table, step.clock_ms)
            known, on_their_way = _earlier((known, on_their_way), step.clock_ms)
        call = step.call or ()
        if step.actor < 0:
            at = on_their_way.index(call)
            on_their_way = on_their_way[:at] + on_their_way[at + 1 :]
        else:
            result = tried.result if tried is not None and step.way == ANSWERED else None
            # A script that raised has returned nothing.
            if not isinstance(result, str):
                now_known = step.then(result)
                known = (*known[: step.actor], now_known, *known[step.actor + 1 :])
            if step.way == LATE:
                on_their_way = tuple(sorted([*on_their_way, call], key=repr))
        if tried is not None:
            table, problem = tried.table, tried.problem
            problem = problem or _remembered(stored, made, call, tried)
            if not tried.new_messages.issubset(stored):
                stored = tuple(sorted(tried.new_messages.union(stored)))
            if tried.new_leases:
                made = tuple(sorted(tried.new_leases.union(made)))
        problem = problem or (self._started_twice(known) if self._once else None)
        packed = _packed((known, on_their_way))
        names = (*_LEASE.findall(packed), *_names_in(table))
        if made:
            made = tuple([name for name in made if name.encode() in names])
        if names and (renames := _renames(names)):
            table = renamed(table, renames)
            known, on_their_way, made = _renamed((known, on_their_way, made), dict(renames))
            on_their_way = tuple(sorted(on_their_way, key=repr))
            state = State.of(table, Clients(known, on_their_way, stored, tuple(sorted(made))))
            return After(state, problem, renames)
        return After(State(table, packed, _packed_memory(stored, made)), problem, ())

    def _started_twice(self, known: tuple[Known, ...]) -> str | None:
        started = [name for number in self._once for name in known[number][2]]
        if len(set(started)) == len(started):
            return None
        return f"of {', '.join(started)} one was started twice, at most once was promised"

    def with_numberless_repetitions(self) -> World:
        """The same world, in which senders forget lane and number when they repeat a call."""
        for actor in self.actors:
            if hasattr(actor, "numbered"):
                actor.numbered = False
        return replace(self)


def _packed(value: Any) -> bytes:
    # Version 2 writes equal values as equal bytes; later ones also tell whether they are one object.
    return marshal.dumps(value, 2)


@cache
def _packed_memory(stored: tuple[str, ...], made: tuple[str, ...]) -> bytes:
    return _packed((stored, made))


@lru_cache(maxsize=200_000)
def _names_in(table: bytes) -> tuple[bytes, ...]:
    """The leases of a queue."""
    return tuple(_LEASE.findall(table)) if b"lease:" in table else ()


@cache
def _renames(names: tuple[bytes, ...]) -> tuple[tuple[str, str], ...]:
    """Number the leases of each consumer in this order; (old, new) … of those that get another name."""
    numbers: Counter[str] = Counter()
    renames = []
    for name in dict.fromkeys(names):
        old = name.decode()
        owner = old.partition(".")[0]
        numbers[owner] += 1
        new = f"{owner}.{numbers[owner]}"
        if new != old:
            renames.append((old, new))
    return tuple(renames)


def _renamed(value: Any, names: dict[str, str]) -> Any:
    if isinstance(value, tuple):
        return tuple([_renamed(item, names) for item in value])
    return names.get(value, value) if isinstance(value, str) else value


def _earlier(value: Any, step_ms: int) -> Any:
    """What clients know, after a step of the clock: numbers this large are times."""
    if isinstance(value, tuple):
        return tuple([_earlier(item, step_ms) for item in value])
    if isinstance(value, int) and value > NOW // 2:
        return max(value - step_ms, NOW - _FORGOTTEN_MS)
    return value


def _nothing(_: Any) -> Known:
    return ()


def _remembered(
    stored: tuple[str, ...], made: tuple[str, ...], call: Call, tried: Tried
) -> str | None:
    """What only the memories can tell."""
    if again := tried.new_messages.intersection(stored):
        return f"{', '.join(sorted(again))} was stored before, and is stored again"
    if again := tried.new_leases.intersection(made):
        return f"the lease {', '.join(sorted(again))} was made before, and is made again"
    if call[0] == "send" and not isinstance(tried.result, (Refused, str)):
        for position, (name, _) in enumerate(call[3]):
            known = name in stored or name in tried.new_messages
            if not known and position not in tried.result.duplicates:
                return f"{name} was accepted and never stored"
    return None
