"""Identities that this process makes: message ids, lease ids and lanes.

A message id is 10 random characters and a counter of 10 characters of fixed width, so that ids of one sender sort in
the order of sending. Random parts are drawn anew after a fork: two processes never share one.
"""

from __future__ import annotations

import itertools
import os
import secrets
from collections.abc import Iterator
from typing import Final, NamedTuple

from qworker.wire.numbers import whole

__all__ = [
    "ID_LENGTH",
    "IdSource",
    "lease_number",
    "new_id_prefix",
    "new_lane_id",
    "visibility_of",
]

ID_LENGTH: Final = 20
_ALPHABET: Final = "0123456789abcdefghijklmnopqrstuvwxyz"
_PREFIX_LENGTH: Final = 10


def new_lane_id() -> str:
    """Draw a lane id of 96 random bits."""
    return secrets.token_hex(12)


def new_id_prefix() -> str:
    """Draw the random part of message ids; whoever has drawn it appends numbers of 10 digits, each once."""
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
        return cls(os.getpid(), new_id_prefix(), secrets.token_hex(12), itertools.count(1))


class IdSource:
    """Make ids that are unique over processes, threads and forks. Thread-safe without a lock.

    After a fork the first threads may each draw an origin of their own; their ids differ all the more.
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

        The last is for whoever looks at a lease, which has its deadline only; see `visibility_of`.
        """
        origin = self._origin
        if os.getpid() != origin.pid:
            origin = self._origin = _Origin.draw()
        own = "" if visibility_ms is None else f"-{visibility_ms}"
        return f"{origin.lease_prefix}-{next(origin.counter)}{own}"


def visibility_of(lease_id: str) -> int | None:
    """Read the visibility in ms that a lease was asked for with; None where it is the queue's."""
    words = lease_id.split("-")
    return whole(words[2]) if len(words) == 3 else None


def lease_number(lease_id: str) -> int:
    """The counter in a lease id, in which the leases of a process stand in order; 0 where it has none."""
    words = lease_id.split("-")
    return whole(words[1]) or 0 if len(words) > 1 else 0
