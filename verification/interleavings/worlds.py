"""The worlds: each for one kind of trouble and seen to its last state, and a smallest form of each."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from verification.interleavings.actors import (
    LATE,
    LOST,
    NOT_SENT,
    Clock,
    Daemon,
    Operator,
    Reaper,
    Sender,
)
from verification.interleavings.consumers import Claimer, Consumer, Once
from verification.interleavings.flow_worlds import FLOW_WORLDS
from verification.interleavings.world import World

__all__ = ["ENDLESS", "WORLDS", "world_of"]

FAULTS: Final = (LOST, LATE, NOT_SENT)


def _sent(*names: str, unique: str = "") -> tuple[object, ...]:
    """A call that sends messages before a world begins."""
    return ("send", "z0", 1, tuple((name, unique) for name in names), 0)


def _lanes(*, small: bool) -> World:
    return World(
        "lanes",
        "two lanes send, in doubt again and again, while messages are taken and acked",
        [
            Sender("a", ("a1",), ("a2",) if small else ("a2", "a3"), faulty=FAULTS),
            *([] if small else [Sender("b", ("b1",), faulty=FAULTS)]),
            Consumer("ann", count=1 if small else 2, ends="ack"),
        ],
    )


def _crossing(*, small: bool) -> World:
    return World(
        "crossing",
        "two late calls of one lane overtake each other, and newer ones",
        [
            Sender("a", ("a1",), ("a2",), *([] if small else [("a3",)]), faulty=FAULTS),
            Consumer("ann", count=1, ends="ack", dies=False),
        ],
        late=2,
    )


def _receipts(*, small: bool) -> World:
    bob = Consumer("bob", count=1, ends="ack", dies=False)
    return World(
        "receipts",
        "two consumers settle and receive, one in doubt, late and twice, while leases run out",
        [
            Consumer("ann", ends="ack some", faulty=FAULTS),
            *([] if small else [bob]),
            Reaper("ray", looks=False),
            Clock(2000),
        ],
        before=[_sent("m1", "m2")],
        attributes={"max_receives": "1"},
    )


def _parts(*, small: bool) -> World:
    return World(
        "parts",
        "a lease is settled in parts, and gives a message its own lease",
        [
            Consumer("ann", count=3, ends="ack some", alone=True, dies=False),
            Reaper("ray", looks=False),
            Clock(2000),
        ],
        before=[_sent("m1", "m2") if small else _sent("m1", "m2", "m3")],
        attributes={"max_receives": "1"},
    )


def _once(*, small: bool) -> World:
    return World(
        "once",
        "two consumers run messages at most once",
        [
            Once("ann", faulty=FAULTS),
            Once("bob", faulty=[LOST] if small else ()),
            Reaper("ray", looks=False),
            Clock(2000),
        ],
        before=[_sent("m1") if small else _sent("m1", "m2")],
        attributes={"max_receives": "1"},
    )


def _blame(*, small: bool) -> World:
    return World(
        "blame",
        "messages kill their workers, alone and beside others",
        [
            Consumer("ann", ends="ack" if small else "nack crash share"),
            *([] if small else [Consumer("bob", ends="ack", count=1, suspects=0)]),
            Reaper("ray", looks=False),
            Clock(2000),
        ],
        before=[_sent("m1", "m2")],
    )


def _handed(*, small: bool) -> World:
    return World(
        "handed",
        "a message that killed its worker comes to a consumer that must not run such, and is given back",
        [
            Consumer("ann", ends="crash nack", count=1, dies=False),
            Consumer("bob", ends="release", suspects=0, dies=False),
        ],
        before=[_sent("m1") if small else _sent("m1", "m2")],
        attributes={"max_receives": "3"},
    )


def _gaps(*, small: bool) -> World:
    return World(
        "gaps",
        "two reapers race with stale lists, the clock jumps ahead and back, and there are gaps",
        [
            Consumer("ann", ends="ack", extends=small, dies=False),
            Reaper("ray"),
            Reaper("sue", looks=False),
            Clock(2000, idle=True, back=0 if small else 1),
        ],
        before=[_sent("m1")],
        attributes={"max_receives": "1"} if small else {},
    )


def _claims(*, small: bool) -> World:
    return World(
        "claims",
        "messages are taken over from a consumer that goes on, and runs out, meanwhile",
        [
            Consumer("ann", ends="ack", extends=small, dies=False),
            Claimer("bob", faulty=FAULTS),
            Reaper("ray", looks=False),
            Clock(2000),
        ],
        before=[_sent("m1") if small else _sent("m1", "m2")],
        attributes={"max_receives": "1"},
    )


def _unique(*, small: bool) -> World:
    return World(
        "unique",
        "two lanes send messages of one unique key, which is freed, and runs out",
        [
            Sender("a", ("a1",), unique="k", faulty=FAULTS),
            Sender("b", ("b1",), unique="k", faulty=[LOST]),
            Consumer("ann", count=1, ends="ack" if small else "ack bury nack", dies=False),
            Daemon("dan", ("prune",)),
            Clock(2000),
        ],
        attributes={"visibility_ms": "4000"},
    )


def _delayed(*, small: bool) -> World:
    return World(
        "delayed",
        "delayed messages become ready, expire and are cancelled, while others are nacked",
        [
            Sender("a", ("a1",), ("a2",), delay_ms=2000, faulty=[LOST]),
            Consumer("ann", ends="ack" if small else "ack nack", delay_ms=2000, dies=False),
            Daemon("dan", ("promote",), ("trim",)),
            Operator("olga", ("cancel", "a1")),
            Clock(2000),
        ],
        attributes={"ttl_ms": "4000"},
    )


def _dead(*, small: bool) -> World:
    return World(
        "dead",
        "two operators redrive and drop dead letters, in doubt, and with entries that are gone",
        [
            Consumer("ann", ends="bury ack" if small else "nack bury ack", dies=False),
            Operator("olga", ("redrive", "*"), faulty=FAULTS),
            Operator("otto", ("drop", "*") if small else ("redrive", "*"), faulty=FAULTS),
        ],
        before=[_sent("m1", "m2")],
    )


def _pauses(*, small: bool) -> World:
    def paused(way: str) -> tuple[object, ...]:
        return ("configure", (("paused", way),))

    return World(
        "pauses",
        "a queue is paused and full while a lane sends and a consumer continues",
        [
            Sender("a", ("a1",), ("a2",), faulty=[LOST] if small else FAULTS),
            Consumer("ann", count=1, ends="ack nack", dies=False),
            Operator("olga", paused("out"), paused("in"), paused("all"), paused("")),
        ],
        attributes={"maxlen": "1"},
    )


def _schedules(*, small: bool) -> World:
    slots = (0, 1) if small else (0, 1, 2)
    return World(
        "schedules",
        "two daemons fire the same slots, in doubt and late",
        [
            *(
                Operator(name, *(("fire", slot, f"{name}{slot}") for slot in slots), faulty=FAULTS)
                for name in ("d", "e")
            ),
            Consumer("ann", ends="ack", dies=False),
        ],
    )


def _halfway(*, small: bool) -> World:
    actors = [
        Consumer("ann", ends="ack nack", dies=False),
        Reaper("ray", looks=False),
        Operator("olga", ("redrive", "*")),
        Clock(2000),
    ]
    return World(
        "halfway",
        "each write of each call fails in turn: nothing is lost, and fsck repairs the rest",
        actors[:1] if small else actors,
        before=[_sent("m1", "m2") if small else _sent("m1")],
        writes=12,
    )


def _everything(*, small: bool) -> World:
    return World(
        "everything",
        "two consumers, two lanes, two reapers, three messages, every fault",
        [
            Sender("a", ("a1",), ("a2",), faulty=FAULTS),
            Sender("b", ("b1",), faulty=FAULTS),
            Consumer("ann", ends="ack some nack release", faulty=FAULTS),
            Consumer("bob", ends="ack some crash share", extends=True, faulty=FAULTS),
            Reaper("ray", faulty=[LATE]),
            Reaper("sue"),
            Clock(2000, idle=True, back=1),
        ],
        late=1 if small else 2,
    )


WORLDS: Final[dict[str, Callable[..., World]]] = {
    "lanes": _lanes,
    "crossing": _crossing,
    "receipts": _receipts,
    "parts": _parts,
    "once": _once,
    "blame": _blame,
    "handed": _handed,
    "gaps": _gaps,
    "claims": _claims,
    "unique": _unique,
    "delayed": _delayed,
    "dead": _dead,
    "pauses": _pauses,
    "schedules": _schedules,
    "halfway": _halfway,
    **FLOW_WORLDS,
    "everything": _everything,
}
#: Worlds too large to be seen to their end → seconds that they are given.
ENDLESS: Final = {"everything": 60.0}


def world_of(name: str, *, small: bool = False) -> World:
    """Make a world, or its small form."""
    return WORLDS[name](small=small)
