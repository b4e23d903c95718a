"""Writes numbers, times and foreign text for display."""

from __future__ import annotations

import re
import shlex
import textwrap
from datetime import UTC, datetime
from typing import Final

__all__ = [
    "COMMAND",
    "ago",
    "count",
    "moment",
    "moment_after",
    "rate",
    "safe",
    "shortened",
    "size",
    "span",
    "word",
    "wrapped",
]

#: A command in a sentence, up to the words after it.
COMMAND: Final = re.compile(
    r"\bqworker (?:'[^']*'|[^'])+?(?=[;,:.)]*(?:  | \(| or | and | to |$)|[;,:)]+ )"
)
#: Joins the words of a command while a line is wrapped; `safe` text never contains it.
_JOINT: Final = "\ue000"
_SIZE_UNITS: Final = ("B", "KiB", "MiB", "GiB", "TiB")
#: 9999-12-31T23:59:59Z, the last second of datetime.
_LAST_MS: Final = 253_402_300_799_000


def count(number: int, noun: str = "", plural: str = "") -> str:
    """Write 1234567 as '1,234,567', with a noun: '1 message', '2 messages'."""
    if not noun:
        return f"{number:,}"
    return f"{number:,} {noun if number == 1 else plural or noun + 's'}"


def rate(per_second: float) -> str:
    """Write a rate per second with three digits: '0', '0.25', '1.50', '43.1', '12,345'."""
    if per_second < 0.005:
        return "0"
    if per_second < 10:
        return f"{per_second:.2f}"
    return f"{per_second:.1f}" if per_second < 100 else f"{per_second:,.0f}"


def size(number: float) -> str:
    """Write bytes in the unit that fits: '512 B', '1.5 KiB', '143 MiB'."""
    unit = _SIZE_UNITS[0]
    for unit in _SIZE_UNITS:
        if abs(number) < 1024 or unit == _SIZE_UNITS[-1]:
            break
        number /= 1024
    whole = number == int(number) or number >= 100
    return f"{number:.0f} {unit}" if whole else f"{number:.1f} {unit}"


def span(seconds: float) -> str:
    """Write a time span in its two largest units: '0s', '120ms', '4.2s', '3m12s', '2h05m', '3d04h'."""
    milliseconds = round(seconds * 1000)
    if milliseconds < 1000:
        return f"{milliseconds}ms" if milliseconds > 0 else "0s"
    if seconds < 9.95:
        return f"{seconds:.1f}".removesuffix(".0") + "s"
    whole = int(round(seconds, 1))
    if whole < 60:
        return f"{whole}s"
    if whole < 3600:
        return f"{whole // 60}m{whole % 60:02}s"
    if whole < 86400:
        return f"{whole // 3600}h{whole % 3600 // 60:02}m"
    return f"{whole // 86400}d{whole % 86400 // 3600:02}h"


def ago(then_ms: int, now_ms: int) -> str:
    """Write an instant as its distance from now: '3m12s ago', 'in 40s'."""
    if then_ms > now_ms:
        return f"in {span((then_ms - now_ms) / 1000)}"
    return f"{span((now_ms - then_ms) / 1000)} ago"


def moment(instant_ms: int) -> str:
    """Write an instant in the time zone of this host: '2031-05-04 10:22:33 CEST'."""
    if not 0 <= instant_ms <= _LAST_MS:
        return f"{instant_ms} ms"
    local = datetime.fromtimestamp(instant_ms / 1000, UTC).astimezone()
    return local.strftime("%Y-%m-%d %H:%M:%S %Z").rstrip()


def moment_after(instant_ms: int, now_ms: int) -> str:
    """Write an instant with its distance from now: '2031-05-04 10:22:33 CEST (3m12s ago)'."""
    return f"{moment(instant_ms)} ({ago(instant_ms, now_ms)})"


def safe(text: str) -> str:
    r"""Escape control characters, ESC codes among them, that stored text and foreign names may contain.

    Newlines and tabs become `\n` and `\t`: one line stays one line.
    """
    if text.isprintable():
        return text
    return "".join(char if char.isprintable() else _escaped(char) for char in text)


def shortened(text: str, length: int) -> str:
    """Cut text to `length` characters, '…' included."""
    return text if len(text) <= length else text[: max(0, length - 1)] + "…"


def wrapped(text: str, width: int) -> list[str]:
    """Break safe text into lines of at most `width` characters, between words and never inside a command.

    A longer word, command or path gets its own line, so that people can copy it.
    """
    joined = COMMAND.sub(lambda command: command[0].replace(" ", _JOINT), text)
    lines = textwrap.wrap(joined, width, break_long_words=False, break_on_hyphens=False)
    return [line.replace(_JOINT, " ") for line in lines] or [""]


def word(text: str) -> str:
    """Write text as one word of a shell command, quoted if necessary."""
    return shlex.quote(safe(text))


def _escaped(char: str) -> str:
    return ascii(char)[1:-1]
