"""How long a call is retried: an option of the app, the environment, the file and the command line."""

from __future__ import annotations

import asyncio
import os
import select
import signal
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from types import SimpleNamespace

import pytest
from click.testing import CliRunner

from qworker import QWorker
from qworker.cli.main import cli
from qworker.client.execute import base
from qworker.client.execute.aio import AsyncClient
from qworker.client.execute.sync import Client
from qworker.client.message import Message
from qworker.client.placement import send_call
from qworker.client.plan import Plan
from qworker.client.queue import Queue
from qworker.client.queue_ref import QueueRef
from qworker.engine.options import SendOptions
from qworker.engine.raw import raw
from qworker.engine.send import NewMessage, SendCall, Sent
from qworker.errors import (
    InDoubtError,
    InvalidOptionError,
    OutOfMemoryError,
    ServerError,
    UnavailableError,
)
from qworker.store.connections import ConnectionFactory
from qworker.wire.ids import IdSource
from tests import servers
from tests.chaos import ChaosProxy
from tests.consumer.driving import until
from tests.ports import free_port
from tests.timing import Clock, Watch


@contextmanager
def within(seconds: float) -> Iterator[None]:
    """Assert that the block takes no longer: less than any default (3 s of commands, 4 s for a reply, 60 s)."""
    watch = Watch(os.getpid())
    yield
    assert watch.passed_s() < seconds


CALLS: dict[str, Callable[[Queue], object]] = {
    "send": lambda queue: queue.send("x"),
    "send_many": lambda queue: queue.send_many(range(3000)),
    "receive": lambda queue: queue.receive(),
    "receive from several": lambda queue: queue.receive(then=[queue]),
    "receive and reap": lambda queue: queue.receive(reap=True),
    "pop": lambda queue: queue.pop(),
    "inspect": lambda queue: queue.inspect(),
    "pending": lambda queue: queue.pending(),
}


@pytest.mark.parametrize("name", CALLS)
def test_a_refused_connection_is_given_up_in_time(namespace: str, name: str) -> None:
    """Nothing listens there: each call fails with the address in its error."""
    url = f"redis://127.0.0.1:{free_port()}"
    app = QWorker(namespace, url=url, give_up="300ms")
    with within(3.5), pytest.raises(UnavailableError, match=url.removeprefix("redis://")):
        CALLS[name](app.queue("q"))


@pytest.mark.slow
@pytest.mark.parametrize(
    "connected",
    [True, pytest.param(False, marks=pytest.mark.nightly("test_async_calls_are_given_up_in_time"))],
)
@pytest.mark.parametrize("name", CALLS)
def test_a_frozen_server_is_given_up_in_time(
    store_url: str, namespace: str, name: str, connected: bool
) -> None:
    """It accepts the connection and the call, and replies to neither."""
    with ChaosProxy(store_url) as proxy:
        app = QWorker(namespace, url=proxy.url, give_up="300ms")
        queue = app.queue("q")
        if connected:
            queue.send("before")
            queue.receive()
        proxy.blackhole = True
        with within(3.5), pytest.raises((UnavailableError, InDoubtError)):
            CALLS[name](queue)
        app.close()


@pytest.mark.slow
@pytest.mark.parametrize("connected", [True, False])
def test_async_calls_are_given_up_in_time(store_url: str, namespace: str, connected: bool) -> None:
    """The async client bounds connecting, sending and waiting for a reply as well."""

    async def work(proxy: ChaosProxy) -> None:
        app = QWorker(namespace, url=proxy.url, give_up="300ms")
        queue = app.aqueue("q")
        if connected:
            await queue.send("before")
            await queue.receive()
        proxy.blackhole = True
        for call in (queue.send("x"), queue.receive(), queue.receive(then=[queue]), queue.pop()):
            with within(3.5), pytest.raises((UnavailableError, InDoubtError)):
                await call
        await app.aclose()

    with ChaosProxy(store_url) as proxy:
        asyncio.run(work(proxy))


