"""The worlds of groups of calls, outboxes and runs."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from verification.interleavings.actors import LATE, LOST, NOT_SENT, Clock, Operator, Reaper
from verification.interleavings.consumers import Consumer
from verification.interleavings.fixed import Call
from verification.interleavings.runners import Relayer, Runner
from verification.interleavings.world import World

__all__ = ["FLOW_WORLDS"]

_FAULTS: Final = (LOST, LATE, NOT_SENT)
#: The start of the run `r`.
_RUN: Final[Call] = ("send", "z0", 1, (("r", ""),), 0)


def _group(size: int, policy: str = "all", rest: str = "") -> list[Call]:
    """A group g that has begun, and whose members are ready."""
    members = tuple((f"g.{n}", "") for n in range(size))
    return [("begin", "g", size, 0, policy, "", rest), ("send", "z0", 1, members, 0)]


def _effects(*, small: bool) -> World:
    return World(
        "effects",
        "members of a group are acked with their ends, in doubt, late and twice, while leases run out",
        [
            Consumer("ann", count=1 if small else 2, ends="value", dies=not small, faulty=_FAULTS),
            Relayer("rita"),
            Reaper("ray", looks=False),
            Clock(2000),
        ],
        before=_group(1 if small else 2),
        attributes={"max_receives": "1"},
    )


def _relays(*, small: bool) -> World:
    return World(
        "relays",
        "two processes relay one outbox, in doubt and late, from the members of a group to its callback",
        [
            Relayer("rita", faulty=[LATE] if small else _FAULTS),
            Relayer("rob", faulty=() if small else [LOST]),
            Consumer("ann", count=1, ends="value", dies=False),
        ],
        before=[("begin", "g", 2, 1 if small else 2, "all", "")]
        + ([("send", "z0", 1, (("g.1", ""),), 0)] if small else []),
    )


def _redriven(*, small: bool) -> World:
    return World(
        "redriven",
        "a member of a group dies and is redriven while its ends are relayed, in doubt and late",
        [
            Consumer("ann", count=1, ends="value bury", dies=False),
            Operator("olga", ("redrive", "*"), *([] if small else [("redrive", "*")])),
            Relayer("rita", faulty=[LATE] if small else _FAULTS),
        ],
        before=_group(1, "first"),
    )


def _dropped(*, small: bool) -> World:
    return World(
        "dropped",
        "a group that waits for dead letters is told that they are redriven, in doubt, and dropped",
        [
            Consumer("ann", count=1, ends="value bury", dies=False),
            Operator("olga", ("redrive", "*"), faulty=[LOST, LATE]),
            Operator("otto", ("drop", "*")),
            Relayer("rita", faulty=() if small else [LOST]),
        ],
        before=_group(1 if small else 2, "successes"),
    )


def _abandoned(*, small: bool) -> World:
    return World(
        "abandoned",
        "a group of which one success is enough is abandoned, and begun again, while its members end",
        [
            Consumer("ann", count=1, ends="value" if small else "value bury", dies=False),
            Operator("olga", ("cancel", "g.0"), ("abandon", "g"), faulty=() if small else [LATE]),
            Operator("otto", ("begin", "g", 2, 0, "first", "")),
            Relayer("rita"),
        ],
        before=_group(2, "first"),
    )


def _steps(*, small: bool) -> World:
    return World(
        "steps",
        "two deliveries of a run record one step, in doubt and late, while leases run out",
        [
            Runner("ann", "step", faulty=[LATE] if small else _FAULTS),
            Runner("bob", "step", dies=not small, faulty=() if small else _FAULTS),
            Reaper("ray", looks=False),
            Clock(2000),
        ],
        before=[_RUN],
        attributes={"max_receives": "2"},
    )


def _signals(*, small: bool) -> World:
    return World(
        "signals",
        "a run waits for a signal, which two operators give, in doubt and late, while leases run out",
        [
            Runner("ann", "wait", dies=not small, faulty=[LOST, LATE]),
            Operator("olga", ("signal", "r", "!s", "1"), faulty=[LATE] if small else _FAULTS),
            Operator("otto", ("signal", "r", "!s", "2"), faulty=() if small else [LOST]),
            *([] if small else [Reaper("ray", looks=False), Clock(2000)]),
        ],
        before=[_RUN],
        attributes={"max_receives": "1"},
    )


def _gathers(*, small: bool) -> World:
    return World(
        "gathers",
        "a run makes calls and waits for them, in doubt and late, while leases run out",
        [
            Runner("ann", "gather", members=1, dies=False, faulty=[LATE] if small else _FAULTS),
            *([] if small else [Consumer("bob", count=1, ends="value", dies=False)]),
            Relayer("rita"),
            Reaper("ray", looks=False),
            Clock(2000),
        ],
        before=[_RUN],
        attributes={"max_receives": "1"},
    )


def _rest(*, small: bool) -> World:
    return World(
        "rest",
        "the first success of a group cancels the rest, in doubt and late, while that ends and its worker dies",
        [
            Consumer("ann", count=1, leases=2, ends="value", dies=not small),
            Relayer("rita", faulty=[LATE] if small else _FAULTS),
        ],
        before=_group(2, "first", rest=" 0 1"),
        attributes={"max_receives": "2"},
    )


FLOW_WORLDS: Final[dict[str, Callable[..., World]]] = {
    "effects": _effects,
    "relays": _relays,
    "redriven": _redriven,
    "dropped": _dropped,
    "abandoned": _abandoned,
    "steps": _steps,
    "signals": _signals,
    "gathers": _gathers,
    "rest": _rest,
}
