"""Tell the way to a broken promise, a step a line."""

from __future__ import annotations

import re
from collections import Counter
from dataclasses import dataclass
from typing import Any, Final, NamedTuple

from verification.interleavings.actors import LATE, NOT_SENT, Step
from verification.interleavings.bench import Refused
from verification.interleavings.calls import say
from verification.interleavings.world import After, Tried

__all__ = ["Breach", "Next", "Story", "runs"]

_LEASE: Final = re.compile(r"[a-z]+\.[1-9]\b")


@dataclass(frozen=True)
class Breach:
    """A broken promise, and the calls that lead there."""

    problem: str
    steps: list[str]


class Next(NamedTuple):
    """A step from a state."""

    origin: bytes
    step: Step
    tried: Tried | None
    after: After


class Story:
    """Tells steps; every lease keeps one name through all of them."""

    def __init__(self) -> None:
        self.lines: list[str] = []
        self._names: dict[str, str] = {}
        self._numbers: Counter[str] = Counter()

    def tell(self, each: Next) -> None:
        """Add the line of a step."""
        self.lines.append(self.named(_told(each)))
        renames, state = dict(each.after.renames), b"".join(each.after.state)
        names = {renames.get(name, name): shown for name, shown in self._names.items()}
        # A name that no client knows any more will be another lease's.
        self._names = {name: names[name] for name in names if name.encode() in state}

    def named(self, text: str) -> str:
        """Write a text with the names that the leases had from the beginning."""
        return _LEASE.sub(lambda match: self._name(match[0]), text)

    def _name(self, name: str) -> str:
        if name not in self._names:
            owner = name.partition(".")[0]
            self._numbers[owner] += 1
            self._names[name] = f"{owner}.{self._numbers[owner]}"
        return self._names[name]


def runs(step: Step) -> bool:
    """Whether the server hears of the call of a step."""
    return step.way not in (LATE, NOT_SENT)


def _told(each: Next) -> str:
    step = each.step
    if step.call is None:
        return step.text
    words = f"{step.text}: {say(step.call)}"
    if not runs(step):
        return f"{words}   [{step.way}]"
    assert each.tried is not None
    way = f"   [{step.way}]" if step.way != "answered" else ""
    return f"{words} → {_reply(each.tried.result)}{way}"


def _reply(result: Any) -> str:
    if isinstance(result, Refused):
        return result.error
    if hasattr(result, "items") and hasattr(result, "indices"):
        ids = [item.split(b" ")[1].decode() for item in result.items]
        got = ", ".join(f"{i}: {name}" for i, name in zip(result.indices, ids, strict=True))
        settled = f", settled {list(result.settled)}" if result.settled else ""
        return f"{{{got}}}{settled}"
    return str(result)
