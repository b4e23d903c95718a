"""Who receives: consumers, those that run messages at most once, and those that take over from others."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

from verification.interleavings.actors import Actor, Known, Sight, Step, Then
from verification.interleavings.bench import Refused
from verification.interleavings.fixed import Call
from verification.interleavings.flow_calls import member_of
from verification.interleavings.view import View

__all__ = ["Claimer", "Consumer", "Once", "effects_of"]


class Consumer(Actor):
    """Receives, and settles what it has received in several ways.

    In doubt it repeats the call to resume. Known: (the leases that it holds, as far as it knows: (lease, ((index,
    message id), …)) …; the call in doubt or None). `ends`: ack, value (of the first, with effects), some (the first
    only), nack, release, bury, crash (its worker died of the first message), share (its worker died of one of them).
    """

    start: Known = ((), None)

    def __init__(
        self,
        name: str,
        *,
        count: int = 2,
        leases: int = 1,
        ends: str = "ack some",
        suspects: int = 1,
        delay_ms: int = 0,
        extends: bool = False,
        alone: bool = False,
        dies: bool = True,
        faulty: Iterable[str] = (),
    ) -> None:
        super().__init__(name, faulty)
        self._count, self._leases, self._suspects = count, leases, suspects
        self._ends, self._delay_ms, self._extends = tuple(ends.split()), delay_ms, extends
        self._alone, self._dies = alone, dies

    def steps(self, known: Known, sight: Sight) -> Iterator[Step]:
        """Receive, settle, both at once, extend, resume, die."""
        held, doubt = known
        if doubt is not None:
            again = (*doubt[:4], 1, doubt[5]) if doubt[0] == "receive" else doubt
            yield from self.issue(again, self._answered(held, again), known)
        else:
            yield from self._go_on(held, sight)
        if self._dies and known != self.start:
            yield self.alone("dies", self.start)

    def _go_on(self, held: Known, sight: Sight) -> Iterator[Step]:
        choices: list[tuple[Known, Known]] = [((), held)]
        for position, (lease, messages) in enumerate(held):
            others = held[:position] + held[position + 1 :]
            for end in self._ends:
                if end == "value":
                    effects = effects_of(messages[0][1], self.name)
                    outcome: Known | None = (lease, (), (("value", messages[0][0], effects),), ())
                    rest = messages[1:]
                else:
                    outcome, rest = _ending(end, lease, messages, self._delay_ms, sight.view)
                left = (*others, (lease, rest)) if rest else others
                if outcome is not None:
                    choices.append(((outcome,), tuple(sorted(left))))
        for outcomes, left in choices:
            if len(left) < self._leases:
                new = sight.fresh(self.name)
                call: Call = ("receive", new, self._count, outcomes, 0, self._suspects)
                yield from self.issue(call, self._answered(left, call), (left, call))
            if outcomes:
                call = ("settle", outcomes)
                yield from self.issue(call, self._answered(left, call), (left, call))
        leases = tuple(lease for lease, _ in held)
        if self._extends and leases:
            call = ("extend", leases, int(sight.view.meta["visibility_ms"]))
            yield Step(self.number, self.name, lambda reply: (_still(held, reply), None), call)
        if self._alone and held and len(held[0][1]) > 1 and len(held) < self._leases + 1:
            new, (lease, messages) = sight.fresh(self.name), held[0]
            call = ("split", lease, messages[0][0], new)
            parted = tuple(sorted([(lease, messages[1:]), (new, messages[:1]), *held[1:]]))
            after = (parted, None)
            gone = ((((lease, messages[1:])), *held[1:]), None)
            yield Step(self.number, self.name, lambda deadline: after if deadline else gone, call)

    @staticmethod
    def _answered(left: Known, call: Call) -> Then:
        def then(batch: Any) -> Known:
            if call[0] == "settle" or isinstance(batch, Refused) or not batch.items:
                return (left, None)
            ids = [item.split(b" ")[1].decode() for item in batch.items]
            received = (batch.lease_id, tuple(zip(batch.indices, ids, strict=True)))
            return (tuple(sorted([*left, received])), None)

        return then


def effects_of(message: str, by: str) -> Known:
    """The effects of the ack of a message: of a member its end, with a value that says who has run it."""
    if member := member_of(message):
        return (("member", *member, f"ok\n{by}"),)
    return (("end",),)


def _still(held: Known, deadlines: dict[str, int]) -> Known:
    """The remaining leases after an answer that some are gone."""
    return tuple(lease for lease in held if deadlines[lease[0]])


def _ending(
    end: str, lease: str, messages: Known, delay_ms: int, view: View
) -> tuple[Known | None, Known]:
    """An outcome for a lease, None where this one makes no difference to another; and what is left to settle."""
    first, rest = messages[0], messages[1:]
    match end:
        case "ack":
            acked, left = messages, ()
        case "some":
            if not rest:
                return None, messages
            acked, left = messages[:1], rest
        case "release":
            return (lease, (), (("release", "*", 0),), ()), ()
        case "share":
            if not rest:
                return None, messages
            shared = tuple(("share", index, 0) for index, _ in messages)
            return (lease, (), shared, ()), ()
        case "crash":
            others = (("release", "*", 0),) if rest else ()
            return (lease, (), (("crash", first[0], 0), *others), ()), ()
        case _:
            delay = delay_ms if end == "nack" else 0
            return (lease, (), ((end, first[0], delay),), ()), rest
    keys = view.keys_held
    uniques = tuple((index, keys[name], name) for index, name in acked if name in keys)
    acks = tuple(index for index, name in acked if name not in keys)
    return (lease, acks, (), uniques), left


class Once(Actor):
    """Runs messages at most once: acks first, and starts only on a definite answer that the ack counted.

    Known: ((lease, message id) that it holds or None, the call in doubt or None, what it has started).
    """

    start: Known = (None, None, ())

    def steps(self, known: Known, sight: Sight) -> Iterator[Step]:
        """Receive one, or ack it and start it."""
        held, doubt, started = known
        call = doubt
        if doubt is not None and doubt[0] == "receive":
            call = (*doubt[:4], 1, doubt[5])
        elif doubt is None and held is None:
            call = ("receive", sight.fresh(self.name), 1, (), 0, 1)
        elif doubt is None:
            call = ("settle", ((held[0], ("0",), (), ()),))

        def then(result: Any) -> Known:
            if call[0] == "settle":
                ran = held is not None and result.counted[0]
                return (None, None, tuple(sorted([*started, held[1]])) if ran else started)
            if isinstance(result, Refused) or not result.items:
                return (None, None, started)
            return ((result.lease_id, result.items[0].split(b" ")[1].decode()), None, started)

        yield from self.issue(call, then, (held, call, started))
        if held or doubt:
            yield self.alone("dies", (None, None, started))


class Claimer(Actor):
    """Reads which consumer holds which lease, and later takes one over; in doubt it repeats the call to resume.

    It settles its messages.

    Known: (leases that it has seen with their deadlines, the lease that it holds: (lease, (index, …)) or None, the call
    in doubt or None).
    """

    start: Known = ((), None, None)

    def steps(self, known: Known, sight: Sight) -> Iterator[Step]:
        """Look, take over, ack."""
        seen, held, doubt = known
        if doubt is not None:
            again = (*doubt[:4], 1) if doubt[0] == "claim" else doubt
            yield from self.issue(again, self._answered(held, again), known)
        elif held is not None:
            call: Call = ("settle", ((held[0], held[1], (), ()),))
            yield from self.issue(call, self._answered(None, call), ((), None, call))
        elif seen:
            call = ("claim", sight.fresh(self.name), seen, 2, 0)
            yield from self.issue(call, self._answered(None, call), ((), None, call))
        else:
            deadlines = tuple(sorted(sight.view.deadlines.items()))
            if deadlines:
                yield self.alone("looks", (deadlines, None, None))
        if known != self.start:
            yield self.alone("dies", self.start)

    @staticmethod
    def _answered(held: Known | None, call: Call) -> Then:
        def then(claimed: Any) -> Known:
            if call[0] == "settle" or isinstance(claimed, Refused) or not claimed.batch.items:
                return ((), held, None)
            return ((), (claimed.batch.lease_id, tuple(claimed.batch.indices)), None)

        return then
