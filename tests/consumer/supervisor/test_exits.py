"""The end of a child is heard at once, where the system tells of it."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any

import pytest

from qworker.consumer.supervisor.processes.exits import NO_PIDFD, await_end, open_pidfd

LONG_S = 60.0


@contextmanager
def child() -> Iterator[Any]:
    """A process that lives until its standard input ends, as a supervisor sees it."""
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as process:
        pidfd = open_pidfd(process.pid)
        yield SimpleNamespace(process=process, pidfd=pidfd)
        process.kill()
        if pidfd != NO_PIDFD:
            os.close(pidfd)


@pytest.mark.skipif(not hasattr(os, "pidfd_open"), reason="the system does not tell")
def test_a_wait_ends_with_the_first_child_that_ends() -> None:
    """Long before its time, also if the child ended before the wait."""
    with child() as lives, child() as ends:
        ends.process.kill()
        for _ in range(2):
            begun = time.monotonic()
            await_end([lives, ends], LONG_S)
            assert time.monotonic() - begun < LONG_S / 2


def test_a_wait_ends_after_its_time_while_all_live() -> None:
    """Whether or not the system tells, and without children."""
    with child() as lives:
        for children in ([lives], [SimpleNamespace(pidfd=NO_PIDFD)], []):
            begun = time.monotonic()
            await_end(children, 0.05)
            assert time.monotonic() - begun >= 0.05


def test_a_process_that_is_not_ours_has_no_news() -> None:
    """Nor where a container forbids to ask: the supervisor looks every 50 ms, as elsewhere."""
    assert open_pidfd(2**22 + 1) == NO_PIDFD
