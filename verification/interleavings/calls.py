"""Calls as plain tuples, so that they can be part of a state: what is on its way, or in doubt, is remembered so.

`(verb, argument, …)`, of strings, numbers and tuples alone; `command_of` gives the command that the product's clients
would execute, at the one time that all calls name. `say` writes it for people.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

from qworker.engine.attributes import configure
from qworker.engine.claim import claim
from qworker.engine.command import Command
from qworker.engine.dead import drop, redrive
from qworker.engine.extend import extend, split
from qworker.engine.fire import fire
from qworker.engine.message import cancel
from qworker.engine.reap import promote, prune, reap, sweep, trim
from qworker.engine.receive import Suspects, settle_receive
from qworker.engine.send import NewMessage, send
from qworker.engine.settle import Outcomes, settle
from qworker.wire.envelope import tail
from qworker.wire.ids import EntryId
from verification.interleavings.fixed import HELD_MS, KEYS, NOW, TICK_MS, Call
from verification.interleavings.flow_calls import FLOW_CALLS, flags_of, made_effects

__all__ = ["SPEC", "command_of", "say"]

SPEC: Final = b"spec"
#: Messages of one promote or trim: more than any world has.
_LIMIT: Final = 100


def _send(
    lane: str, number: int, messages: tuple[tuple[str, str], ...], delay_ms: int
) -> Command[Any]:
    new = [
        NewMessage(name, tail(b"b", {"u": key} if key else flags_of(name)), key, str(HELD_MS))
        for name, key in messages
    ]
    return send(KEYS, new, lane=lane, sequence=number, delay_ms=delay_ms, now_ms=NOW)


def _outcomes(outcomes: tuple[Any, ...]) -> list[Outcomes]:
    """Each `(lease, acked indices, (kind, index, delay ms)…, (index, unique key, message id)…)`."""
    made = []
    for lease, acks, others, uniques in outcomes:
        each = Outcomes(lease, False, list(acks), [word for unique in uniques for word in unique])
        for kind, index, delay_ms in others:
            match kind:
                case "nack":
                    each.nack(index, delay_ms)
                case "release":
                    each.release(index, delay_ms)
                case "crash":
                    each.crash(index)
                case "share":
                    each.share(index)
                case "bury":
                    each.bury(index, "rejected")
                case "value":  # instead of a delay: effects
                    each.ack_with(index, made_effects(delay_ms))
                case "park":  # instead of a delay: a signal
                    each.park(index, None, f"~{delay_ms}", f"!{delay_ms}")
        made.append(each)
    return made


def _receive(
    lease: str, count: int, outcomes: tuple[Any, ...], resume: int, suspects: int
) -> Command[Any]:
    command = settle_receive(
        KEYS,
        lease,
        count,
        outcomes=_outcomes(outcomes),
        suspects=Suspects(suspects),
        now_ms=NOW,
    )
    return command.repeated() if resume else command


def _claim(
    lease: str, candidates: tuple[tuple[str, int], ...], count: int, resume: int
) -> Command[Any]:
    command = claim(KEYS, lease, candidates, count, now_ms=NOW)
    return command.repeated() if resume else command


_BUILDERS: Final[dict[str, Callable[..., Command[Any]]]] = {
    "send": _send,
    "receive": _receive,
    "settle": lambda outcomes: settle(KEYS, _outcomes(outcomes), now_ms=NOW),
    "extend": lambda leases, visibility_ms: extend(KEYS, leases, visibility_ms, now_ms=NOW),
    "split": lambda lease, index, new: split(KEYS, lease, index, new, None, now_ms=NOW),
    "claim": _claim,
    "sweep": lambda: sweep([KEYS], TICK_MS, now_ms=NOW),
    "reap": lambda leases: reap(KEYS, leases, TICK_MS, now_ms=NOW),
    "promote": lambda: promote(KEYS, _LIMIT, now_ms=NOW),
    "trim": lambda: trim(KEYS, _LIMIT, now_ms=NOW),
    "prune": lambda: prune(KEYS, now_ms=NOW),
    "redrive": lambda entries: redrive(KEYS, [*map(EntryId.parse, entries)], now_ms=NOW),
    "drop": lambda entries: drop(KEYS, [*map(EntryId.parse, entries)], now_ms=NOW),
    "cancel": lambda name: cancel(KEYS, name, HELD_MS, now_ms=NOW),
    "fire": lambda slot, name: fire(
        KEYS, "s", slot, SPEC, message_id=name, tail=tail(b"b"), ttl_ms=0, now_ms=NOW
    ),
    "configure": lambda attributes: configure(KEYS, dict(attributes), now_ms=NOW),
    **FLOW_CALLS,
}


def command_of(call: Call) -> Command[Any]:
    """The command of a call."""
    return _BUILDERS[call[0]](*call[1:])


def say(call: Call) -> str:
    """Write a call on one line."""
    match call:
        case ("send", lane, number, messages, delay_ms):
            named = ", ".join(name + (f" unique={key}" if key else "") for name, key in messages)
            return f"send {named} lane={lane or '-'} number={number}" + _delay(delay_ms)
        case ("receive", lease, count, outcomes, resume, suspects):
            again = " resume" if resume else ""
            what = f"{_say_outcomes(outcomes)}; " if outcomes else ""
            return f"settle_receive {what}up to {count} into {lease}{again} suspects={suspects}"
        case ("settle", outcomes):
            return f"settle {_say_outcomes(outcomes)}"
    return " ".join([call[0], *(str(word) for word in call[1:])])


def _say_outcomes(outcomes: tuple[Any, ...]) -> str:
    words = []
    for lease, acks, others, uniques in outcomes:
        words += [f"ack {lease}.{index}" for index in acks]
        words += [f"ack {lease}.{index} (unique {key})" for index, key, _ in uniques]
        words += [f"{kind} {lease}.{index}{_more(more)}" for kind, index, more in others]
    return ", ".join(words)


def _more(more: Any) -> str:
    return _delay(more) if isinstance(more, int) else f" {more}"


def _delay(delay_ms: int) -> str:
    return f" delay={delay_ms}ms" if delay_ms else ""
