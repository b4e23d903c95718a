"""What workers report and operators ask for on a full server."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator

import pytest

from qworker.client.execute.aio import AsyncClient
from qworker.client.execute.sync import Client
from qworker.client.namespace.owners import read_owners
from qworker.client.namespace.paused_tasks import pause_task, read_paused_tasks, resume_task
from qworker.client.namespace.requests import ask_workers, drain_workers
from qworker.consumer.supervisor.operators.control import Control
from qworker.consumer.supervisor.operators.presence import WorkerPresence
from qworker.daemon.schedules import server_now_ms
from qworker.engine.note import keep_note
from qworker.engine.scripts import SCRIPT_NAMES, load_script
from qworker.errors import OutOfMemoryError
from qworker.store.connections import ConnectionFactory
from qworker.wire.keys import answer_key, control_key, leaving_key, workers_key
from tests import servers
from tests.servers import Server

pytestmark = pytest.mark.bad_input("server: out of memory")


@pytest.fixture(params=["valkey", "redis"])
def server(request: pytest.FixtureRequest) -> Iterator[Server]:
    """A server of each engine."""
    with servers.start(request.param, "--maxmemory-policy", "noeviction") as started:
        yield started


@pytest.fixture
def client(server: Server) -> Iterator[Client]:
    """A client of it."""
    with Client(ConnectionFactory(server.url)) as opened:
        yield opened


def fill(server: Server) -> None:
    """Let the server be over maxmemory."""
    server.redis().config_set("maxmemory", 1)


class Operator:
    """Asks as an operator does."""

    namespace = "ns"

    def __init__(self, client: Client) -> None:
        self.client = client
        self.now_ms = client.now_ms
        self.ask = client.ask
        self.note = client.note


def test_a_full_server_takes_the_document(
    server: Server, client: Client, logs: list[dict[str, object]]
) -> None:
    """A new worker is listed, and its app is known as alive for its schedules."""
    presence = WorkerPresence(client, "ns", "app", owns=True)
    fill(server)
    assert presence.write([], ["q"], 1, 0) is False
    [document] = server.redis().hvals(workers_key("ns"))
    assert b'"queues":["q"]' in document
    assert read_owners(client.execute, "ns").keys() == {"app"}
    assert logs == []


def test_a_worker_is_drained_on_a_full_server(server: Server, client: Client) -> None:
    """The request is stored, and the worker sees it."""
    presence = WorkerPresence(client, "ns", "app")
    assert presence.write([], ["q"], 1, 0) is False
    fill(server)
    drain_workers(Operator(client), [presence.name, "other"], 17)
    assert server.redis().hgetall(leaving_key("ns"))[b"other"] == b"17"
    assert presence.write([], ["q"], 1, 0) is True


@pytest.mark.slow
def test_a_task_is_paused_on_a_full_server(server: Server, client: Client) -> None:
    """Once, and resumed."""
    fill(server)
    assert pause_task(client.execute, "ns", "slow", 5) is True
    assert pause_task(client.execute, "ns", "slow", 6) is False
    assert read_paused_tasks(client.execute, "ns") == {"slow": 5}
    assert resume_task(client.execute, "ns", "slow") is True


def test_a_worker_answers_on_a_full_server(server: Server, client: Client) -> None:
    """The request comes to it, and its answer back; both expire."""
    fill(server)
    control = Control(client, "ns", "w", {"echo": lambda _, reply: reply(True, "here")})
    answers = ask_workers(Operator(client), ["w"], "echo", within_s=0.1)
    assert list(answers) == []
    control.check(server_now_ms(client.execute))
    [key] = server.redis().keys(answer_key("ns", "*"))
    assert b"here" in server.redis().lrange(key, 0, -1)[0]
    for name in (key, control_key("ns", "w")):
        assert 0 < server.redis().pttl(name) <= 30_000


def test_async_clients_note_on_a_full_server_too(server: Server) -> None:
    """In the same way."""
    fill(server)

    async def keep() -> int:
        client = AsyncClient(ConnectionFactory(server.url))
        try:
            kept: int = await client.execute(keep_note("HSET", "ns:notes", "a", 1))
        finally:
            await client.close()
        return kept

    assert asyncio.run(keep()) == 1
    assert server.redis().hgetall("ns:notes") == {b"a": b"1"}


def test_notes_of_one_trip_are_kept_on_a_full_server(server: Server, client: Client) -> None:
    """Each by itself after the trip."""
    fill(server)
    commands = [keep_note("HSET", f"ns:notes{number}", "a", 1) for number in range(3)]
    assert client.execute_each(commands) == [1, 1, 1]


def test_a_server_with_room_is_asked_without_a_script(server: Server, client: Client) -> None:
    """A server that lacks the script, as beside a daemon of an older version, loses nothing by it."""
    assert client.execute(keep_note("HSET", "ns:notes", "a", 1)) == 1
    assert server.redis().script_exists(load_script("note").sha) == [False]


@pytest.mark.skipif(servers.GUARDED, reason="it has users of its own")
@pytest.mark.slow
def test_a_full_server_without_the_script_refuses_as_before(
    server: Server, logs: list[dict[str, object]]
) -> None:
    """A worker may not load it: the refusal is logged once, and a request to leave that was stored before is seen."""
    redis = server.redis()
    redis.execute_command("ACL", "SETUSER", "w", "on", "nopass", "+@all", "-script|load", "~*")
    path = server.url.removeprefix("unix://")
    with Client(ConnectionFactory(f"unix://w:any@{path}"), give_up_s=0.5) as client:
        presence = WorkerPresence(client, "ns", "app", owns=True)
        redis.hset(leaving_key("ns"), presence.name, "1")
        fill(server)
        assert presence.write([], ["q"], 1, 0) is True
        assert presence.write([], ["q"], 1, 0) is True
        with pytest.raises(OutOfMemoryError, match="consume messages"):
            client.execute(keep_note("HSET", "ns:notes", "a", 1))
    [line] = [line for line in logs if line["event"] == "presence_unwritten"]
    assert "maxmemory" in str(line["problem"])
    assert "note" in SCRIPT_NAMES
