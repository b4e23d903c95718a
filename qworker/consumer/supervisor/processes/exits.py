"""Hear at once that a process has ended, instead of asking some time later."""

from __future__ import annotations

import os
import select
import time
from collections.abc import Iterable
from typing import Protocol

__all__ = ["NO_PIDFD", "await_end", "open_pidfd"]

#: The descriptor of a process whose end cannot be heard: outside of Linux, and where a container forbids it.
NO_PIDFD = -1


class _Child(Protocol):
    """The part of a child that is waited for."""

    @property
    def pidfd(self) -> int:
        """What `open_pidfd` has opened for it."""


def open_pidfd(pid: int) -> int:
    """Open a descriptor that is readable once a process of ours has ended; `NO_PIDFD` without such a thing."""
    if not hasattr(os, "pidfd_open"):
        return NO_PIDFD
    try:
        return os.pidfd_open(pid)
    except OSError:
        return NO_PIDFD


def await_end(children: Iterable[_Child], seconds: float) -> None:
    """Wait until one of the children has ended, for at most this many seconds."""
    descriptors = [child.pidfd for child in children if child.pidfd != NO_PIDFD]
    if not descriptors:
        time.sleep(seconds)
        return
    poll = select.poll()
    for descriptor in descriptors:
        poll.register(descriptor, select.POLLIN)
    poll.poll(seconds * 1000)
