"""Real daemon processes, and the socket on which they tell systemd how they do."""

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
from qworker.daemon.service import Daemon
from qworker.telemetry.logs import configure_logs

configure_logs("json", "info")
url, namespace, port, durability, tick = sys.argv[1:]
options = DaemonOptions(metrics_port=int(port), durability=durability, tick=tick)
sys.exit(Daemon(url, namespace, options).run())
"""


class Systemd:
    """Listens where a process tells its states; the name of an abstract socket begins with @."""

    def __init__(self, address: str) -> None:
        self.address = address
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self._socket.bind("\0" + address[1:] if address.startswith("@") else address)

    def next(self, within_s: float = DEADLINE_S) -> str:
        """The next state that is told."""
        self._socket.settimeout(within_s)
        return self._socket.recv(4096).decode()

    def wait_for(self, state: str, within_s: float = DEADLINE_S) -> list[str]:
        """Wait for a state; all states up to it."""
        deadline, told = time.monotonic() + within_s, [""]
        while told[-1] != state:
            told.append(self.next(max(0.01, deadline - time.monotonic())))
        return told[1:]

    def wait_for_silence(self, silence_s: float, within_s: float = DEADLINE_S) -> None:
        """Wait until nothing has been told for so long."""
        deadline = time.monotonic() + within_s
        with suppress(TimeoutError):
            while True:
                told = self.next(silence_s)
                assert time.monotonic() < deadline, f"still {told}"

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
    stderr: IO[bytes] | int = subprocess.DEVNULL,
    environ: dict[str, str] | None = None,
) -> Iterator[subprocess.Popen[bytes]]:
    """Run a daemon; it is killed at the end if it still runs."""
    environment = {**os.environ, **(environ or {})}
    if systemd is not None:
        environment["NOTIFY_SOCKET"] = systemd.address
    process = subprocess.Popen(
        [sys.executable, "-c", _PROGRAM, url, namespace, str(port), durability, tick],
        stderr=stderr,
        env=environment,
        cwd=Path(__file__).parents[2],
    )
    try:
        yield process
    finally:
        process.kill()
        process.wait()
