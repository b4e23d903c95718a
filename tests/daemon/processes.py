"""Real daemon processes, and the socket over which they notify systemd."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext, suppress
from pathlib import Path
from typing import IO, Final

from tests.consumer.forkserver import ROOT, Order, WarmProcess, can_fork, fork_server
from tests.timing import DEADLINE_S

_PROGRAM: Final = "tests.daemon.program"


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
    stderr: IO[bytes] | None = None,
    environ: dict[str, str] | None = None,
    cold: bool = False,
) -> Iterator[subprocess.Popen[bytes] | WarmProcess]:
    """Run a daemon; it is killed at the end if it still runs. `cold`: it inherits from this process, as by exec."""
    environment = {**os.environ, **(environ or {})}
    words = [url, namespace, *map(str, (port, durability, tick, metrics_queues))]
    if systemd is not None:
        environment["NOTIFY_SOCKET"] = systemd.address
    process: subprocess.Popen[bytes] | WarmProcess
    with nullcontext(stderr) if stderr else Path(os.devnull).open("wb") as log:
        if can_fork() and not cold:
            process = fork_server().start(Order(_PROGRAM, words, str(ROOT), environment), log)
        else:
            command = [sys.executable, "-m", _PROGRAM, *words]
            process = subprocess.Popen(command, stderr=log, env=environment, cwd=ROOT)
    try:
        yield process
    finally:
        process.kill()
        process.wait()
