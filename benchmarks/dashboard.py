"""dashboard: what `qworker web` costs with a thousand queues: its first page, one viewer, fifty."""

from __future__ import annotations

import asyncio
import gzip
import re
import socket
import time
import urllib.request
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Final

from benchmarks.figures import Figure, at_most, measured
from benchmarks.rounds import interleave
from benchmarks.stand import PAD, Background, Plan, Stand, wait_until

__all__ = ["dashboard", "everyone"]

#: Seconds for which viewers look, and before that, for the first readings.
_LOOKS_S: Final = 30.0
_SETTLES_S: Final = 10.0
_GETS: Final = 20
_CROWD: Final = 50
#: Messages in each queue.
_HELD: Final = 3
_MEASURES: Final = (
    ("wire_kb", "the first page with its files, over the wire", "kB", at_most(60)),
    ("page_ms", "CPU of the dashboard per page", "ms", at_most(100)),
    ("one", "a viewer of the overview, CPU of the server", "% of a core", at_most(0.5)),
    ("one_own", "a viewer of the overview, CPU of the dashboard", "% of a core", None),
    ("durability", "a viewer of /durability, CPU of the server", "% of a core", at_most(0.5)),
    ("crowd", "50 viewers, CPU of the server", "times one", at_most(2)),
    ("crowd_own", "50 viewers, CPU of the dashboard", "% of a core", None),
)


def everyone(_: object) -> object:
    """Let everyone look at the dashboard that is measured."""
    from qworker.web import Access

    return Access("bench")


def dashboard(plan: Plan) -> list[Figure]:
    """Measure the dashboard of a namespace; `messages` of the plan are its queues."""
    who = f"{plan.messages:,} queues"
    samples = interleave({who: lambda: _measure(plan.messages)}, plan.rounds, plan.say)
    return [
        measured("dashboard", f"{who}: {words}", samples.of(who, measure), unit, goal)
        for measure, words, unit, goal in _MEASURES
    ]


def _measure(queues: int) -> dict[str, float]:
    with Stand() as stand:
        for number in range(queues):
            bodies = [{"task": "nobody", "args": [index, PAD]} for index in range(_HELD)]
            stand.near(f"q{number:05}").send_many(bodies)
        idle, _ = _spent(stand, None, [])
        port = _free_port()
        words = ("web", "--port", str(port), "--authorize", "benchmarks.dashboard:everyone")
        environ = {"QWORKER_URL": stand.url, "QWORKER_NAMESPACE": "bench"}
        with stand.start("qworker", *words, **environ) as web:
            base = f"http://127.0.0.1:{port}"
            wait_until(lambda: _answers(web, base), step_s=0.1)
            first = _page(base)
            before_s = web.cpu_s()
            for _ in range(_GETS):
                _page(base)
            page_ms = (web.cpu_s() - before_s) / _GETS * 1000
            one, one_own = _spent(stand, web, [port], "/")
            durability, _ = _spent(stand, web, [port], "/durability")
            crowd, crowd_own = _spent(stand, web, [port] * _CROWD, "/")
    return {
        "wire_kb": first / 1000,
        "page_ms": page_ms,
        "one": one - idle,
        "one_own": one_own,
        "durability": durability - idle,
        "crowd": (crowd - idle) / max(one - idle, 1e-9),
        "crowd_own": crowd_own,
    }


def _spent(
    stand: Stand, web: Background | None, ports: list[int], path: str = ""
) -> tuple[float, float]:
    """Let viewers look at a page; returns the CPU of the server and of the dashboard, in percent of a core."""

    async def look() -> tuple[float, float]:
        async with asyncio.TaskGroup() as group:
            streams = [group.create_task(_view(port, path)) for port in ports]
            await asyncio.sleep(_SETTLES_S if ports else 0.0)
            server_s, own_s = _cpu_s(stand), web.cpu_s() if web else 0.0
            began = time.monotonic()
            await asyncio.sleep(_LOOKS_S)
            lasted_s = time.monotonic() - began
            server_s, own_s = _cpu_s(stand) - server_s, (web.cpu_s() if web else 0.0) - own_s
            for stream in streams:
                if stream.done():
                    raise RuntimeError(f"a stream of {path} has ended")
                stream.cancel()
        return 100 * server_s / lasted_s, 100 * own_s / lasted_s

    return asyncio.run(look())


async def _view(port: int, path: str) -> None:
    """Follow a page as a browser does."""
    async with _stream(port, path) as reader:
        while await reader.read(65_536):
            pass


@asynccontextmanager
async def _stream(port: int, path: str) -> AsyncIterator[asyncio.StreamReader]:
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    request = f"GET {path} HTTP/1.1\r\nHost: 127.0.0.1\r\nAccept: text/event-stream\r\n\r\n"
    writer.write(request.encode())
    try:
        yield reader
    finally:
        writer.close()


def _cpu_s(stand: Stand) -> float:
    """Read the CPU of the server, to the microsecond."""
    info = stand.redis.info("cpu")
    return float(info["used_cpu_sys"] + info["used_cpu_user"])


def _page(base: str) -> int:
    """Load the overview with its files, packed, as a browser does at first; returns the bytes of their bodies."""
    body = _get(f"{base}/")
    files = re.findall(r'(?:src|href)="(/static/[^"]+)"', gzip.decompress(body).decode())
    return len(body) + sum(len(_get(base + path)) for path in files)


def _get(url: str) -> bytes:
    request = urllib.request.Request(url, headers={"Accept-Encoding": "gzip"})
    with urllib.request.urlopen(request) as answer:
        body: bytes = answer.read()
    return body


def _answers(web: Background, base: str) -> bool:
    web.check()
    try:
        return _get(f"{base}/healthz") == b"ok\n"
    except OSError:
        return False


def _free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as probe:
        port: int = probe.getsockname()[1]
    return port
