"""A relay that makes a server as far away as a network would: a round trip, and a bandwidth, for all connections.

    with Relay(url, rtt_ms=5) as relay:
        QWorker("app", url=relay.url)

It delays each byte by half a round trip in each direction, whatever else is on its way: a pipeline pays one round trip,
not one for each of its commands. To connect costs a round trip as well. It breaks nothing; that is what `chaos.py` is
for. It runs in its own process, so that neither the tests' GIL nor their event loops slow it down, and ends with
the block or with the process that has started it.

With QWORKER_TEST_RTT=5 (ms) such a relay stands in front of every server that tests start by `tests.servers.start`.
"""

from __future__ import annotations

import os
import select
import socket
import subprocess
import sys
import tempfile
import time
from collections import deque
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import Any, Self
from urllib.parse import quote, unquote, urlsplit

__all__ = ["RTT_MS", "Relay"]

#: What the environment asks for; 0 means no relay.
RTT_MS = float(os.environ.get("QWORKER_TEST_RTT") or 0)
_READ_BYTES = 262_144
#: A sender that is so far ahead of the bandwidth waits.
_MAX_BYTES = 16 * 1024 * 1024


class Relay:
    """Listens where a Unix socket or a TCP port of 127.0.0.1 is, as `url` does, and passes on what comes.

    `rtt_ms`: the round trip, from 0 on. `bytes_per_s`: of each connection and direction; 0 is unlimited.
    """

    def __init__(self, url: str, *, rtt_ms: float, bytes_per_s: float = 0.0) -> None:
        self._upstream = urlsplit(url)
        self._rtt_s, self._bytes_per_s = rtt_ms / 1000, bytes_per_s
        self.url = ""

    def __enter__(self) -> Self:
        parts = self._upstream
        user = parts.netloc.rpartition("@")[0]
        user += "@" * bool(user)
        self._directory = tempfile.TemporaryDirectory(prefix="qworker-relay-")
        if parts.scheme == "unix":
            path = str(Path(self._directory.name, "s"))
            there, here = unquote(parts.path), path
            url = f"unix://{user}{quote(path)}"
        else:
            there, here = f"{parts.hostname}:{parts.port}", "127.0.0.1:0"
            url = f"{parts.scheme}://{user}"
        self._process = subprocess.Popen(
            [
                sys.executable,
                "-ISs",
                __file__,
                there,
                here,
                str(self._rtt_s),
                str(self._bytes_per_s),
            ],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            start_new_session=True,
        )
        assert self._process.stdout is not None
        said = self._process.stdout.readline().decode().strip()
        assert said, "the relay did not start"
        self.url = url if parts.scheme == "unix" else f"{url}{said}{parts.path}"
        self.url += f"?{parts.query}" if parts.query else ""
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._process.communicate()
        self._directory.cleanup()


# -- the process ---------------------------------------------------------------------------------


class _Pipe:
    """One direction of a connection: what was read from `source`, until it is due at `target`."""

    def __init__(self, source: socket.socket, target: socket.socket, free_at: float) -> None:
        self.source, self.target = source, target
        self.pieces: deque[tuple[float, memoryview]] = deque()
        self.size = 0
        #: When the line has passed on all that it was given.
        self.free_at = free_at
        self.ended = self.blocked = False

    @property
    def reads(self) -> bool:
        return not self.ended and self.size < _MAX_BYTES

    def read(self, delay_s: float, bytes_per_s: float) -> None:
        try:
            data = self.source.recv(_READ_BYTES)
        except BlockingIOError:
            return
        except OSError:
            data = b""
        begin = max(time.monotonic(), self.free_at)
        self.free_at = begin + (len(data) / bytes_per_s if bytes_per_s else 0.0)
        self.pieces.append((self.free_at + delay_s, memoryview(data)))
        self.size += len(data)
        self.ended = not data

    def write(self) -> bool:
        """Pass on what is due; returns whether the connection is over."""
        now = time.monotonic()
        while self.pieces and self.pieces[0][0] <= now:
            due, data = self.pieces[0]
            if not data:
                return True
            try:
                sent = self.target.send(data)
            except BlockingIOError:
                self.blocked = True
                return False
            except OSError:
                return True
            self.size -= sent
            self.blocked = sent < len(data)
            if self.blocked:
                self.pieces[0] = due, data[sent:]
                return False
            self.pieces.popleft()
        return False


def _serve(there: str, here: str, rtt_s: float, bytes_per_s: float) -> None:
    listener = _listen(here)
    print(
        f"127.0.0.1:{listener.getsockname()[1]}" if listener.family == socket.AF_INET else "ready"
    )
    sys.stdout.flush()
    pipes: list[_Pipe] = []
    while True:
        reading: list[Any] = [sys.stdin, listener, *(each.source for each in pipes if each.reads)]
        writing = [each.target for each in pipes if each.blocked]
        dues = [each.pieces[0][0] for each in pipes if each.pieces and not each.blocked]
        wait_s = max(0.0, min(dues) - time.monotonic()) if dues else None
        ready, writable, _ = select.select(reading, writing, [], wait_s)
        if sys.stdin in ready:
            return  # nothing is ever said there: who started us has ended
        if listener in ready:
            with suppress(OSError):
                pipes += _accept(listener, there, rtt_s)
        over: set[socket.socket] = set()
        for pipe in pipes:
            if pipe.source in ready:
                pipe.read(rtt_s / 2, bytes_per_s)
            if pipe.target in writable:
                pipe.blocked = False
            if not pipe.blocked and pipe.write():
                over |= {pipe.source, pipe.target}
        if over:
            pipes = [each for each in pipes if each.source not in over]
            for each in over:
                each.close()


def _listen(here: str) -> socket.socket:
    if here.startswith("/"):
        listener = socket.socket(socket.AF_UNIX)
        listener.bind(here)
    else:
        listener = socket.socket()
        listener.bind(("127.0.0.1", 0))
    listener.listen(1024)
    listener.setblocking(False)
    return listener


def _accept(listener: socket.socket, there: str, rtt_s: float) -> list[_Pipe]:
    client, _ = listener.accept()
    server = socket.socket(socket.AF_UNIX if there.startswith("/") else socket.AF_INET)
    host, _, port = there.rpartition(":")
    try:
        server.connect(there if there.startswith("/") else (host, int(port)))
    except OSError:
        client.close()
        server.close()
        raise
    for each in (client, server):
        each.setblocking(False)
        if each.family == socket.AF_INET:
            each.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    now = time.monotonic()
    # Until the handshake is over nothing is said.
    return [_Pipe(client, server, now + rtt_s), _Pipe(server, client, now)]


if __name__ == "__main__":
    _serve(sys.argv[1], sys.argv[2], float(sys.argv[3]), float(sys.argv[4]))
