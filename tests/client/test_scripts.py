"""Scripts that a server lacks: clients load them if they may, else wait for them, and name them in the error."""

from __future__ import annotations

import asyncio
import re
import threading
from collections.abc import Iterator
from typing import Final

import pytest
import redis

from qworker.client.execute.aio import AsyncClient
from qworker.client.execute.roundtrip import LOADS
from qworker.client.execute.sync import Client
from qworker.client.queue import AsyncQueue, Queue
from qworker.client.queue_ref import QueueRef
from qworker.daemon.preloading import Preloader, load_missing_scripts, missing_scripts
from qworker.engine.acl import Server as AclServer
from qworker.engine.acl import User, write_users
from qworker.engine.inspect import inspect
from qworker.engine.raw import raw
from qworker.engine.scripts import SCRIPT_NAMES
from qworker.errors import InDoubtError, RetryRule, ScriptsNotLoadedError, UnavailableError
from qworker.store.connections import ConnectionFactory
from qworker.wire.ids import IdSource
from qworker.wire.keys import QueueKeys
from tests import servers
from tests.chaos import ChaosProxy

#: The last attempt before a client gives up has 50 ms. On a busy machine the server may not answer by then: that is
#: another error, about that machine, and the call is made again.
TRIES: Final = 20


@pytest.fixture(
    scope="module",
    params=[
        "valkey",
        pytest.param(
            "redis", marks=pytest.mark.nightly("test_a_script_that_is_gone_again_is_loaded_again")
        ),
    ],
)
def server(request: pytest.FixtureRequest) -> Iterator[servers.Server]:
    """A separate server, since the tests flush its scripts."""
    with servers.start(request.param, guarded=False) as server:
        yield server


def stored(client: Client, namespace: str) -> int:
    """The number of messages of `mail` by the server's counter."""
    words = ("HGET", QueueKeys(namespace, "mail").stats, "stored")
    return client.execute(raw(*words, decode=lambda reply: int(reply or 0)))


class Forgetful:
    """A proxy behind which the server forgets its scripts before each of the next `left` calls of one."""

    def __init__(self, proxy: ChaosProxy, control: redis.Redis) -> None:
        self.left = self.done = 0
        self.url = proxy.url
        self._control, self._lock = control, threading.Lock()
        proxy.on_request = self._request

    def _request(self, data: bytes) -> None:
        with self._lock:
            if self.left and b"EVALSHA" in data:
                self.left -= 1
                self.done += 1
                self._control.script_flush()


@pytest.fixture
def forgetful(server: servers.Server) -> Iterator[Forgetful]:
    with ChaosProxy(server.url) as proxy:
        yield Forgetful(proxy, server.redis())


@pytest.mark.parametrize("times", [1, 2, 3, 6])
@pytest.mark.slow
def test_a_script_that_is_gone_again_is_loaded_again(forgetful, namespace, times):
    """SCRIPT FLUSH between a client's LOAD and its call, several times over: sent once, received, acked."""
    with Client(ConnectionFactory(forgetful.url)) as client:
        queue = Queue(client, namespace, "mail")
        forgetful.left = times
        queue.send({"n": 1})
        assert forgetful.done == times
        forgetful.left = times
        [message] = queue.receive(1)
        forgetful.left = times
        queue.ack(message)
        assert stored(client, namespace) == 0


@pytest.mark.slow
def test_a_script_that_is_gone_again_is_loaded_again_by_asyncio(forgetful, namespace):
    """The same for the asynchronous client."""

    async def work() -> None:
        async with AsyncClient(ConnectionFactory(forgetful.url)) as client:
            queue = AsyncQueue(client, namespace, "mail")
            forgetful.left = 6
            await queue.send({"n": 1})
            forgetful.left = 6
            [message] = await queue.receive(1)
            await queue.ack(message)

    asyncio.run(work())
    assert forgetful.done == 12


@pytest.mark.parametrize("way", ["sync", "async"])
def test_a_single_attempt_loads_a_script_several_times(forgetful, namespace, way):
    """A caller that has no time for a second attempt does not hear of a SCRIPT FLUSH either."""
    command = inspect(QueueKeys(namespace, "mail"))

    async def work() -> None:
        async with AsyncClient(ConnectionFactory(forgetful.url)) as client:
            await client.execute(command, give_up_s=0)

    forgetful.left = LOADS
    if way == "async":
        asyncio.run(work())
    else:
        with Client(ConnectionFactory(forgetful.url)) as client:
            client.execute(command, give_up_s=0)
    assert forgetful.done == LOADS


