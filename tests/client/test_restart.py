"""A server that comes back at the same address without the last settles: clients repeat them."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
import redis

from qworker.client.execute import settle_replay
from qworker.client.execute.aio import AsyncClient
from qworker.client.execute.sync import Client
from qworker.client.queue import AsyncQueue, Queue
from qworker.engine.raw import raw
from qworker.engine.settle import Outcomes, settle
from qworker.store.connections import ConnectionFactory, ServerConnection
from qworker.store.transport import connection_classes
from qworker.store.url import ServerURL
from qworker.wire.keys import QueueKeys
from tests import servers
from tests.ports import free_ports
from tests.topologies.servers import Node, until


class Restarted(Node):
    """A server that keeps only what `save` has written to its disk."""

    def __init__(self, engine: str, directory: Path) -> None:
        (port,) = free_ports(1)
        binary = servers.binary_of(engine)
        words = (binary, "--port", str(port), "--bind", "127.0.0.1", "--save", "")
        super().__init__([*words, "--dir", str(directory)], port, directory)
        self.start()
        self.answers()

    @property
    def url(self) -> str:
        return f"redis://127.0.0.1:{self.port}"

    def answers(self) -> None:
        until(lambda: self.redis().info("server")["process_id"] == self.pid)

    def restart(self, connections: int) -> None:
        """Kill it and start it again; others connect to it before the client does."""
        self.kill()
        self.start()
        self.answers()
        for _ in range(connections):
            with redis.Redis(port=self.port) as other:
                other.ping()


@pytest.fixture(
    params=[
        name
        if name == "valkey"
        else pytest.param(
            name,
            marks=pytest.mark.nightly("test_settles_are_repeated_to_a_server_that_lost_them"),
        )
        for name, _ in servers.engines()
    ]
)
def server(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Restarted]:
    made = Restarted(request.param, tmp_path)
    try:
        yield made
    finally:
        made.close()


@pytest.mark.parametrize("others", [0, 60])
@pytest.mark.slow
def test_settles_are_repeated_to_a_server_that_lost_them(
    server: Restarted, namespace: str, others: int
) -> None:
    """Also if the client id of the new connection is higher than that of the old run, and at each further loss."""
    with Client(ConnectionFactory(server.url)) as client:
        queue = Queue(client, namespace, "q")
        queue.send_many(range(10))
        messages = queue.receive(10)
        server.redis().save()
        assert len(queue.ack(*messages)) == 10
        for _ in range(2):
            server.restart(others)
            queue.send("later")
            inspection = queue.inspect()
            assert (inspection.unacked, inspection.ready) == (0, 1)


@pytest.mark.slow
def test_async_settles_are_repeated(server: Restarted, namespace: str) -> None:
    """The async client remembers its settles as the sync one does."""

    async def work() -> None:
        async with AsyncClient(ConnectionFactory(server.url)) as client:
            queue = AsyncQueue(client, namespace, "q")
            await queue.send_many(range(10))
            messages = await queue.receive(10)
            assert len(messages) == 10
            server.redis().save()
            await queue.ack(*messages)  # returns none of them if its reply was lost
            assert (await queue.inspect()).unacked == 0
            server.restart(60)
            await queue.send("later")
            inspection = await queue.inspect()
            assert (inspection.unacked, inspection.ready) == (0, 1)

    asyncio.run(work())


def test_a_broken_connection_to_the_same_run_repeats_nothing(
    server: Restarted, namespace: str
) -> None:
    """Settles that the server knows are not repeated: each would count as stale."""
    with Client(ConnectionFactory(server.url)) as client:
        queue = Queue(client, namespace, "q")
        queue.send_many(range(10))
        assert len(queue.ack(*queue.receive(10))) == 10
        server.redis().client_kill_filter(_type="normal", skipme=True)
        queue.send("later")
        assert queue.inspect().stats.get("stale", 0) == 0


@pytest.mark.parametrize("way", ["sync", "async"])
@pytest.mark.slow
def test_settles_are_repeated_in_few_trips_however_often_connections_break(
    server: Restarted, namespace: str, way: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """From far away each trip is time in which a worker does nothing else; what was not repeated is kept."""
    monkeypatch.setattr(settle_replay, "_TRIP_CALLS", 50)
    kind = connection_classes(ServerURL.parse(server.url))[way == "async"]
    write, repeated = kind.send_packed_command, list[int]()

    def break_first(connection: Any, words: Any, **options: Any) -> Any:
        settles = (words if isinstance(words, bytes) else b"".join(words)).count(b"EVALSHA")
        if settles:
            repeated.append(settles)
        if settles in (50, 18) and repeated.count(settles) == 1:
            raise redis.ConnectionError("broken")
        return write(connection, words, **options)

    async def work() -> int:
        async with AsyncClient(ConnectionFactory(server.url)) as client:
            queue = AsyncQueue(client, namespace, "q")
            await queue.send_many(range(70))
            messages = await queue.receive(70)
            server.redis().save()
            for message in messages:
                await queue.ack(message)
            server.restart(0)
            monkeypatch.setattr(kind, "send_packed_command", break_first)
            return (await queue.inspect()).unacked

    def work_in_threads() -> int:
        with Client(ConnectionFactory(server.url)) as client:
            queue = Queue(client, namespace, "q")
            queue.send_many(range(70))
            messages = queue.receive(70)
            server.redis().save()
            for message in messages:
                queue.ack(message)
            server.restart(0)
            monkeypatch.setattr(kind, "send_packed_command", break_first)
            return queue.inspect().unacked

    assert (asyncio.run(work()) if way == "async" else work_in_threads()) == 0
    # Alone, as a script may have to be loaded, and then 50 at a time: twice, because connections break.
    assert [number for number in repeated if number > 1] == [50, 50, 18, 17]


@pytest.mark.parametrize(("ahead", "unacked"), [(-10, 0), (0, 0), (10, 10)])
@pytest.mark.slow
def test_a_server_that_does_not_report_its_run_is_known_by_its_client_ids(
    server: Restarted, namespace: str, ahead: int, unacked: int
) -> None:
    """A user without INFO still notices a new run, unless its connections have higher ids: no run gives one twice."""
    for _ in range(30):
        with redis.Redis(port=server.port) as other:
            other.ping()

    def forbid() -> None:
        words = ("SETUSER", "plain", "on", "nopass", "~*", "+@all", "-info")
        server.ask("ACL", *words)

    forbid()
    url = f"redis://plain:x@127.0.0.1:{server.port}"
    with Client(ConnectionFactory(url)) as client:
        queue = Queue(client, namespace, "q")
        queue.send_many(range(10))
        messages = queue.receive(10)
        server.redis().save()
        queue.ack(*messages)
        before = client.execute(raw("CLIENT", "ID"))
        server.kill()
        server.start()
        server.answers()
        forbid()
        last = 0
        while last < before + ahead - 1:
            with redis.Redis(port=server.port) as other:
                last = other.client_id()
        queue.send("later")
        assert client.execute(raw("CLIENT", "ID")) == before + ahead
        assert queue.inspect().unacked == unacked
        refused = [
            entry for entry in server.redis().acl_log() if entry["object"].startswith("info")
        ]
        assert sum(entry["count"] for entry in refused) <= 1


def test_repetitions_take_no_room_from_later_settles(
    namespace: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """However often a server is lost, all settles of the last seconds are repeated to the next one."""
    command = settle(QueueKeys(namespace, "q"), [Outcomes("L", acks=["1"])])
    monkeypatch.setattr(settle_replay, "_MAX_WORDS", 5 * len(command.args))
    factory = ConnectionFactory("redis://127.0.0.1:1")
    address = factory.node()
    assert address is not None
    recent = settle_replay.RecentSettles(factory)
    runs = [ServerConnection(None, address, 1, f"run {number}") for number in range(10)]
    for _ in range(3):
        recent.note(command, runs[0])
    for run in runs[1:]:
        with suppress(redis.ConnectionError), recent.repeating(run):
            raise redis.ConnectionError("lost again")
    recent.note(command, runs[0])
    with recent.repeating(runs[-1]) as repetition:
        assert sum(len(trip) for trip in repetition.trips()) == 4
