"""TCP ports for servers of tests, each claimed by one process of this machine until that process ends.

A port that the kernel calls free may be given to another test a moment later, or to an outgoing connection, while the
server that had it restarts: two tests then share one server.
"""

from __future__ import annotations

import fcntl
import os
import random
import socket
import tempfile
from contextlib import suppress
from pathlib import Path
from typing import Final

__all__ = ["free_port", "free_ports"]

#: Below the ports that kernels choose for outgoing connections: from 32768 on Linux, from 49152 elsewhere.
_PORTS: Final = range(12_000, 32_000)
#: The open lock files of this process.
_claims: dict[int, int] = {}


def free_ports(number: int) -> list[int]:
    """Claim ports without a listener, all different. Raises `OSError` if too few are left."""
    ports: list[int] = []
    first = random.SystemRandom().randrange(len(_PORTS))
    for port in (*_PORTS[first:], *_PORTS[:first]):
        if len(ports) == number:
            return ports
        if port not in _claims and _claim(port):
            ports.append(port)
    raise OSError(f"no {number} ports are free from {_PORTS.start} to {_PORTS.stop - 1}")


def free_port() -> int:
    """Claim one port without a listener."""
    return free_ports(1)[0]


def _claim(port: int) -> bool:
    directory = Path(tempfile.gettempdir()) / f"qworker-test-ports-{os.getuid()}"
    directory.mkdir(mode=0o700, exist_ok=True)
    lock = os.open(directory / str(port), os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    with suppress(OSError), socket.socket() as probe:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        # A server that has closed its connections a moment ago does not make a port busy.
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        probe.bind(("127.0.0.1", port))
        _claims[port] = lock
        return True
    os.close(lock)
    return False
