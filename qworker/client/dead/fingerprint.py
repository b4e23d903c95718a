"""The fingerprint of an error: equal for errors that differ only in the numbers and names that they quote."""

from __future__ import annotations

import hashlib
import re
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from qworker.client.message import DeadLetter

__all__ = ["FINGERPRINT", "error_line", "error_pattern", "fingerprint"]

#: How a fingerprint is written.
FINGERPRINT: Final = re.compile(r"[0-9a-f]{10}", re.ASCII)
#: Errors whose first line says what happened, and a stack follows, unless an async handler raised them.
_STACK_FOLLOWS: Final = ("WorkerDiedError", "TimeLimitError")
#: Characters of a line that count.
_LONGEST: Final = 500
#: What differs between two errors of a kind: quoted text, ids, addresses, numbers.
_QUOTED: Final = re.compile(r"'[^']*'|\"[^\"]*\"")
_IDS: Final = re.compile(r"\b(?:0x)?[0-9A-Fa-f]*[0-9][0-9A-Za-z]*(?:[-.:_][0-9A-Za-z]+)*")


def error_line(dead_letter: DeadLetter) -> str:
    """Return the line of an error that says what happened, with its class.

    In a traceback this is the last line that begins with the class, as messages may have several; else the last one.
    """
    name, lines = dead_letter.error_class, dead_letter.error.strip().split("\n")
    if name in _STACK_FOLLOWS and not lines[0].startswith("Traceback"):
        return f"{name}: {lines[0]}"
    if name and len(lines) > 1:
        # A group of exceptions is drawn as a tree; a class may stand with its module.
        raised = re.compile(rf"^[ |]*((?:\w+\.)*{re.escape(name)}(?::.*|))$")
        for line in reversed(lines):
            if (match := raised.match(line)) is not None:
                return match[1]
        return lines[-1]
    return f"{name}: {lines[-1]}" if name else lines[-1]


def error_pattern(dead_letter: DeadLetter) -> str:
    """Return the line of an error without what differs from one dead letter to the next: 'no user …', 'port #'."""
    line = error_line(dead_letter)[:_LONGEST]
    return _IDS.sub("#", _QUOTED.sub("…", line)).strip()


def fingerprint(dead_letter: DeadLetter) -> str:
    """Return ten hex digits for task, reason, class and pattern of the error."""
    parts = (
        dead_letter.message.task,
        dead_letter.reason,
        dead_letter.error_class,
        error_pattern(dead_letter),
    )
    data = "\0".join(parts).encode("utf-8", "surrogatepass")
    return hashlib.sha256(data).hexdigest()[:10]
