"""Live updates: one sampler and one stream per page, whatever the number of viewers; a server that goes and comes."""

from __future__ import annotations

import asyncio
import os
import signal
import threading
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from itertools import count
from pathlib import Path
from typing import Any

import pytest

from qworker import QWorker
from qworker.client.execute.sync import Client
from qworker.monitor.history import HOUR_S, Series
from qworker.store.connections import ConnectionFactory
from qworker.web import RIGHTS, Access, asgi
from qworker.web.application import Dashboard
from qworker.web.live_parts import LivePart, LiveParts
from qworker.web.render import sparkline
from tests.cli.conftest import Shop
from tests.relay import Relay
from tests.servers import start
from tests.timing import DEADLINE_S, Clock
from tests.topologies.servers import until
from tests.web.conftest import Browser
from tests.web.filled import fill


class Stream:
    """The events of a page, as they come."""

    def __init__(self) -> None:
        self.status = 0
        self.headers: dict[bytes, bytes] = {}
        self._chunks: asyncio.Queue[bytes] = asyncio.Queue()

    async def send(self, message: Any) -> None:
        if message["type"] == "http.response.start":
            self.status, self.headers = message["status"], dict(message["headers"])
        else:
            self._chunks.put_nowait(message["body"])

    async def event(self, part: str = "") -> str:
        """Wait for an event that contains a part."""
        while True:
            chunk = await asyncio.wait_for(self._chunks.get(), DEADLINE_S)
            lines = chunk.decode().splitlines()
            text = "\n".join(line[6:] for line in lines if line.startswith("data: "))
            if text and part in text:
                return text

    async def ends(self) -> None:
        """Wait until the other side has ended it."""
        while await asyncio.wait_for(self._chunks.get(), DEADLINE_S):
            pass


@asynccontextmanager
async def stream(dashboard: Dashboard, path: str, base: str = "") -> AsyncIterator[Stream]:
    """Open the stream of a page as htmx does, and hang up at the end; `base` is where the dashboard is mounted."""
    gone = asyncio.Event()
    asked = False

    async def receive() -> Any:
        nonlocal asked
        if not asked:
            asked = True
            return {"type": "http.request", "body": b"", "more_body": False}
        await gone.wait()
        return {"type": "http.disconnect"}

    path, _, query = path.partition("?")
    scope = {
        "type": "http",
        "asgi": {"version": "3.0", "spec_version": "2.3"},
        "http_version": "1.1",
        "method": "GET",
        "scheme": "http",
        "path": base + path,
        "raw_path": (base + path).encode(),
        "query_string": query.encode(),
        "root_path": base,
        "headers": [(b"accept", b"text/html, text/event-stream"), (b"accept-encoding", b"gzip")],
        "client": ("127.0.0.1", 1),
        "server": ("ops.test", 80),
    }
    opened = Stream()
    answering = asyncio.create_task(dashboard(scope, receive, opened.send))
    try:
        yield opened
    finally:
        gone.set()
        await asyncio.wait_for(answering, DEADLINE_S)


@pytest.mark.slow
def test_a_stream_sends_the_changing_part_when_it_changes(
    made: Callable[..., Dashboard], shop: Shop
) -> None:
    """Not packed, not kept by proxies; another page of the same name has its own contents."""
    shop.send("emails", 1)
    dashboard = made()

    async def watch() -> None:
        async with (
            stream(dashboard, "/queues/emails") as queue,
            stream(dashboard, "/queues?q=nothing") as found,
        ):
            first = await queue.event()
            assert queue.headers[b"content-type"].startswith(b"text/event-stream")
            assert b"content-encoding" not in queue.headers
            assert queue.headers[b"x-accel-buffering"] == b"no"
            assert "<html" not in first
            assert "No queue has a matching name" in await found.event()
            await asyncio.to_thread(shop.send, "emails", 6)
            assert ">7<" in await queue.event(">7<")
            await asyncio.to_thread(shop.queue("emails").remove)
            assert "There is no queue" in await queue.event("There is no queue")

    asyncio.run(watch())


