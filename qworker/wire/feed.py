"""Entries of feeds: the id of the stream's entry, and a value as `wire/memo.py` writes it."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any, Final

from qworker.errors import InvalidOptionError
from qworker.wire.codec import decode
from qworker.wire.keyring import Keyring
from qworker.wire.memo import read_memo, write_memo

__all__ = ["MAX_ENTRY", "FeedEntry", "check_position", "read_entry", "write_entry"]

#: The largest value, in bytes of JSON.
MAX_ENTRY: Final = 16 * 2**10
_POSITION: Final = re.compile(r"\d{1,15}-\d{1,15}", re.ASCII)
#: No step has this name.
_STEP: Final = "@feed"


@dataclass(frozen=True, slots=True)
class FeedEntry:
    """An entry of a feed. `id` is the position to resume from, as the `Last-Event-ID` of Server-Sent Events."""

    id: str
    value: Any

    @property
    def at_ms(self) -> int:
        """When it was appended, in ms since 1970 by the server's clock."""
        return int(self.id.partition("-")[0])


def check_position(after: object) -> str:
    """Return the id of an entry, or '' for the beginning. Raises `InvalidOptionError` for anything else."""
    if after == "" or (isinstance(after, str) and _POSITION.fullmatch(after)):
        return after
    raise InvalidOptionError(
        "after",
        f"{ascii(after)[:80]} is not the id of an entry",
        "'' for the beginning, or <ms>-<n>",
    )


def write_entry(
    value: bytes, keyring: Keyring, namespace: str, queue: str, message_id: str
) -> bytes:
    """Write a value, signed and encrypted as messages are if the keyring has keys."""
    return write_memo(value, keyring, namespace, queue, message_id, _STEP)


def read_entry(
    entry: tuple[bytes, list[bytes]], keyring: Keyring, namespace: str, queue: str, message_id: str
) -> FeedEntry:
    """Read an entry of the stream. Raises `ProtectionError`."""
    stored = entry[1][1] if len(entry[1]) > 1 else b"null"
    value = read_memo(stored, keyring, namespace, queue, message_id, _STEP)
    return FeedEntry(entry[0].decode(), decode(value))
