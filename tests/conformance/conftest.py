"""Calls queues, sync and async by turns, so that each test is written once."""

from __future__ import annotations

import asyncio
import inspect
import json
import os
import socket
from collections.abc import Callable, Coroutine, Iterator
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from qworker import QWorker
from qworker.cli.main import cli
from qworker.client.execute.aio import AsyncClient
from qworker.client.execute.sync import Client
from qworker.client.queue import AsyncQueue, Queue
from qworker.engine.raw import raw
from qworker.store.connections import ConnectionFactory
from qworker.wire.keys import QueueKeys
from tests import servers
from tests.consumer.driving import until
from tests.consumer.workers import Lab


class Called:
    """An object whose coroutine methods are run to their end; everything else is passed through."""

    def __init__(self, target: Any, finish: Callable[[Coroutine[Any, Any, Any]], Any]) -> None:
        self._target, self._finish = target, finish

    def __getattr__(self, name: str) -> Any:
        attribute = getattr(self._target, name)
        if not callable(attribute):
            return attribute

        def call(*args: Any, **options: Any) -> Any:
            result = attribute(*args, **options)
            return self._finish(result) if inspect.iscoroutine(result) else result

        return call


class Caller:
    """Calls the queues of a namespace of the test's own. `way` is `sync` or `async`: how `queue()` is called."""

    def __init__(self, url: str, namespace: str, way: str) -> None:
        self.url, self.namespace, self.way = url, namespace, way
        factory = ConnectionFactory(url)
        self._runner = asyncio.Runner()
        self.sync_client = Client(factory, give_up_s=5.0)
        self.client: Any = self.sync_client
        if way == "async":
            self.client = self._runner.run(_async_client(factory))

    def finish(self, coroutine: Coroutine[Any, Any, Any]) -> Any:
        """Run a coroutine on the loop of the caller."""
        return self._runner.run(coroutine)

    def called(self, target: Any) -> Any:
        """Call the methods of an object alike, sync or async."""
        return Called(target, self.finish)

    def queue(self, name: str = "emails") -> Any:
        """The low-level API of a queue: `Queue`, or `AsyncQueue` with each call run to its end."""
        if self.way == "sync":
            return Queue(self.sync_client, self.namespace, name)
        return self.called(AsyncQueue(self.client, self.namespace, name))

    def keys(self, name: str = "emails") -> QueueKeys:
        """The names of the keys of a queue."""
        return QueueKeys(self.namespace, name)

    def ask(self, *words: str | int | bytes) -> Any:
        """Send one plain command of Redis; returns its reply."""
        return self.sync_client.execute(raw(*words))

    def now_ms(self) -> int:
        """The server's clock."""
        seconds, microseconds = self.ask("TIME")
        return int(seconds) * 1000 + int(microseconds) // 1000

    def cli(self, *args: str, stdin: str | bytes | None = None, code: int = 0) -> str:
        """Run a command line in this process; returns what it printed. `code` is what it must exit with."""
        wiped: dict[str, str | None] = {
            name: None for name in os.environ if name.startswith(("QWORKER_", "REDIS_"))
        }
        given = {"QWORKER_URL": self.url, "QWORKER_NAMESPACE": self.namespace}
        result = CliRunner().invoke(cli, list(args), input=stdin, env={**wiped, **given})
        assert result.exit_code == code, f"{args} exited {result.exit_code}: {result.output}"
        return result.output if code else result.stdout

    def cli_json(self, *args: str, stdin: str | bytes | None = None) -> Any:
        """Run a command line with `--json`; returns the document."""
        return json.loads(self.cli(*args, "--json", stdin=stdin))

    def close(self) -> None:
        """Close the clients."""
        if self.way == "async":
            self.finish(self.client.close())
        self.sync_client.close()
        self._runner.close()


async def _async_client(factory: ConnectionFactory) -> AsyncClient:
    return AsyncClient(factory, give_up_s=5.0)


@pytest.fixture(params=["sync", "async"])
def caller(request: pytest.FixtureRequest, store_url: str, namespace: str) -> Iterator[Caller]:
    """A namespace of the test's own; the test runs once for each way to call."""
    made = Caller(store_url, namespace, request.param)
    yield made
    made.close()


@pytest.fixture(params=["sync", "async"])
def pair(request: pytest.FixtureRequest, namespace: str) -> Iterator[tuple[Caller, Any]]:
    """A caller of a server that has one replica, and a client of the replica."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    with (
        servers.start("valkey", "--port", str(port), "--repl-diskless-sync-delay", "0") as master,
        servers.start("valkey", "--replicaof", "127.0.0.1", str(port)) as replica,
    ):
        redis = master.redis()
        until(lambda: redis.wait(1, 100) == 1)
        caller = Caller(master.url, namespace, request.param)
        yield caller, replica
        caller.close()


@pytest.fixture
def lab(store_url: str, namespace: str, tmp_path: Path) -> Iterator[Lab]:
    """A laboratory for workers in their own processes."""
    lab = Lab(store_url, namespace, tmp_path)
    yield lab
    lab.close()


@pytest.fixture
def app(caller: Caller) -> Iterator[QWorker]:
    """An app on the caller's server and namespace."""
    app = QWorker(caller.namespace, url=caller.url)
    yield app
    app.close()
