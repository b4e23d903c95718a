"""Who acts in a world, and what each may do next.

An actor is a program without memory: `steps` says what it may do, given what it knows (a tuple, part of the state). A
call goes one of four ways: it is answered; it is carried out and its reply is lost; it is late, and carried out at any
later time or never; it is lost on its way. After the last three the actor is in doubt, and does what the product's
clients do.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from itertools import permutations
from typing import Any, Final

from verification.interleavings.bench import Refused
from verification.interleavings.fixed import Call
from verification.interleavings.view import View

__all__ = [
    "ANSWERED",
    "GHOST",
    "LATE",
    "LOST",
    "NOT_SENT",
    "Actor",
    "Clock",
    "Daemon",
    "Known",
    "Operator",
    "Reaper",
    "Sender",
    "Sight",
    "Step",
    "Then",
    "always",
]

#: The ways of a call.
ANSWERED: Final = "answered"
LOST: Final = "carried out, reply lost"
LATE: Final = "times out, still on its way"
NOT_SENT: Final = "lost on its way"
GHOST: Final = "arrives late"

Known = tuple[Any, ...]
Then = Callable[[Any], Known]


@dataclass(frozen=True, slots=True)
class Step:
    """Something that may happen next.

    `then` is what its actor knows afterwards, given the result. `call` goes to the server unless its way is LATE or
    NOT_SENT; `clock_ms` moves the clock. With neither only the actor has changed.
    """

    actor: int
    text: str
    then: Then
    call: Call | None = None
    way: str = ANSWERED
    clock_ms: int = 0


@dataclass(frozen=True, slots=True)
class Sight:
    """What an actor's choices may depend on: the queue, and which lease names no client knows (any more)."""

    view: View
    fresh: Callable[[str], str]


class Actor:
    """What all actors have in common. `faulty`: the ways that its calls may go beside being answered."""

    start: Known = ()

    def __init__(self, name: str, faulty: Iterable[str] = ()) -> None:
        self.name = name
        self.faulty = tuple(faulty)
        self.number = 0

    def steps(self, known: Known, sight: Sight) -> Iterator[Step]:
        """The steps that it may take next."""
        raise NotImplementedError

    def issue(self, call: Call, then: Then, doubt: Known) -> Iterator[Step]:
        """The ways that a call may go."""
        yield Step(self.number, self.name, then, call)
        for way in self.faulty:
            yield Step(self.number, self.name, always(doubt), call, way)

    def alone(self, text: str, known: Known) -> Step:
        """Something that the server does not hear of."""
        return Step(self.number, f"{self.name} {text}", always(known))


def always(known: Known) -> Then:
    return lambda _: known


class Sender(Actor):
    """Sends its messages, one call each, on a lane.

    In doubt it repeats the call on the same lane under the same number, or gives up and continues with a new lane.
    Known: (number of the lane, number of the last call, messages done, in doubt).
    """

    start: Known = (0, 0, 0, False)
    #: Whether a repetition has lane and number; a client that forgets them is one of the mutations.
    numbered = True

    def __init__(
        self,
        name: str,
        *calls: tuple[str, ...],
        unique: str = "",
        delay_ms: int = 0,
        faulty: Iterable[str] = (),
    ) -> None:
        super().__init__(name, faulty)
        self._calls = [tuple((each, unique) for each in call) for call in calls]
        self._delay_ms = delay_ms

    def steps(self, known: Known, sight: Sight) -> Iterator[Step]:
        """Send, send again, or give up."""
        lane, number, done, doubt = known
        if done == len(self._calls):
            return
        messages = self._calls[done]
        given_up = (lane + 1, 0, done + 1, False)
        if not doubt:
            call = ("send", f"{self.name}{lane}", number + 1, messages, self._delay_ms)
            answered = (lane, number + 1, done + 1, False)
            yield from self.issue(call, always(answered), (lane, number + 1, done, True))
            return
        on_lane = f"{self.name}{lane}" if self.numbered else ""
        call = ("send", on_lane, number, messages, self._delay_ms)

        def answered_at_last(result: Any) -> Known:
            # After doubt a refusal proves nothing: the first try may have run.
            return given_up if isinstance(result, Refused) else (lane, number, done + 1, False)

        yield from self.issue(call, answered_at_last, known)
        yield self.alone("gives up", given_up)


class Reaper(Actor):
    """Looks which leases are overdue, and later, when that may not be true any more, takes them back.

    Known: the leases that it has seen. With `looks` False it does both at once, with all leases there are.
    """

    def __init__(self, name: str, *, looks: bool = True, faulty: Iterable[str] = ()) -> None:
        super().__init__(name, faulty)
        self._looks = looks

    def steps(self, known: Known, sight: Sight) -> Iterator[Step]:
        """Look, or take back; in any order, because the ids of real leases are random."""
        leases = known if self._looks else tuple(sight.view.deadlines)
        if leases:
            for order in permutations(leases):
                yield from self.issue(("reap", order), always(()), ())
        elif sight.view.deadlines:

            def seen(reply: Any) -> Known:
                return tuple(sorted(reply[1][0].overdue))

            yield Step(self.number, self.name, seen, ("sweep",))


class Daemon(Actor):
    """Makes the same calls at any time: promote, trim, prune …"""

    def __init__(self, name: str, *calls: Call) -> None:
        super().__init__(name)
        self._calls = calls

    def steps(self, known: Known, sight: Sight) -> Iterator[Step]:
        """Any of its calls."""
        for call in self._calls:
            yield Step(self.number, self.name, always(()), call)


class Operator(Actor):
    """Makes each of its calls once, in this order, and again while it is in doubt. Known: (calls done, in doubt).

    A call that names dead letters has `*` for those that are there when it is first made.
    """

    start: Known = (0, None)

    def __init__(self, name: str, *calls: Call, faulty: Iterable[str] = ()) -> None:
        super().__init__(name, faulty)
        self._calls = calls

    def steps(self, known: Known, sight: Sight) -> Iterator[Step]:
        """The next call, or the one in doubt."""
        done, doubt = known
        if done == len(self._calls):
            return
        call = doubt or self._calls[done]
        if call[-1] == "*":
            entries = tuple(sorted(sight.view.dead_letters.values()))
            if not entries:
                return
            call = (*call[:-1], entries)
        yield from self.issue(call, always((done + 1, None)), (done, call))
        if doubt:
            yield self.alone("gives up", (done + 1, None))


class Clock(Actor):
    """Steps of the server's clock: forward, and back as often as it says. Known: (steps back left,).

    With `idle` False it pauses when no deadline and no due time is ahead: gaps are another world's.
    """

    def __init__(
        self, *steps_ms: int, idle: bool = False, back_ms: int = 2000, back: int = 0
    ) -> None:
        super().__init__("clock")
        self.start = (back,)
        self._steps_ms, self._back_ms, self._idle = steps_ms, back_ms, idle

    def steps(self, known: Known, sight: Sight) -> Iterator[Step]:
        """A step of each length."""
        for step_ms in self._steps_ms if self._idle or sight.view.is_waiting else ():
            yield Step(self.number, f"clock +{step_ms / 1000:g} s", always(known), clock_ms=step_ms)
        if known[0]:
            after = (known[0] - 1,)
            text = f"clock -{self._back_ms / 1000:g} s"
            yield Step(self.number, text, always(after), clock_ms=-self._back_ms)