def test_only_calls_that_fail_one_after_the_other_share_the_limit(
    client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    """After one that succeeds the next has all of it again."""
    clock = Clock()
    monkeypatch.setattr(base, "time", SimpleNamespace(monotonic=clock))

    def plan() -> Plan[None]:
        for _ in range(4):
            with suppress(UnavailableError):
                yield raw("PING")

    calls = client._calls_of(plan(), 10.0)
    limits = [next(calls)[1]]
    for _ in range(2):
        clock.now_s += 4
        limits.append(calls.throw(UnavailableError("away"))[1])
    limits.append(calls.send(b"PONG")[1])
    assert limits == [10.0, 6.0, 2.0, 10.0]
    calls.close()


@pytest.mark.parametrize("way", ["sync", "async"])
def test_a_send_that_can_go_elsewhere_waits_for_no_server(namespace: str, way: str) -> None:
    """Another shard takes what this one certainly has not stored: it is not tried again for the limit."""
    factory = ConnectionFactory(f"redis://127.0.0.1:{free_port()}")
    ref = QueueRef(namespace, "q", IdSource())

    def plan() -> Plan[Sent]:
        call = send_call(ref, [NewMessage("m", b"\n{}")], SendOptions())
        return (yield SendCall(call, ref.keys.meta, elsewhere=True))

    async def work() -> None:
        async with AsyncClient(factory, give_up_s=20) as client:
            await client.run(plan())

    def work_in_threads() -> None:
        with Client(factory, give_up_s=20) as client:
            client.run(plan())

    with within(10), pytest.raises(UnavailableError):
        asyncio.run(work()) if way == "async" else work_in_threads()


def test_one_queue_may_have_its_own_limit(store_url: str, namespace: str) -> None:
    """A web request gives up soon; the rest of the program retries for a minute."""
    with ChaosProxy(store_url) as proxy:
        app = QWorker(namespace, url=proxy.url)
        proxy.blackhole = True
        with within(3.5), pytest.raises(ServerError):
            app.queue("q", give_up="200ms").send("x")
        assert app.queue("q", give_up="200ms") is app.queue("q", give_up=0.2)
        assert (app.queue("q").give_up_s, app.give_up_s) == (60.0, 60.0)
        app.close()


def test_a_server_that_is_back_in_time_costs_no_error(store_url: str, namespace: str) -> None:
    """A short limit does not cut off a server that replies slowly."""
    with ChaosProxy(store_url) as proxy:
        app = QWorker(namespace, url=proxy.url, give_up="2s")
        proxy.delay_s = 0.03
        queue = app.queue("q")
        queue.send("x")
        messages: list[Message] = queue.receive()
        assert queue.ack(*messages) == messages
        app.close()


def test_a_wait_is_not_cut_short(store_url: str, namespace: str) -> None:
    """Waiting for messages or replicas is not a failure: it may take longer than the limit."""
    app = QWorker(namespace, url=store_url, give_up="100ms")
    queue = app.queue("q")
    started = time.monotonic()
    assert queue.receive(wait="300ms") == []
    assert time.monotonic() - started >= 0.3
    queue.send("x")
    # More than any server here has.
    assert queue.replicated(9, within="200ms") < 9
    app.close()


def test_a_full_server_refuses_at_once(namespace: str) -> None:
    """Waiting does not help until messages are consumed: nothing was stored, and the caller decides."""
    with servers.start("valkey") as server, Client(ConnectionFactory(server.url)) as client:
        queue = Queue(client, namespace, "q")
        queue.send("before")
        server.redis().config_set("maxmemory", 1)
        with within(10), pytest.raises(OutOfMemoryError, match="consume messages"):
            queue.send("x")
        assert queue.inspect().ready == 1


def test_the_environment_sets_the_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    """The app's option overrides QWORKER_GIVE_UP; errors name either."""
    monkeypatch.setenv("QWORKER_GIVE_UP", "1500ms")
    assert QWorker().give_up_s == 1.5
    assert QWorker(give_up="2s").give_up_s == 2.0
    monkeypatch.setenv("QWORKER_GIVE_UP", "soon")
    with pytest.raises(InvalidOptionError, match="QWORKER_GIVE_UP"):
        _ = QWorker().give_up_s
    for wrong in ("10ms", -1, "2d"):
        with pytest.raises(InvalidOptionError, match=r"give_up: .*100ms to 1d"):
            QWorker(give_up=wrong)


@pytest.mark.parametrize("way", ["flag", "environment", "file"])
def test_the_command_line_sets_the_limit(
    store_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, way: str
) -> None:
    """By a global option, by the environment and by the file; three seconds otherwise."""
    monkeypatch.chdir(tmp_path)
    url = f"redis://127.0.0.1:{free_port()}"
    words = ["--url", url, "queue", "ls"]
    environ: dict[str, str] = {}
    match way:
        case "flag":
            words += ["--give-up", "200ms"]
        case "environment":
            environ["QWORKER_GIVE_UP"] = "200ms"
        case _:
            (tmp_path / "qworker.toml").write_text('give_up = "200ms"\n')
    with within(2.8):
        ran = CliRunner().invoke(cli, words, env=environ)
    assert ran.exit_code not in (0, 2)
    assert "was not reached" in ran.stderr


# -- connections that the server has closed ------------------------------------------------------


@contextmanager
def killed_later(namespace: str) -> Iterator[tuple[QWorker, Callable[[], None]]]:
    """An app of its own server, and what kills the server."""
    # A relay would accept connections in place of the server.
    with servers.start("valkey", guarded=False, far=False) as server:
        app = QWorker(namespace, url=server.url, give_up="300ms")

        def kill() -> None:
            os.kill(int(server.redis().info("server")["process_id"]), signal.SIGKILL)

        yield app, kill
        app.close()


@pytest.mark.slow
def test_a_connection_that_the_server_has_closed_leaves_no_call_in_doubt(namespace: str) -> None:
    """The end of a pooled connection is seen before a call is written to it: certainly nothing was sent."""
    with killed_later(namespace) as (app, kill):
        queue = app.queue("q")
        queue.send("before")
        kill()
        (lane,) = queue.client._lanes._free
        (server,) = lane.connections._servers.values()
        until(lambda: select.select([server.connection._sock], [], [], 0)[0])
        for call in (lambda: queue.send("x"), queue.pop, queue.inspect):
            with pytest.raises(UnavailableError):
                call()


def test_an_async_connection_that_the_server_has_closed_leaves_no_call_in_doubt(
    namespace: str,
) -> None:
    """As soon as the event loop has read the end."""

    async def work(app: QWorker, kill: Callable[[], None]) -> None:
        queue = app.aqueue("q")
        await queue.send("before")
        kill()
        (lane,) = queue.client._free
        (server,) = lane.connections._servers.values()
        while not server.connection._reader.at_eof():
            await asyncio.sleep(0.01)
        for call in (queue.send("x"), queue.pop(), queue.inspect()):
            with pytest.raises(UnavailableError):
                await call
        await app.aclose()

    with killed_later(namespace) as (app, kill):
        asyncio.run(work(app, kill))


def test_calls_go_over_the_connection_that_is_there(namespace: str) -> None:
    """What looks at a connection before a call takes an idle one for open, also of a client for event loops."""
    with servers.start("valkey", far=False) as server, server.redis() as raw:

        def connections() -> int:
            return int(raw.info("stats")["total_connections_received"])

        async def work() -> None:
            queue = app.aqueue("q")
            await queue.send("first")
            before = connections()
            for _ in range(5):
                await queue.send("again")
            assert connections() == before
            await app.aclose()

        app = QWorker(namespace, url=server.url)
        queue = app.queue("q")
        queue.send("first")
        before = connections()
        for _ in range(5):
            queue.send("again")
        assert connections() == before
        asyncio.run(work())
        app.close()
