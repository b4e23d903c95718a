"""Calls of groups of calls, outboxes and runs. The outbox of the queue has the queue itself as its destination.

What an outbox holds are tuples: `("message", number, head, tail)` and `("end", number, group, member, words)`. Numbers
are text, because a number of their size would be a time.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

from qworker.engine.calls import End, WaitingRun, abandon, begin, count_ends
from qworker.engine.command import Command
from qworker.engine.effects import Effect, member_effect, result_effect
from qworker.engine.outbox import AnyEntry, OutboxMessage, OutboxPage, accept, forward
from qworker.engine.run import StepRecord, record_step, signal_run
from qworker.wire.calls import MemberCall, Spec, write_spec
from qworker.wire.envelope import head, tail
from verification.interleavings.fixed import HELD_MS, KEYS, NOW

__all__ = ["FLOW_CALLS", "TASK", "entries_of", "flags_of", "made_effects", "member_of"]

TASK: Final = "t"
#: Entries that are read from an outbox at once.
_PAGE: Final = 2


def member_of(message: str) -> tuple[str, str] | None:
    """The group and the number of a message that is a member of one: `g.0`; None for another one."""
    group, dot, member = message.partition(".")
    return (group, member) if dot else None


def flags_of(message: str) -> dict[str, str]:
    """The flags of a message by its name: `g.0` is a member of a group, `g` its callback, `r…` a run."""
    if member := member_of(message):
        return {"i": f"{KEYS.queue}:{member[0]}:{member[1]}:{TASK}", "j": "-"}
    if message.startswith("g"):
        return {"h": "1", "j": "-", "r": str(HELD_MS)}
    return {"c": "1", "r": str(HELD_MS)} if message.startswith("r") else {}


def made_effects(effects: tuple[tuple[str, ...], ...]) -> list[Effect]:
    """Write effects: `("member", group, number, words)`, `("result", value)`, `("end",)`."""
    made: list[Effect] = []
    for name, *words in effects:
        if name == "member":
            group, member, value = words
            made.append(member_effect(KEYS.queue, group, int(member), value.encode()))
        elif name == "result":
            made.append(result_effect(words[0].encode(), HELD_MS))
        else:
            made.append((name,))
    return made


def entries_of(page: OutboxPage) -> tuple[tuple[str, ...], ...]:
    """The entries of a page, as tuples."""
    return tuple(map(_entry, page.entries))


def _entry(entry: AnyEntry) -> tuple[str, ...]:
    if isinstance(entry, End):
        words = (entry.group_id.decode(), str(entry.member), entry.words.decode())
        return ("end", str(entry.number), *words)
    assert isinstance(entry, OutboxMessage), entry
    return ("message", str(entry.number), entry.head.decode(), entry.tail.decode())


def _begin(
    group: str, size: int, sends: int, policy: Any, lease: str, rest: str = ""
) -> Command[Any]:
    """Begin a group; its first `sends` members go to the outbox. With `lease` the run r in it follows, no callback.

    `rest`: members that are sent otherwise, ` 0 1`; the first success cancels them and those of the outbox.
    """
    names = [f"{group}.{n}" for n in range(sends)]
    members = [
        MemberCall(KEYS.queue, 0, "", "", head(name), tail(b"b", flags_of(name))) for name in names
    ]
    then = None if lease else (0, "", "", head(group), tail(b"b", flags_of(group)))
    target = ("r", f"!{group}") if lease else None
    parts = {KEYS.queue: rest} if rest else None
    spec = Spec(group, size, policy, 0, members, then, target, rest=parts)
    run = WaitingRun("r", lease, "0") if lease else None
    return begin(KEYS, group, write_spec(spec), "out-a1", 1, run=run, now_ms=NOW)


def _store(lane: str, entries: tuple[tuple[str, ...], ...]) -> Command[Any]:
    """Store entries of one kind."""
    if entries[0][0] == "end":
        ends = [
            End(int(number), group.encode(), int(member), words.encode())
            for _, number, group, member, words in entries
        ]
        return count_ends(KEYS, lane, ends, now_ms=NOW)
    new = [
        OutboxMessage(int(number), 0, b"", b"", head_.encode(), tail_.encode())
        for _, number, head_, tail_ in entries
    ]
    return accept(KEYS, lane, new, now_ms=NOW)


def _step(lease: str, message: str, name: str, value: str) -> Command[Any]:
    return record_step(KEYS, StepRecord(message, lease, "0", name, value.encode()), now_ms=NOW)


FLOW_CALLS: Final[dict[str, Callable[..., Command[Any]]]] = {
    "begin": _begin,
    "forward": lambda lane, number: forward(
        KEYS, KEYS.queue, lane, int(number), count=_PAGE, now_ms=NOW
    ),
    "store": _store,
    "abandon": lambda group: abandon(KEYS, [group], ""),
    "step": _step,
    "signal": lambda message, name, value: signal_run(
        KEYS, message, name, value.encode(), known=True, now_ms=NOW
    ),
}
