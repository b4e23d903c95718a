"""A proxy that breaks connections in the ways networks do, in front of any server.

    with ChaosProxy(store_url) as proxy:
        client = ConnectionFactory(proxy.url)
        proxy.cut_reply(every=10)               # the server runs the call, its reply never arrives
        proxy.cut_next_reply(of=b"EVALSHA")     # once, and only that command
        proxy.cut_request(every=10)             # the call dies on its way: the server never sees it
        proxy.delay_s = 0.05                    # each way
        proxy.on_request = lambda data: …       # called before each request is forwarded to the server
        proxy.bytes_per_s = 125_000             # each connection, each way: a slow link; 0 is unlimited
        proxy.blackhole = True                  # nothing passes, nothing closes; False lets it continue
        proxy.reset_all()                       # every open connection gets a RST now
        proxy.heal()                            # all of it is over
        proxy.replies_cut, proxy.requests_cut, proxy.accepted

It runs an event loop in its own thread, so sync and async tests use it alike. What it calls a request is one read
from the client (a pipeline counts once), a reply the first bytes that come back after one.
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
import struct
import threading
from collections.abc import Callable
from dataclasses import dataclass
from types import TracebackType
from typing import Self
from urllib.parse import SplitResult, unquote, urlsplit

import pytest

__all__ = ["ChaosProxy"]

_RESET = struct.pack("ii", 1, 0)


@dataclass
class _Cut:
    """Cut every n-th occasion (0: none), at most `left` times (None: no limit)."""

    every: int = 0
    of: bytes = b""
    left: int | None = None
    seen: int = 0
    done: int = 0

    def strikes(self) -> bool:
        if not self.every or self.left == 0:
            return False
        self.seen += 1
        if self.seen % self.every:
            return False
        self.done += 1
        if self.left is not None:
            self.left -= 1
        return True


class ChaosProxy:
    """Listens on a free TCP port of 127.0.0.1 and passes bytes to `upstream`, a redis:// or unix:// URL."""

    def __init__(self, upstream: str) -> None:
        self._upstream = urlsplit(upstream)
        if "+" in self._upstream.scheme:
            pytest.skip("a proxy stands in front of one server")
        self.delay_s = self.bytes_per_s = 0.0
        self.blackhole = False
        self.on_request: Callable[[bytes], None] | None = None
        self.accepted = 0
        self._replies, self._requests = _Cut(), _Cut()
        self._writers: set[asyncio.StreamWriter] = set()
        self._listening = threading.Event()
        self._thread = threading.Thread(target=lambda: asyncio.run(self._serve()), daemon=True)

    @property
    def url(self) -> str:
        """The URL of the proxy: redis://127.0.0.1:port."""
        return f"redis://127.0.0.1:{self.port}"

    @property
    def replies_cut(self) -> int:
        """How many replies were lost since the last `cut_reply` or `cut_next_reply`."""
        return self._replies.done

    @property
    def requests_cut(self) -> int:
        """How many requests were lost since the last `cut_request`."""
        return self._requests.done

    def cut_reply(self, every: int, of: bytes = b"") -> None:
        """Lose every n-th reply (0: none), over all connections; of requests that contain `of` only."""
        self._replies = _Cut(every, of)

    def cut_next_reply(self, of: bytes = b"") -> None:
        """Lose the next reply, or the next one to a request that contains `of`."""
        self._replies = _Cut(1, of, left=1)

    def cut_request(self, every: int, of: bytes = b"", times: int | None = None) -> None:
        """Lose every n-th request (0: none) before the server sees it; only those that contain `of`."""
        self._requests = _Cut(every, of, left=times)

    def heal(self) -> None:
        """Break nothing any more."""
        self._replies, self._requests = _Cut(), _Cut()
        self.delay_s = self.bytes_per_s = 0.0
        self.blackhole = False

    def reset_all(self) -> None:
        """Break every open connection with a RST."""
        self._loop.call_soon_threadsafe(self._break_all)

    def __enter__(self) -> Self:
        self._thread.start()
        assert self._listening.wait(60)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._loop.call_soon_threadsafe(self._stop.set)
        self._thread.join(60)

    async def _serve(self) -> None:
        self._loop, self._stop = asyncio.get_running_loop(), asyncio.Event()
        server = await asyncio.start_server(self._connected, "127.0.0.1", 0)
        self.port: int = server.sockets[0].getsockname()[1]
        self._listening.set()
        async with server:
            await self._stop.wait()
            server.close()
            self.blackhole = False
            await asyncio.sleep(0)  # A connection accepted just now registers itself.
            while self._writers:
                self._break_all()
                await asyncio.sleep(0.001)

    async def _connected(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.accepted += 1
        link = _Link(self, reader, writer)
        self._writers.add(writer)
        try:
            await link.run(self._upstream)
        except (OSError, asyncio.CancelledError):
            _reset(writer)
        finally:
            self._writers.discard(writer)

    def _break_all(self) -> None:
        for writer in list(self._writers):
            _reset(writer)


class _Link:
    """One connection of a client and its twin to the server."""

    def __init__(
        self, proxy: ChaosProxy, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        self._proxy, self._reader, self._writer = proxy, reader, writer
        #: The reply that comes next counts for `cut_reply`.
        self._counts = False

    async def run(self, upstream: SplitResult) -> None:
        if upstream.scheme == "unix":
            server = await asyncio.open_unix_connection(unquote(upstream.path))
        else:
            server = await asyncio.open_connection(upstream.hostname, upstream.port)
        pumps = [
            asyncio.create_task(self._requests(server[1])),
            asyncio.create_task(self._replies(server[0])),
        ]
        try:
            await asyncio.wait(pumps, return_when=asyncio.FIRST_COMPLETED)
        finally:
            # Close before the await: at the end of the loop it is cancelled, and skips what follows.
            server[1].transport.abort()
            self._writer.close()
            for pump in pumps:
                pump.cancel()
            await asyncio.gather(*pumps, return_exceptions=True)

    async def _requests(self, server: asyncio.StreamWriter) -> None:
        proxy = self._proxy
        with contextlib.suppress(OSError):
            while data := await self._reader.read(65536):
                await self._pass(len(data))
                if proxy._requests.of in data and proxy._requests.strikes():
                    return _reset(self._writer)
                self._counts = proxy._replies.of in data
                if proxy.on_request is not None:
                    proxy.on_request(data)
                server.write(data)
                await server.drain()

    async def _replies(self, server: asyncio.StreamReader) -> None:
        proxy = self._proxy
        with contextlib.suppress(OSError):
            while data := await server.read(65536):
                await self._pass(len(data))
                if self._counts and proxy._replies.strikes():
                    return _reset(self._writer)
                self._counts = False
                self._writer.write(data)
                await self._writer.drain()

    async def _pass(self, size: int) -> None:
        proxy = self._proxy
        if wait_s := proxy.delay_s + (size / proxy.bytes_per_s if proxy.bytes_per_s else 0.0):
            await asyncio.sleep(wait_s)
        while self._proxy.blackhole:
            await asyncio.sleep(0.005)


def _reset(writer: asyncio.StreamWriter) -> None:
    """Close with a RST: the client gets an error, not an orderly end."""
    sock = writer.get_extra_info("socket")
    with contextlib.suppress(OSError):
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET)
    writer.transport.abort()
