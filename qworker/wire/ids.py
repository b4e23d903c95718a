"""Ids: of messages, leases and lanes, which this process makes, and of dead letters, which Redis makes.

A message id is 10 random characters and a counter of 10 characters of fixed width, so that ids of one sender sort in
the order of sending. Random parts are drawn again after a fork: two processes never share one.
"""

from __future__ import annotations

import itertools
import os
import re
from collections.abc import Iterator
from typing import Final, NamedTuple

import msgspec

from qworker.errors import InvalidOptionError
from qworker.wire.names import MAX_SHARDS
from qworker.wire.numbers import whole

__all__ = [
    "ID_LENGTH",
    "EntryId",
    "IdSource",
    "lease_number",
    "new_id_prefix",
    "new_lane_id",
    "visibility_of",
]

ID_LENGTH: Final = 20
_ALPHABET: Final = "0123456789abcdefghijklmnopqrstuvwxyz"
_PREFIX_LENGTH: Final = 10

_ENTRY: Final = re.compile(r"(\d{1,20})-(\d{1,20})(?:/(\d{1,2}))?", re.ASCII)
#: The largest part of an entry id in Redis.
_MAX_PART: Final = 2**64 - 1


class EntryId(msgspec.Struct, frozen=True, order=True):
    """Entry id of a dead letter: `ms` and `number` in the stream of its shard, and that `shard`.

    Written `ms-number`, and `ms-number/shard` in a shard other than the first. Sorts by time over all shards.
    """

    ms: int
    number: int
    shard: int = 0

    def __str__(self) -> str:
        return f"{self.in_stream}/{self.shard}" if self.shard else self.in_stream

    @classmethod
    def parse(cls, text: object, field: str = "entry id") -> EntryId:
        """Read the written form. Raises `InvalidOptionError` for `field`."""
        match = _ENTRY.fullmatch(text) if isinstance(text, str) else None
        if match is not None:
            ms, number, shard = (int(part or 0) for part in match.groups())
            if max(ms, number) <= _MAX_PART and shard < MAX_SHARDS:
                return cls(ms, number, shard)
        raise InvalidOptionError(
            field,
            f"{ascii(text)[:80]} is not an entry id",
            "it is written <ms>-<number>, or <ms>-<number>/<shard>",
        )

    @classmethod
    def of_stream(cls, written: bytes, shard: int) -> EntryId:
        """Read an entry id as Redis replies it, from the stream of a shard."""
        ms, number = written.split(b"-")
        return cls(int(ms), int(number), shard)

    @classmethod
    def last_of(cls, ms: int, shard: int) -> EntryId:
        """Return the highest id of a millisecond."""
        return cls(ms, _MAX_PART, shard)

    @property
    def in_stream(self) -> str:
        """The id in the stream of its shard."""
        return f"{self.ms}-{self.number}"

    def before(self) -> EntryId | None:
        """Return the id just before this one in the same stream; None for the very first."""
        if self.number:
            return EntryId(self.ms, self.number - 1, self.shard)
        return EntryId(self.ms - 1, _MAX_PART, self.shard) if self.ms else None

    def after(self) -> EntryId | None:
        """Return the id just after this one in the same stream; None for the very last."""
        if self.number < _MAX_PART:
            return EntryId(self.ms, self.number + 1, self.shard)
        return EntryId(self.ms + 1, 0, self.shard) if self.ms < _MAX_PART else None


def new_lane_id() -> str:
    """Draw a lane id of 96 random bits."""
    return os.urandom(12).hex()


def new_id_prefix() -> str:
    """Draw the random part of message ids; the caller appends numbers of 10 digits, each once."""
    # Imported here: the modules below it take longer than this one.
    import secrets

    return "".join(secrets.choice(_ALPHABET) for _ in range(_PREFIX_LENGTH))


class _Origin(NamedTuple):
    """What the ids of one process are made of; replaced as a whole, so that no thread sees half of a new one."""

    pid: int
    prefix: str
    lease_prefix: str
    counter: Iterator[int]

    @classmethod
    def draw(cls) -> _Origin:
        """Draw the random parts for this process."""
        return cls(os.getpid(), new_id_prefix(), new_lane_id(), itertools.count(1))


class IdSource:
    """Make ids that are unique over processes, threads and forks. Thread-safe without a lock.

    After a fork the first threads may each draw their own origin; their ids differ all the more.
    """

    __slots__ = ("_origin",)

    def __init__(self) -> None:
        self._origin = _Origin.draw()

    def message_id(self) -> str:
        """Make the next message id."""
        origin = self._origin
        if os.getpid() != origin.pid:
            origin = self._origin = _Origin.draw()
        return f"{origin.prefix}{next(origin.counter):010d}"

    def lease_id(self, visibility_ms: int | None = None) -> str:
        """Make the next lease id: 96 random bits of this process, a counter, and a visibility that is not the queue's.

        The last is for readers of a lease, which has its deadline only; see `visibility_of`.
        """
        origin = self._origin
        if os.getpid() != origin.pid:
            origin = self._origin = _Origin.draw()
        own = "" if visibility_ms is None else f"-{visibility_ms}"
        return f"{origin.lease_prefix}-{next(origin.counter)}{own}"


def visibility_of(lease_id: str) -> int | None:
    """Read the visibility in ms that a lease was requested with; None if it is the queue's."""
    words = lease_id.split("-")
    return whole(words[2]) if len(words) == 3 else None


def lease_number(lease_id: str) -> int:
    """The counter in a lease id, which orders the leases of a process; 0 without one."""
    words = lease_id.split("-")
    return whole(words[1]) or 0 if len(words) > 1 else 0
