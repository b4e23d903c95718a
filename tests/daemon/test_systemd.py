"""Notifications to systemd, over the socket that it names."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from qworker.daemon.systemd import SystemdNotifier
from tests.daemon.processes import Systemd
from tests.tables import each
from tests.timing import Clock


@pytest.fixture(params=["path", "abstract"])
def systemd(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Systemd]:
    """A listening systemd."""
    if request.param == "abstract" and sys.platform != "linux":
        pytest.skip("abstract sockets are Linux")
    path = str(tmp_path / "notify")
    listening = Systemd(path if request.param == "path" else f"@qworker{path}")
    yield listening
    listening.close()


def test_tells_states(systemd: Systemd) -> None:
    """Each state is one datagram; a status is one line and sent again only when it changes."""
    notifier = SystemdNotifier({"NOTIFY_SOCKET": systemd.address})
    notifier.ready()
    notifier.status("2 queues\nWATCHDOG=1")
    notifier.status("2 queues\nWATCHDOG=1")
    notifier.stopping()
    assert [systemd.next() for _ in range(3)] == [
        "READY=1",
        "STATUS=2 queues WATCHDOG=1",
        "STOPPING=1",
    ]


def test_pings_the_watchdog_four_times_per_interval(systemd: Systemd, clock: Clock) -> None:
    """However often the loop pings, a ping is sent at quarters of the interval."""
    environ = {"NOTIFY_SOCKET": systemd.address, "WATCHDOG_USEC": "2000000"}
    notifier = SystemdNotifier(environ, clock=clock)
    assert notifier.watchdog_s == 2.0
    for _ in range(10):
        notifier.ping()
        clock.now_s += 0.1
    notifier.stopping()
    assert [systemd.next() for _ in range(3)] == ["WATCHDOG=1", "WATCHDOG=1", "STOPPING=1"]


def test_takes_its_variables_out_of_the_environment() -> None:
    """No child process notifies for this one."""
    environ = {"NOTIFY_SOCKET": "/nowhere", "WATCHDOG_USEC": "1", "WATCHDOG_PID": "1", "HOME": "/"}
    SystemdNotifier(environ)
    assert environ == {"HOME": "/"}


@each(
    "environ",
    [
        {},
        {"WATCHDOG_USEC": "x"},
        {"WATCHDOG_USEC": "0"},
        {"WATCHDOG_USEC": "1000", "WATCHDOG_PID": str(os.getpid() + 1)},
    ],
)
def test_no_watchdog_for_this_process(environ: dict[str, str]) -> None:
    """Without an interval, or with one for another process, nothing is pinged."""
    notifier = SystemdNotifier(dict(environ))
    assert notifier.watchdog_s is None
    notifier.ping()


@pytest.mark.parametrize("address", ["/nowhere/socket", "@qworker-nobody-listens", "x" * 300])
def test_no_listener_is_not_an_error(address: str) -> None:
    """A missing socket does not stop the work."""
    SystemdNotifier({"NOTIFY_SOCKET": address}).ready()