def test_scripts_that_never_stay_are_named(forgetful, namespace):
    """A server that keeps forgetting them is given up in time, with an error that says so and may be retried."""
    forgetful.left = 10**6

    def work() -> None:
        with Client(ConnectionFactory(forgetful.url), give_up_s=0.2) as client:
            queue = Queue(client, namespace, "mail")
            for _ in range(TRIES):
                try:
                    queue.send({"n": 1})
                except ScriptsNotLoadedError:
                    raise
                except (InDoubtError, UnavailableError):
                    continue

    with pytest.raises(ScriptsNotLoadedError, match="keeps forgetting them") as caught:
        work()
    assert caught.value.retry is RetryRule.LATER
    forgetful.left = 0
    with Client(ConnectionFactory(forgetful.url)) as client:
        assert stored(client, namespace) == 0


@pytest.mark.slow
def test_scripts_that_never_stay_are_named_by_asyncio(forgetful, namespace):
    """The same for the asynchronous client."""
    forgetful.left = 10**6

    async def work() -> None:
        async with AsyncClient(ConnectionFactory(forgetful.url), give_up_s=0.2) as client:
            queue = AsyncQueue(client, namespace, "mail")
            for _ in range(TRIES):
                try:
                    await queue.send({"n": 1})
                except ScriptsNotLoadedError:
                    raise
                except (InDoubtError, UnavailableError):
                    continue

    with pytest.raises(ScriptsNotLoadedError, match="keeps forgetting them"):
        asyncio.run(work())


def test_calls_in_one_trip_are_made_by_themselves(forgetful, namespace):
    """Calls of one trip whose script is missing are made one by one."""
    with Client(ConnectionFactory(forgetful.url)) as client:
        ids = IdSource()
        queues = [QueueRef(namespace, f"q{number}", ids) for number in range(3)]
        forgetful.left = 5
        inspections = client.execute_each([inspect(queue.keys) for queue in queues])
    assert [inspection.queue for inspection in inspections] == ["q0", "q1", "q2"]
    assert forgetful.left == 0


class Roles:
    """A server with a user that may not load scripts."""

    def __init__(self, server: servers.Server, namespace: str) -> None:
        roles = ["producer", "consumer"]
        user = User(name="caller", roles=roles, password="secret")
        [line] = write_users([user], namespace, server=AclServer.parse(server.version))
        words = re.findall(r"\([^)]*\)|\S+", line)
        self.control = server.redis()
        self.control.execute_command("ACL", "SETUSER", *words[1:])
        self.url = server.url.replace("unix://", "unix://caller:secret@")
        self.factory = ConnectionFactory(server.url)


@pytest.mark.slow
def test_a_caller_that_may_not_load_waits_for_the_daemon(server, namespace):
    """It gives up with an error that names the next step; once a daemon or a deploy loads them, it continues."""
    roles = Roles(server, namespace)
    roles.control.script_flush()
    with (
        Client(ConnectionFactory(roles.url), give_up_s=0.2) as client,
        pytest.raises(ScriptsNotLoadedError, match="qworker scripts load"),
    ):
        Queue(client, namespace, "mail").send({"n": 1})
    with Client(roles.factory) as daemon, Client(ConnectionFactory(roles.url)) as client:
        [node] = daemon.factory.masters()
        assert missing_scripts(daemon, node) == list(SCRIPT_NAMES)
        sending = threading.Thread(target=Queue(client, namespace, "mail").send, args=({"n": 1},))
        sending.start()
        clock = iter((0.0, 0.0, 0.5, 1.0, 1.0))
        preloader = Preloader(daemon, clock=lambda: next(clock))
        assert preloader.keep() == len(SCRIPT_NAMES)
        sending.join()
        assert stored(client, namespace) == 1
        roles.control.script_flush()
        assert preloader.keep() == 0, "not yet"
        assert preloader.keep() == len(SCRIPT_NAMES)
        assert load_missing_scripts(daemon, node) == []
