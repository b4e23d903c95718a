"""Identities that this process makes: message ids, lease ids and lanes.

A message id is 10 random characters and a counter of 10 characters of fixed width, so that ids of one sender sort in
the order of sending. Random parts are drawn anew after a fork: two processes never share one.
"""

from __future__ import annotations

import itertools
import os
import secrets
import threading
from typing import Final

__all__ = ["ID_LENGTH", "IdSource", "new_lane_id"]

ID_LENGTH: Final = 20
_ALPHABET: Final = "0123456789abcdefghijklmnopqrstuvwxyz"
_PREFIX_LENGTH: Final = 10


def new_lane_id() -> str:
    """Draw a lane id of 96 random bits."""
    return secrets.token_hex(12)


class IdSource:
    """Make ids that are unique over processes, threads and forks. Thread-safe: a counter is drawn atomically."""

    __slots__ = ("_counter", "_lease_prefix", "_lock", "_pid", "_prefix")

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._begin()

    def message_id(self) -> str:
        """Make the next message id."""
        if os.getpid() != self._pid:
            self._begin()
        return f"{self._prefix}{next(self._counter):010d}"

    def lease_id(self) -> str:
        """Make the next lease id: 96 random bits of this process and a counter."""
        if os.getpid() != self._pid:
            self._begin()
        return f"{self._lease_prefix}-{next(self._counter)}"

    def _begin(self) -> None:
        # A lock copied by fork may be held by a thread that is not here any more.
        if os.getpid() != getattr(self, "_pid", None):
            self._lock = threading.Lock()
        with self._lock:
            self._prefix = "".join(secrets.choice(_ALPHABET) for _ in range(_PREFIX_LENGTH))
            self._lease_prefix = secrets.token_hex(12)
            self._counter = itertools.count(1)
            self._pid = os.getpid()
