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

__all__ = ["ID_LENGTH", "IdSource", "new_lane_id"]

ID_LENGTH: Final = 20
_ALPHABET: Final = "0123456789abcdefghijklmnopqrstuvwxyz"
_PREFIX_LENGTH: Final = 10


def new_lane_id() -> str:
    """Draw a lane id of 96 random bits."""
    return secrets.token_hex(12)


class _Origin(NamedTuple):
    """What the ids of one process are made of; replaced as a whole, so that no thread sees half of a new one."""

    pid: int
    prefix: str
    lease_prefix: str
    counter: Iterator[int]

    @classmethod
    def draw(cls) -> _Origin:
        """Draw the random parts for this process."""
        prefix = "".join(secrets.choice(_ALPHABET) for _ in range(_PREFIX_LENGTH))
        return cls(os.getpid(), prefix, secrets.token_hex(12), itertools.count(1))


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

    def lease_id(self) -> str:
        """Make the next lease id: 96 random bits of this process and a counter."""
        origin = self._origin
        if os.getpid() != origin.pid:
            origin = self._origin = _Origin.draw()
        return f"{origin.lease_prefix}-{next(origin.counter)}"