@pytest.mark.slow
def test_many_viewers_cost_what_one_does(
    made: Callable[..., Dashboard], shop: Shop, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Readings do not depend on viewers, and what they see is written once for all with the same rights."""
    shop.send("emails", 1)
    dashboard = made()
    written: list[int] = []
    write = dashboard._writer.live

    def counted(make: Any, request: Any, access: Any, sample: Any) -> Any:
        written.append(sample.number)
        return write(make, request, access, sample)

    monkeypatch.setattr(dashboard._writer, "live", counted)

    async def watch() -> None:
        async with asyncio.TaskGroup() as group:
            left = asyncio.Event()

            async def view() -> None:
                async with stream(dashboard, "/") as overview:
                    await overview.event()
                    await asyncio.to_thread(shop.send, "emails", 1)
                    await overview.event(">31<")
                    if not left.is_set():
                        left.set()

            for _ in range(30):
                group.create_task(view())
            await left.wait()

    asyncio.run(watch())
    assert len(written) == len(set(written))
    threads = [thread for thread in threading.enumerate() if thread.name == "qworker-sampler"]
    assert len(threads) == 1


def test_what_viewers_share_depends_on_their_rights(
    made: Callable[..., Dashboard], shop: Shop
) -> None:
    """An operator's buttons do not get onto the page of somebody who may only look."""
    shop.send("emails", 1)
    rights = iter([RIGHTS, frozenset({"view"})])
    dashboard = made(authorize=lambda request: Access("ada", next(rights)))

    async def watch() -> None:
        async with stream(dashboard, "/queues/emails") as operator:
            assert "Pause receiving" in await operator.event()
            async with stream(dashboard, "/queues/emails") as viewer:
                assert "Pause receiving" not in await viewer.event()

    asyncio.run(watch())


def test_viewers_of_two_mounts_share_no_links(made: Callable[..., Dashboard], shop: Shop) -> None:
    """One dashboard may be reached below several paths, as by two proxies."""
    shop.bury("ValueError: x")
    dashboard = made()

    async def watch() -> None:
        async with (
            stream(dashboard, "/queues", "/ops") as first,
            stream(dashboard, "/queues") as second,
        ):
            assert 'href="/ops/queues/emails"' in await first.event()
            assert 'href="/queues/emails"' in await second.event()

    asyncio.run(asyncio.wait_for(watch(), DEADLINE_S))


@pytest.mark.slow
def test_pages_with_readings_of_their_own_follow_too(
    made: Callable[..., Dashboard], shop: Shop, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A message, and the limits of groups: no link to press for what is new."""
    # A first page that a busy machine writes slowly would rest for a minute.
    monkeypatch.setattr("qworker.web.live_parts._LONGEST_S", 2.0)
    [message_id] = shop.send("emails", 1)
    dashboard = made()

    async def watch() -> None:
        async with (
            stream(dashboard, f"/queues/emails/messages/{message_id}") as message,
            stream(dashboard, "/queues/emails/groups") as limits,
        ):
            assert "waits to be received" in await message.event()
            assert "No limits are set" in await limits.event()
            await asyncio.to_thread(shop.queue("emails").set_limit, "acme", concurrency=3)
            assert ">acme<" in await limits.event(">acme<")
            assert await asyncio.to_thread(shop.queue("emails").hold, message_id)
            assert "waits until it is enqueued" in await message.event("waits until it is enqueued")

    asyncio.run(watch())


def test_pages_with_readings_of_their_own_rest_as_long_as_they_cost(
    made: Callable[..., Dashboard], shop: Shop
) -> None:
    """The more of them are open, the longer each rests; a page that is opened later is not older than its stream."""
    sampler, clock, written = made().sampler, Clock(), list[str]()
    live_parts = LiveParts(sampler, clock, clock=clock)

    def write(name: str, took_s: float, *, reads: bool = True) -> Callable[[Any], LivePart]:
        def made_of(_: Any) -> LivePart:
            written.append(name)
            clock.now_s += took_s
            return LivePart(name, (), reads)

        return made_of

    def look(*names: str, since_s: float = float("-inf")) -> list[str]:
        """Look at pages with a new sample; returns those that were written."""
        written.clear()
        sampler._publish(sampler.sample)
        for name in names:
            number, live = live_parts.get(name, write(name, 0.01, reads=name != "free"), since_s)
            assert live.text == name
            assert number == sampler.sample.number
        return [*written]

    assert look("a", "a", "free") == ["a", "free"]
    clock.now_s += 1.4
    assert look("a", "free") == ["free"]
    clock.now_s += 0.2
    assert look("a", "b") == ["a", "b"]
    clock.now_s += 1.6
    assert look("a", "b") == ["a"]
    assert look("b", since_s=clock.now_s) == ["b"]
    written.clear()
    live_parts.get("slow", write("slow", 10.0))
    clock.now_s += 59
    assert "slow" not in look("slow")
    clock.now_s += 2
    assert "slow" in look("slow")


@pytest.mark.slow
def test_a_distant_server_makes_no_page_rest_longer(store_url: str) -> None:
    """30 ms away, each trip of a page once cost it 4.5 s of rest: what the network takes costs the server nothing."""
    with (
        start("valkey", far=False) as server,
        Relay(server.url, rtt_ms=30) as relay,
        Client(ConnectionFactory(server.url)) as client,
    ):
        shop = Shop(client, "shop", server.url)
        [message_id] = shop.send("emails", 1)
        app = QWorker("shop", url=relay.url)
        dashboard = asgi(app, authorize=lambda _: Access("ada", RIGHTS))
        trips: list[float] = []
        answered = dashboard._namespace.client._answered

        def counted(nodes: Any, seconds: float) -> None:
            if threading.current_thread().name != "qworker-sampler":
                trips.append(seconds)
            answered(nodes, seconds)

        dashboard._namespace.client._answered = counted  # type: ignore[method-assign]

        async def rest_of(number: int) -> bool:
            """Open the only page; whether it rests for at most half of what its trips would cost it."""
            path = f"/queues/emails/messages/{message_id}"
            dashboard._live_parts._kept.clear()
            trips.clear()
            async with stream(dashboard, f"{path}?n={number}") as message:
                assert "waits to be received" in await message.event()
                live_parts = dashboard._live_parts
                key = next(each for each in live_parts._kept if ("n", str(number)) in each[1])
                rest_s = live_parts._kept[key].until_s - time.monotonic()
                return len(trips) > 1 and rest_s < min(60, 150 * sum(trips)) / 2

        numbers = count()
        until(lambda: asyncio.run(rest_of(next(numbers))))
        dashboard.close()
        app.close()


def test_a_stream_ends_with_the_dashboard(made: Callable[..., Dashboard], shop: Shop) -> None:
    """A process that is stopped does not wait for browsers to go."""
    dashboard = made()

    async def watch() -> None:
        async with stream(dashboard, "/") as overview:
            await overview.event()
            dashboard.sampler.end()

    asyncio.run(asyncio.wait_for(watch(), DEADLINE_S))


@pytest.mark.slow
@pytest.mark.bad_input("dashboard: a server that is away")
def test_pages_outlast_a_server_that_is_away(tmp_path: Path) -> None:
    """Before anything was read a page asks again; afterwards it has the last figures, and says since when."""
    path = tmp_path / "s"
    app = QWorker("shop", url=f"unix://{path}")
    dashboard = asgi(app, authorize=lambda request: Access("ada", RIGHTS))
    browser = Browser(dashboard)

    answer = browser.get("/")
    assert (answer.status_code, answer.headers["retry-after"]) == (503, "3")
    assert '<meta http-equiv="refresh" content="3">' in answer.text
    assert browser.get("/healthz").status_code == 503
    refused = browser.post("/queues/emails/pause", {"direction": "in"})
    assert (refused.status_code, "refresh" in refused.text) == (503, False)

    kept = ("/workers", "/schedules", "/runs", "/durability")

    async def watch() -> None:
        async with stream(dashboard, "/queues/emails") as queue:
            await queue.event("reloads itself")
            with start("valkey") as server:
                os.symlink(server.socket, path)
                app.queue("emails").send(b"{}")
                await queue.event('"value ">1<')
                for read in kept:
                    assert (await asyncio.to_thread(browser.get, read)).status_code == 200
                app.close()
                path.unlink()
            assert "These figures are from that time" in await queue.event(
                "No answer from the server since"
            )

    asyncio.run(watch())
    for read in ("/", *kept):
        assert "No answer from the server since" in browser.get(read).text, read
    assert browser.get("/healthz").status_code == 503
    dashboard.close()


@pytest.mark.slow
@pytest.mark.bad_input("dashboard: a server that hangs")
def test_every_page_says_that_the_server_is_away_and_comes_back(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """With the last figures and their time, or with 503 and a reload; a change is refused, and is not sent again."""
    monkeypatch.setattr("qworker.web.mount.GIVE_UP_S", 0.3)
    with start("valkey") as server, Client(ConnectionFactory(server.url), give_up_s=20) as client:
        # A worker counts as gone after a while, and then it cannot be drained.
        paths = [path for path in fill(Shop(client, "shop", server.url)) if "drain" not in path]
        dashboard = asgi(QWorker("shop", url=server.url), authorize=lambda _: Access("ada", RIGHTS))
        browser = Browser(dashboard)
        assert {browser.get(path).status_code for path in paths} == {200}
        os.kill(server.pid, signal.SIGSTOP)
        until(lambda: "No answer from the server since" in browser.get("/").text)
        for path in paths:
            answer = browser.get(path)
            if "No answer from the server since" in answer.text:
                assert answer.status_code == 200, path
            else:
                assert (answer.status_code, answer.headers["retry-after"]) == (503, "3"), path
                assert 'http-equiv="refresh"' in answer.text
        pressed = browser.post("/queues/emails/pause", {"direction": "out"})
        assert (pressed.status_code, 'http-equiv="refresh"' in pressed.text) == (503, False)
        os.kill(server.pid, signal.SIGCONT)
        for path in paths:
            until(lambda path=path: browser.get(path).status_code == 200)
        dashboard.close()


def test_the_last_hour_is_kept_and_peaks_are_not_lost() -> None:
    """A point between two raises the last one; a picture says in words what it shows."""
    series = Series(apart_s=10)
    for at, value in ((0, 1), (4, 9), (10, 2), (20, 3), (HOUR_S + 15, 4)):
        series.add(at, value)

    assert series.points() == [(20 - HOUR_S - 15, 3), (0, 4)]
    other = Series(apart_s=10)
    for at, value in ((0, 1), (4, 9), (5, 3), (10, 2)):
        other.add(at, value)
    assert other.points() == [(-10, 9), (0, 2)]
    assert 'aria-label="Ready over the last 10s: 2 to 9"' in sparkline(other, "Ready")
    assert "points" not in sparkline(None, "Ready")
