"""The audit trail: who changed what through the dashboard, in the STREAM `ns:audit`.

An entry is written after its action, with the outcome. The trail keeps about the last 10,000 entries.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final

from qworker.engine.command import Command
from qworker.engine.raw import raw
from qworker.wire.keys import audit_key
from qworker.wire.numbers import whole

__all__ = ["Deed", "read_deed", "read_deeds", "record_deed"]

_KEPT: Final = 10_000
#: Characters of a field: a user's name comes from a proxy, a filter from a form.
_LONGEST: Final = 300

Execute = Callable[[Command[Any]], Any]


@dataclass(frozen=True, slots=True)
class Deed:
    """An action of an operator: its verb, its subject (a queue, a filter), and its outcome.

    `at_ms` and `entry` are set by the server.
    """

    user: str
    verb: str
    target: str
    outcome: str
    at_ms: int = 0
    entry: str = ""


def record_deed(execute: Execute, namespace: str, deed: Deed) -> str:
    """Append an action to the trail; returns its entry. A lost reply may leave it there twice."""
    fields = {"user": deed.user, "verb": deed.verb, "target": deed.target, "outcome": deed.outcome}
    words = [word for name, text in fields.items() for word in (name, text[:_LONGEST])]
    trail = ("XADD", audit_key(namespace), "MAXLEN", "~", _KEPT, "*")
    entry: bytes = execute(raw(*trail, *words, decode=bytes))
    return entry.decode()


def read_deeds(
    execute: Execute, namespace: str, *, before: str = "", count: int = 50
) -> list[Deed]:
    """Read the latest actions, the latest first; `before`: those before this entry."""
    end = f"({before}" if before else "+"
    command = ("XREVRANGE", audit_key(namespace), end, "-", "COUNT", count)
    entries: list[Any] = execute(raw(*command, decode=list))
    return [_deed(entry.decode(), fields) for entry, fields in entries]


def read_deed(execute: Execute, namespace: str, entry: str) -> Deed | None:
    """Read one action; None if it is not, or no longer, in the trail."""
    command = ("XRANGE", audit_key(namespace), entry, entry)
    entries: list[Any] = execute(raw(*command, decode=list))
    return next((_deed(name.decode(), fields) for name, fields in entries), None)


def _deed(entry: str, fields: list[bytes]) -> Deed:
    words = [word.decode("utf-8", "replace") for word in fields]
    named = dict(zip(words[::2], words[1::2], strict=False))
    user, verb, target, outcome = (
        named.get(name, "") for name in ("user", "verb", "target", "outcome")
    )
    return Deed(user, verb, target, outcome, whole(entry.partition("-")[0]) or 0, entry)
