r"""The envelope of a stored message: one text line, then the body.

    q1 <id> <sent_ms> <receives> <nacks> <timeouts> <shared>[ k=v …]\n<body>

`receives` counts deliveries that have ended; an unacked message has one more. `nacks` plus `timeouts` are held against
max receives; `shared` (timeouts of leases with several messages) is not. Flags: x expiry ms, m max receives, v its own
visibility ms, p priority, f first received ms, t became ready ms, o position at the head ms, u unique key, k unknown
since ms, d redrives, r ms to keep its result for, c a run, g group, j where the end of its chain is announced, i where
a member of a group of calls is counted, h the callback of one, w trace context, e codec, n schedule, s signature. Flag
values are percent-encoded.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from enum import Enum
from typing import Final
from urllib.parse import quote, unquote_to_bytes

from qworker.wire.numbers import whole

__all__ = ["FIRST", "UNFLAGGED", "Envelope", "ItemKind", "flag_text", "head", "kind_of", "tail"]

_HEADER: Final = re.compile(
    rb"q1 ([A-Za-z0-9._-]{1,64}) (\d{1,16}) (\d{1,6}) (\d{1,6}) (\d{1,6}) (\d{1,6})((?: [a-z]=[^ \n]*)*)\n"
)
#: The header of a first delivery, as nearly all are: `sent_ms`, and the flags with their leading spaces, from the first
#: one on that is not g, m, p or v: a delivery that is acked needs none of them. Matching costs two thirds of a parse.
#: A header with flag e (encrypted) or j (a step of a chain) does not match: its body is not a call alone.
FIRST: Final = re.compile(
    rb"q1 [A-Za-z0-9._-]{1,64} (\d{1,16}) 0 0 0 0(?: [gmpv]=[^ \n]*)*+((?: [a-df-ik-z]=[^ \n]*)+)?\n"
)
#: The header of a first delivery without flags: the id and `sent_ms`.
UNFLAGGED: Final = re.compile(rb"q1 ([A-Za-z0-9._-]{1,64}) (\d{1,16}) 0 0 0 0\n")
#: Flags that are whole numbers.
_NUMBERS: Final = frozenset("xmvpftdorc")
_NEWER: Final = re.compile(rb"q\d+ ")


class ItemKind(Enum):
    """The kind of an item in a list."""

    OWN = "own"
    PLAIN = "plain"
    NEWER = "newer"
    FOREIGN = "foreign"


def kind_of(item: bytes) -> ItemKind:
    """Return the kind of an item; OWN has a valid header."""
    if item[:1] in (b"{", b"["):
        return ItemKind.PLAIN
    if _HEADER.match(item):
        return ItemKind.OWN
    if not item.startswith(b"q1 ") and _NEWER.match(item):
        return ItemKind.NEWER
    return ItemKind.FOREIGN


def head(message_id: str) -> str:
    """Write the start of a header, up to the time, which the server fills in."""
    return f"q1 {message_id} "


def tail(body: bytes, flags: dict[str, str] | None = None) -> bytes:
    """Write the rest of an envelope after the counters; encodes flag values."""
    if not flags:
        return b"\n" + body
    return flag_text(flags).encode() + b"\n" + body


def flag_text(flags: Mapping[str, str]) -> str:
    """Write flags as a header has them, each after a space."""
    return "".join(f" {key}={quote(value, safe='')}" for key, value in flags.items())


class Envelope:
    """A parsed envelope. Times are ms since 1970 by the server's clock.

    Parsing checks the whole header; its parts are converted on access, because most messages are handled without.
    """

    __slots__ = ("_flags", "_match")

    def __init__(self, match: re.Match[bytes]) -> None:
        self._match = match
        self._flags: Mapping[str, str] | None = None

    @classmethod
    def parse(cls, item: bytes) -> Envelope | None:
        """Parse an own item; None for plain, newer and foreign ones."""
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
        """When it became ready; None if that is not recorded, for a message that was not ready when sent."""
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
        """Deliveries that failed: the handler or the receiver nacked."""
        return int(self._match[4])

    @property
    def timeouts(self) -> int:
        """Lease timeouts of a single-message lease."""
        return int(self._match[5])

    @property
    def shared(self) -> int:
        """Lease timeouts of a lease with several messages."""
        return int(self._match[6])

    def unblamed(self, flags: Mapping[str, str]) -> Envelope:
        """Return it without failures, and with these flags unless it has them, as `step.lua` stores it."""
        match = self._match
        has = self.flags
        more = flag_text({key: value for key, value in flags.items() if key not in has}).encode()
        counts = b"%b 0 0 %b" % (match[3], match[6])
        line = b"q1 %b %b %b%b%b\n" % (match[1], match[2], counts, match[7], more)
        envelope = Envelope.parse(line + self.body)
        assert envelope is not None
        return envelope

    @property
    def header(self) -> bytes:
        """The stored header, with its newline."""
        return self._match[0]

    @property
    def body(self) -> bytes:
        """The body."""
        match = self._match
        return match.string[match.end() :]

    @property
    def has_flags(self) -> bool:
        """Whether it has any flags."""
        return self._match[7] != b""

    @property
    def flags(self) -> Mapping[str, str]:
        """All flags, decoded when they are first asked for; of a repeated flag the first counts."""
        if self._flags is None:
            self._flags = self._read_flags()
        return self._flags

    def _read_flags(self) -> dict[str, str]:
        flags: dict[str, str] = {}
        for part in self._match[7].split(b" ")[1:]:
            key, raw = part[:1].decode(), part[2:]
            value = unquote_to_bytes(raw).decode("utf-8", "replace")
            if key in _NUMBERS and value.isascii() and value.isdigit() and not raw.isdigit():
                # Scripts do not decode numbers, and must read the same.
                value = raw.decode("ascii", "replace")
            flags.setdefault(key, value)
        return flags
