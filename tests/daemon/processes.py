"""Real daemon processes, and the socket over which they notify systemd."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO

from tests.timing import DEADLINE_S

_PROGRAM = """
import sys
from qworker.daemon.options import DaemonOptions
from qworker.service.daemon import Daemon
from qworker.telemetry.logs import configure_logs

configure_logs("json", "info")
url, namespace, port, durability, tick, queues = sys.argv[1:]
options = DaemonOptions(
    metrics_port=int(port), durability=durability, tick=tick, metrics_queues=int(queues)
)
sys.exit(Daemon(url, namespace, options).run())
"""


class Systemd:
    """Receives the states of a process; the name of an abstract socket begins with @."""

    def __init__(self, address: str) -> None:
        self.address = address
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self._socket.bind("\0" + address[1:] if address.startswith("@") else address)

    def next(self, within_s: float = DEADLINE_S) -> str:
        """The next state."""
        self._socket.settimeout(within_s)
        return self._socket.recv(4096).decode()

    def wait_for(self, state: str, within_s: float = DEADLINE_S) -> list[str]:
        """Wait for a state; all states up to it."""
        deadline, states = time.monotonic() + within_s, [""]
        while states[-1] != state:
            states.append(self.next(max(0.01, deadline - time.monotonic())))
        return states[1:]

    def wait_for_silence(self, silence_s: float, within_s: float = DEADLINE_S) -> None:
        """Wait until no state has come for this long."""
        deadline = time.monotonic() + within_s
        with suppress(TimeoutError):
            while True:
                states = self.next(silence_s)
                assert time.monotonic() < deadline, f"still {states}"

    def close(self) -> None:
        """Stop listening."""
        self._socket.close()


@contextmanager
def daemon(
    url: str,
    namespace: str,
    systemd: Systemd | None = None,
    *,
    port: int = 0,
    durability: str = "off",
    tick: str = "1s",
    metrics_queues: int = 1000,
    stderr: IO[bytes] | int = subprocess.DEVNULL,
    environ: dict[str, str] | None = None,
) -> Iterator[subprocess.Popen[bytes]]:
    """Run a daemon; it is killed at the end if it still runs."""
    environment = {**os.environ, **(environ or {})}
    options = (port, durability, tick, metrics_queues)
    if systemd is not None:
        environment["NOTIFY_SOCKET"] = systemd.address
    process = subprocess.Popen(
        [sys.executable, "-c", _PROGRAM, url, namespace, *map(str, options)],
        stderr=stderr,
        env=environment,
        cwd=Path(__file__).parents[2],
    )
    try:
        yield process
    finally:
        process.kill()
        process.wait()
