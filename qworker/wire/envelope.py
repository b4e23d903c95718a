r"""The envelope of a stored message: one text line, then the body.

    q1 <id> <sent_ms> <receives> <nacks> <timeouts> <shared>[ k=v …]\n<body>

`receives` counts deliveries that have ended; a message in hand is one more. `nacks` and `timeouts` together are held
against max receives, `shared` (deliveries lost in company) never is. Flags: x expiry ms, m max receives, v visibility
ms of its own, p priority, f first received ms, t became ready ms, o place at the head ms, u unique key, k unknown
since ms, d redrives, w trace context, e codec. Values of flags are percent-encoded.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from enum import Enum
from typing import Final
from urllib.parse import quote, unquote_to_bytes

from qworker.wire.numbers import whole

__all__ = ["FIRST", "Envelope", "Kind", "flag_text", "head", "kind_of", "tail"]

_HEADER: Final = re.compile(
    rb"q1 ([A-Za-z0-9._-]{1,64}) (\d{1,16}) (\d{1,6}) (\d{1,6}) (\d{1,6}) (\d{1,6})((?: [a-z]=[^ \n]*)*)\n"
)
#: The header of a first delivery, as nearly all are: `sent_ms`, and the flags with their leading spaces if there are
#: any. A look at it costs two thirds of reading a header in full. An encrypted one does not match, for its body is no
#: call yet: a message without flags pays nothing for that question.
FIRST: Final = re.compile(rb"q1 [A-Za-z0-9._-]{1,64} (\d{1,16}) 0 0 0 0((?: [a-df-z]=[^ \n]*)+)?\n")
#: Flags that are whole numbers.
_NUMBERS: Final = frozenset("xmvpftdo")
_NEWER: Final = re.compile(rb"q\d+ ")


class Kind(Enum):
    """What an item of a list is."""

    OWN = "own"
    PLAIN = "plain"
    NEWER = "newer"
    FOREIGN = "foreign"


def kind_of(item: bytes) -> Kind:
    """Tell what an item is; an own item has a header that matches in full."""
    if item[:1] in (b"{", b"["):
        return Kind.PLAIN
    if _HEADER.match(item):
        return Kind.OWN
    if not item.startswith(b"q1 ") and _NEWER.match(item):
        return Kind.NEWER
    return Kind.FOREIGN


def head(message_id: str) -> str:
    """Write the part of a header before the time, which the server fills in."""
    return f"q1 {message_id} "


def tail(body: bytes, flags: dict[str, str] | None = None) -> bytes:
    """Write the part of an envelope after the counters; flag values are encoded here."""
    if not flags:
        return b"\n" + body
    return flag_text(flags).encode() + b"\n" + body


def flag_text(flags: Mapping[str, str]) -> str:
    """Write flags as they stand in a header, each with a space before it."""
    return "".join(f" {key}={quote(value, safe='')}" for key, value in flags.items())


class Envelope:
    """A parsed envelope. Times are ms since 1970 by the server's clock.

    The header is checked as a whole when it is parsed; its parts are converted when they are asked for, because most
    messages are handled without anybody asking.
    """

    __slots__ = ("_match",)

    def __init__(self, match: re.Match[bytes]) -> None:
        self._match = match

    @classmethod
    def parse(cls, item: bytes) -> Envelope | None:
        """Read an own item; None where the header does not match (plain, newer and foreign items)."""
        match = _HEADER.match(item)
        return None if match is None else cls(match)

    @classmethod
    def adopt(cls, message_id: str, sent_ms: int, item: bytes) -> Envelope:
        """Give a plain item the envelope of a first delivery."""
        envelope = cls.parse(f"q1 {message_id} {sent_ms} 0 0 0 0\n".encode() + item)
        assert envelope is not None
        return envelope

    @property
    def id(self) -> str:
        """The message id."""
        return self._match[1].decode()

    @property
    def sent_ms(self) -> int:
        """When it was sent."""
        return int(self._match[2])

    @property
    def ready_ms(self) -> int | None:
        """When it became ready; None where nobody wrote it down: it was not sent to be ready at once."""
        match = self._match
        if match[7]:
            written = whole(self.flags.get("t"))
            if written is not None:
                return written
        return int(match[2]) if match[3] == b"0" else None

    @property
    def receives(self) -> int:
        """Deliveries that have ended."""
        return int(self._match[3])

    @property
    def nacks(self) -> int:
        """Deliveries that failed by somebody's word."""
        return int(self._match[4])

    @property
    def timeouts(self) -> int:
        """Deliveries that ended in nobody's word, alone."""
        return int(self._match[5])

    @property
    def shared(self) -> int:
        """Deliveries lost in company."""
        return int(self._match[6])

    @property
    def header(self) -> bytes:
        """The header as it stands, with the newline behind it."""
        return self._match[0]

    @property
    def body(self) -> bytes:
        """The body."""
        match = self._match
        return match.string[match.end() :]

    @property
    def has_flags(self) -> bool:
        """Whether there is any flag."""
        return self._match[7] != b""

    @property
    def flags(self) -> dict[str, str]:
        """All flags, decoded; one that is repeated counts where it stands first."""
        found: dict[str, str] = {}
        for part in self._match[7].split(b" ")[1:]:
            key, raw = part[:1].decode(), part[2:]
            value = unquote_to_bytes(raw).decode("utf-8", "replace")
            if key in _NUMBERS and value.isascii() and value.isdigit() and not raw.isdigit():
                value = raw.decode(
                    "ascii", "replace"
                )  # the scripts decode no numbers, and must read the same
            found.setdefault(key, value)
        return found
