"""A node of a Cluster is away and the map of slots must be read again: calls for queues of other nodes are made."""

from __future__ import annotations

import asyncio
import json
import os
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import pytest
from click.testing import CliRunner, Result
from redis.crc import key_slot
from structlog.testing import capture_logs

from qworker import QWorker, ResultTimeoutError, chain, group
from qworker.cli.main import cli
from qworker.client.execute.aio import AsyncClient
from qworker.client.execute.backoff import AwayServers
from qworker.client.execute.sync import Client
from qworker.client.plan import Plan
from qworker.client.queue import Queue
from qworker.consumer.board.board import Board
from qworker.consumer.board.clock import boot_time
from qworker.consumer.board.states import Mark
from qworker.consumer.child.connection import Connection
from qworker.consumer.child.receive.pipeline import Pipeline
from qworker.consumer.supervisor.lease_thread import LeaseThread
from qworker.consumer.supervisor.leases.lease_keeper import LeaseKeeper
from qworker.consumer.supervisor.leases.postmortem import Death
from qworker.daemon.reaper import Reaper
from qworker.engine.attempt import Attempt
from qworker.engine.command import Command, Soon, Together
from qworker.engine.inspect import Inspection, existing, inspect
from qworker.engine.raw import raw
from qworker.engine.reap import sweep
from qworker.engine.receive import settle_receive
from qworker.engine.scripts import load_script
from qworker.errors import (
    AccessDeniedError,
    InDoubtError,
    QworkerError,
    ServerError,
    UnavailableError,
)
from qworker.store.connections import ConnectionFactory
from qworker.store.nodes import Address
from qworker.testing import drain
from qworker.wire.control import Answer, read_request, write
from qworker.wire.keys import (
    QueueKeys,
    answer_key,
    control_key,
    owners_key,
    queues_key,
    reapers_key,
    workers_key,
)
from tests.timing import Watch
from tests.topologies.servers import Cluster, Node, until

pytestmark = [pytest.mark.slow, pytest.mark.timeout(120)]

GIVE_UP_S = 1.0
#: Queues of the lost node. Waiting for it for each of them would take ten times as long as waiting once.
LOST = 10
#: Several times what a frozen node is waited for; each further wait for it is as long, or 4 s.
LONGEST_S = 6.0


@pytest.fixture
def client(nodes: Cluster) -> Iterator[Client]:
    """One that has read the map."""
    with Client(ConnectionFactory(nodes.url)) as client:
        client.now_ms()
        yield client


@contextmanager
def without_failover(nodes: Cluster) -> Iterator[Node]:
    """A master whose replica does not take over."""
    lost = nodes.masters()[0]
    replica = nodes.replica_of(lost)
    replica.ask("CONFIG", "SET", "cluster-replica-no-failover", "yes")
    yield lost
    replica.ask("CONFIG", "SET", "cluster-replica-no-failover", "no")
    nodes.wait_until_whole()


@pytest.fixture
def away(nodes: Cluster) -> Iterator[Node]:
    """A master that is gone, and its replica does not take over."""
    with without_failover(nodes) as lost:
        lost.kill()
        yield lost
        lost.start()


@pytest.fixture
def frozen(nodes: Cluster) -> Iterator[Node]:
    """A master that accepts connections and answers nothing, and its replica does not take over."""
    with without_failover(nodes) as lost:
        lost.pause()
        yield lost
        lost.resume()


def queues(nodes: Cluster, namespace: str, lost: Node, there: int, others: int) -> list[QueueKeys]:
    """Queues of the lost node, followed by queues of others."""
    mine: list[QueueKeys] = []
    rest: list[QueueKeys] = []
    for keys in (QueueKeys(namespace, f"q{n}") for n in range(999)):
        (mine if nodes.master_of(keys.meta) is lost else rest).append(keys)
        if len(mine) >= there and len(rest) >= others:
            break
    return mine[:there] + rest[:others]


def namespace_of(
    nodes: Cluster, namespace: str, lost: Node, keys: list[Callable[[str], str]]
) -> str:
    """A namespace of whose own keys only these are on the lost node."""
    return next(
        name
        for name in (f"{namespace}{number}" for number in range(999))
        if [
            key
            for key in (queues_key, owners_key, workers_key, reapers_key)
            if nodes.master_of(key(name)) is lost
        ]
        == keys
    )


def lose_the_map(client: Client, keys: QueueKeys) -> None:
    """Fail once, so that the map must be read before the next call."""
    with pytest.raises(ServerError):
        client.execute(inspect(keys), give_up_s=GIVE_UP_S)


@pytest.fixture
def places(
    nodes: Cluster, namespace: str, client: Client, request: pytest.FixtureRequest
) -> list[QueueKeys]:
    """Queues of the lost node and five of others, found before it is lost; the client must read the map again."""
    found = queues(nodes, namespace, nodes.masters()[0], LOST, 5)
    for keys in found:
        Queue(client, namespace, keys.name).send({"n": 1})
    request.getfixturevalue("away")
    lose_the_map(client, found[0])
    return found


def test_commands_in_one_trip(client: Client, places: list[QueueKeys]) -> None:
    """Each node that is away is waited for once; queues of others have their results."""
    began = time.monotonic()
    results = client.execute_each([*map(inspect, places)], give_up_s=GIVE_UP_S)
    assert time.monotonic() - began < LONGEST_S
    assert all(isinstance(result, QworkerError) for result in results[:LOST])
    assert all(isinstance(result, Inspection) for result in results[LOST:]), results


def test_steps_that_hold_nobody_up(client: Client, places: list[QueueKeys]) -> None:
    """A node that has failed is left alone for a while, the others are not."""

    def visit() -> Plan[list[bool]]:
        served = []
        for keys in places:
            try:
                yield Soon(inspect(keys), GIVE_UP_S)
                served.append(True)
            except QworkerError:
                served.append(False)
                # Another call has failed: the map must be read again.
                client.factory.failed(UnavailableError("away"), Address("127.0.0.1", 1))
        return served

    assert client.run(visit()) == [False] * LOST + [True] * 5


def test_a_command_of_many_queues_that_no_node_serves(nodes: Cluster, namespace: str) -> None:
    """It raises, rather than count nothing."""
    for node in nodes.nodes:
        node.ask("ACL", "SETUSER", "guest", "on", ">pw", "~*", "+@all", "-exists")
    guest = ConnectionFactory(nodes.url.replace("://", "://guest:pw@"))
    found = [QueueKeys(namespace, f"q{number}").ready[0] for number in range(30)]
    with Client(guest) as client, pytest.raises(AccessDeniedError):
        client.execute(existing(found), give_up_s=GIVE_UP_S)
    for node in nodes.nodes:
        node.ask("ACL", "DELUSER", "guest")


def test_a_command_of_many_queues(client: Client, places: list[QueueKeys]) -> None:
    """It counts what is served, or fails if all must be: no tombstone is forgotten without an answer of each node."""
    command = existing([name for keys in places for name in keys.ready])
    began = time.monotonic()
    assert client.execute(command, give_up_s=GIVE_UP_S) == 5
    assert time.monotonic() - began < LONGEST_S
    outboxes = [keys.outbox("q") for keys in places]
    [answer] = client.execute_each([existing(outboxes, all_serve=True)], give_up_s=GIVE_UP_S)
    assert isinstance(answer, ServerError)


@pytest.mark.nightly("test_a_command_of_many_queues")
def test_an_async_command_of_many_queues(client: Client, places: list[QueueKeys]) -> None:
    """Like the sync one: it waits once for the node."""

    async def count() -> tuple[int, float]:
        async with AsyncClient(client.factory) as own:
            began = time.monotonic()
            command = existing([name for keys in places for name in keys.ready])
            number = await own.execute(command, give_up_s=GIVE_UP_S)
            return number, time.monotonic() - began

    number, seconds = asyncio.run(count())
    assert number == 5
    assert seconds < LONGEST_S


def test_a_child_keeps_no_call_back(nodes: Cluster, namespace: str) -> None:
    """What it begins after another node's failure is sent at once: a long handler may run before it reads replies."""
    lost, *_ = nodes.masters()
    keys = queues(nodes, namespace, lost, 0, 1)[0]
    factory = ConnectionFactory(nodes.url)
    scripts = (load_script("settle"),)
    connection = Connection(
        factory, scripts, alive=int, give_up=bool, patience_s=5.0, away=AwayServers()
    )
    connection.call(raw("LLEN", keys.wake, decode=int))
    factory.failed(UnavailableError("it is away"), Address("127.0.0.1", lost.port))
    connection.begin(raw("RPUSH", keys.wake, 1, decode=int))
    assert until(lambda: nodes.master_of(keys.wake).redis().llen(keys.wake)) == 1
    assert connection.finish() == 1
    connection.forget()


def test_a_ring_at_a_frozen_node_keeps_no_other_waiting(
    nodes: Cluster, namespace: str, request: pytest.FixtureRequest
) -> None:
    """A child puts tokens back while it serves other nodes: for all of them it waits for half a second."""
    lost, *_ = nodes.masters()
    factory, scripts, away = ConnectionFactory(nodes.url), (load_script("settle"),), AwayServers()
    places = queues(nodes, namespace, lost, 6, 0)
    rings = [raw("RPUSH", keys.wake, 1, decode=int) for keys in places]
    bells = [
        Connection(factory, scripts, alive=int, give_up=bool, patience_s=0.0, away=away)
        for _ in rings
    ]
    for bell, ring in zip(bells, rings, strict=True):
        assert bell.call(ring) == 1
        bell.begin(ring)
    until(lambda: all(lost.redis().llen(keys.wake) == 2 for keys in places))
    request.getfixturevalue("frozen")
    watch = Watch(os.getpid())
    for bell, ring in zip(bells, rings, strict=True):
        # The token has come before the node froze.
        assert bell.finish() == 2
        with pytest.raises(ServerError):
            bell.call(ring)
    assert watch.passed_s() < 2.0
    for bell in bells:
        bell.forget()


def test_replies_behind_those_of_a_frozen_node_are_read(
    nodes: Cluster,
    namespace: str,
    monkeypatch: pytest.MonkeyPatch,
    request: pytest.FixtureRequest,
) -> None:
    """They have arrived when its reply is not awaited any more: their servers are not taken for silent as well."""
    monkeypatch.setattr("qworker.consumer.child.receive.pipeline._NODE_REPLY_S", 0.2)
    lost, other = nodes.masters()[:2]
    (mine,) = queues(nodes, namespace, lost, 1, 0)
    theirs = next(
        keys
        for keys in (QueueKeys(namespace, f"q{n}") for n in range(999))
        if nodes.master_of(keys.meta) is other
    )
    scripts, away = (load_script("settle"),), AwayServers()
    connection = Connection(
        ConnectionFactory(nodes.url), scripts, alive=int, give_up=bool, patience_s=0.2, away=away
    )
    for keys in (mine, theirs):
        connection.call(raw("LLEN", keys.wake, decode=int))
    pipeline = Pipeline(connection, clustered=True)
    request.getfixturevalue("frozen")
    answers: list[object] = []

    def finish() -> None:
        try:
            answers.append(connection.finish())
        except ServerError as error:
            answers.append(type(error))

    for keys in (mine, theirs, theirs):
        pipeline.begin(raw("RPUSH", keys.wake, 1, decode=int), finish)
    assert 0 < pipeline.overdue_in <= 0.2
    until(lambda: other.redis().llen(theirs.wake) == 2)
    until(lambda: pipeline.overdue_in == 0)
    while len(pipeline):
        pipeline.take(set())
    assert answers == [InDoubtError, 1, 2]
    away.check(Address("127.0.0.1", other.port), float("-inf"))
    connection.forget()


def test_leases_of_other_nodes_are_extended(
    nodes: Cluster, namespace: str, request: pytest.FixtureRequest
) -> None:
    """However many queues of the lost node come first."""
    found = queues(nodes, namespace, nodes.masters()[0], LOST, 5)
    app = QWorker(namespace, url=nodes.url)
    with app.client:
        board = Board.create(len(found))
        for slot, keys in enumerate(found):
            app.queue(keys.name).send({"n": 1})
            lease_id = app.client.ids.lease_id()
            board.leases.enter(slot, lease_id, slot, 30.0)
            batch = app.client.execute(settle_receive(keys, lease_id, 1, visibility_ms=30_000))
            assert len(batch.items) == 1
            board.leases.hold(slot, 1, boot_time() + 3.0, 30.0)
            board.leases.mark(slot, 0, Mark.RUNNING)
        request.getfixturevalue("away")
        keeper = LeaseKeeper(app.client)
        with pytest.raises(ServerError):
            keeper.extend_due([(board, tuple(found))])
        assert keeper.extended == 5
        board.close()


@dataclass
class Held:
    """A child as far as its leases go: one message of each queue, due to be extended."""

    app: QWorker
    keys: list[QueueKeys]

    def __post_init__(self) -> None:
        self.pid = 0
        self.board = Board.create(len(self.keys))
        for slot, keys in enumerate(self.keys):
            self.app.queue(keys.name).send({"n": 1})
            lease_id = self.app.client.ids.lease_id()
            self.board.leases.enter(slot, lease_id, slot, 30.0)
            self.app.client.execute(settle_receive(keys, lease_id, 1, visibility_ms=30_000))
            self.board.leases.hold(slot, 1, boot_time() + 3.0, 30.0)
            self.board.leases.mark(slot, 0, Mark.RUNNING)

    def close(self) -> None:
        self.board.close()


@pytest.fixture
def held(
    nodes: Cluster, namespace: str, request: pytest.FixtureRequest
) -> Iterator[tuple[Held, Held]]:
    """A child with leases of a node that is frozen now, and one with leases of others."""
    found = queues(nodes, namespace, nodes.masters()[0], LOST, 5)
    app = QWorker(namespace, url=nodes.url)
    with app.client:
        both = Held(app, found[:LOST]), Held(app, found[LOST:])
        request.getfixturevalue("frozen")
        yield both
        both[1].close()


def test_a_trip_waits_once_for_a_frozen_node(
    client: Client, nodes: Cluster, namespace: str, request: pytest.FixtureRequest
) -> None:
    """As long as it may, and not again in its own call."""
    places = queues(nodes, namespace, nodes.masters()[0], LOST, 5)
    results = client.execute_each([*map(inspect, places)])
    request.getfixturevalue("frozen")
    for _ in "over a connection that was open", "over a new one":
        began = time.monotonic()
        results = client.execute_each([*map(inspect, places)], give_up_s=GIVE_UP_S, within_s=0.5)
        assert time.monotonic() - began < LONGEST_S
        assert all(isinstance(result, ServerError) for result in results[:LOST])
        assert all(isinstance(result, Inspection) for result in results[LOST:]), results


def test_a_client_waits_no_longer_than_it_may(
    nodes: Cluster, namespace: str, request: pytest.FixtureRequest
) -> None:
    """A command of the command line gives up after 3 s, also in a trip."""
    places = queues(nodes, namespace, nodes.masters()[0], LOST, 5)
    request.getfixturevalue("frozen")
    with Client(ConnectionFactory(nodes.url), give_up_s=GIVE_UP_S) as client:
        began = time.monotonic()
        results = client.execute_each([*map(inspect, places)])
        assert time.monotonic() - began < LONGEST_S
    assert [isinstance(result, Inspection) for result in results] == [False] * LOST + [True] * 5


def test_passes_go_on_beside_a_frozen_node(
    client: Client, nodes: Cluster, namespace: str, request: pytest.FixtureRequest
) -> None:
    """A pass waits for it once, whatever it has to do there, and moves the messages of other nodes."""
    places = queues(nodes, namespace, nodes.masters()[0], 20, 5)
    for keys in places:
        Queue(client, namespace, keys.name).send({"n": 1}, delay="10ms")
    with Client(ConnectionFactory(nodes.url)) as own:
        reaper = Reaper(own, namespace)
        reaper.registry.refresh(5.0)
        request.getfixturevalue("frozen")
        longest_s, promoted = 0.0, 0
        with capture_logs() as lines:
            for _ in range(3):
                began = time.monotonic()
                tick = reaper.tick()
                promoted += tick.promoted
                # To rename keys, as for those of another type, would help nobody.
                assert not tick.broken
                # Counted for the alert instead, also when the node is not asked again.
                assert tick.errors >= 20
                longest_s = max(longest_s, time.monotonic() - began)
        assert promoted == 5
        assert longest_s < LONGEST_S
        failed = [line for line in lines if line["event"] == "queue_failed" and line["queue"]]
        assert {line["queue"] for line in failed} == {keys.name for keys in places[:20]}


@contextmanager
def unserved(nodes: Cluster, *places: QueueKeys, noticed: bool = True) -> Iterator[None]:
    """No node serves the slots of some queues, as after a resharding that was stopped halfway.

    `noticed`: the other nodes know, and do not name the one that served them.
    """
    owners = {key_slot(keys.meta.encode()): nodes.master_of(keys.meta) for keys in places}
    for slot, owner in owners.items():
        for node in nodes.nodes if noticed else [owner]:
            node.ask("CLUSTER", "DELSLOTS", slot)
    try:
        yield
    finally:
        for slot, owner in owners.items():
            owner.ask("CLUSTER", "ADDSLOTS", slot)
        nodes.wait_until_whole()


@pytest.mark.parametrize("noticed", [True, False])
def test_a_slot_that_no_node_serves_costs_its_queues_alone(
    nodes: Cluster, namespace: str, client: Client, noticed: bool
) -> None:
    """Others of its former node are reaped in the same pass, and listed; log, list and doctor name the queue."""
    # The map of a node that has not noticed still names the former one.
    first, *others = queues(nodes, namespace, nodes.masters()[1], 4, 3)

    def run(*words: str) -> Result:
        return CliRunner().invoke(cli, ["--url", nodes.url, "--namespace", namespace, *words])

    with Client(ConnectionFactory(nodes.url)) as own, capture_logs() as lines:
        reaper = Reaper(own, namespace)
        for keys in (first, *others):
            Queue(client, namespace, keys.name).send({"n": 1})
        reaper.tick()
        for keys in (first, *others):
            Queue(client, namespace, keys.name).send({"n": 1}, delay="10ms")
        with unserved(nodes, first, noticed=noticed):
            assert sum(reaper.tick().promoted for _ in range(2)) == len(others)
            listed, found = run("queue", "ls"), run("doctor", "--json")
    failed = [line for line in lines if line["event"] == "queue_failed"]
    assert first.name in {line["queue"] for line in failed} <= {first.name, ""}, failed
    assert all("no node of the Cluster serves" in line["problem"] for line in failed)
    assert listed.exit_code == 1
    assert f"{first.name} cannot be read: no node has it" in listed.stderr
    assert {line.split()[0] for line in listed.stdout.splitlines()[1:]} == {
        keys.name for keys in others
    }
    (about,) = [
        finding for finding in json.loads(found.stdout)["findings"] if finding["check"] == "unread"
    ]
    assert about["text"].startswith(f"1 queue cannot be read: {first.name}; no node has it")
    assert "--cluster fix" in about["fix"]


@pytest.fixture
def paused_s(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """The pauses before the repetitions of calls."""
    pauses: list[float] = []
    failed = Attempt.failed

    def noted(self: Attempt[Any], error: QworkerError) -> float:
        pauses.append(failed(self, error))
        return pauses[-1]

    monkeypatch.setattr(Attempt, "failed", noted)
    return pauses


@pytest.mark.parametrize("noticed", [True, False])
def test_passes_wait_once_for_a_slot_that_no_node_serves(
    nodes: Cluster, namespace: str, client: Client, paused_s: list[float], noticed: bool
) -> None:
    """The first call for one of its queues is repeated for a while; no later call and no later pass waits."""
    *lost, other = queues(nodes, namespace, nodes.masters()[0], 4, 0)
    for keys in (*lost, other):
        Queue(client, namespace, keys.name).send({"n": 1})
    with Client(ConnectionFactory(nodes.url)) as own:
        reaper = Reaper(own, namespace)
        reaper.tick()
        for keys in (*lost, other):
            Queue(client, namespace, keys.name).send({"n": 1}, delay="10ms")
        with unserved(nodes, *lost, noticed=noticed):
            ticks = [reaper.tick()]
            assert sum(paused_s) < 1.0
            paused_s.clear()
            ticks += [reaper.tick() for _ in range(3)]
            assert not paused_s
            assert [tick.errors for tick in ticks] == [3] * 4
            assert sum(tick.promoted for tick in ticks) == 1
        until(lambda: reaper.tick().promoted)


@pytest.mark.parametrize("is_async", [False, True])
@pytest.mark.parametrize("noticed", [True, False])
def test_a_trip_waits_once_for_slots_that_no_node_serves(
    nodes: Cluster, namespace: str, paused_s: list[float], noticed: bool, is_async: bool
) -> None:
    """Queues of their former node are read, and each error names its own slot if the nodes know."""
    *lost, other = queues(nodes, namespace, nodes.masters()[0], 4, 0)
    places = [*lost, other]

    def look() -> Plan[list[Any]]:
        return (yield Together([*map(inspect, places)]))

    async def look_async() -> list[Any]:
        async with AsyncClient(ConnectionFactory(nodes.url), give_up_s=GIVE_UP_S) as own:
            await own.run(look())
            with unserved(nodes, *lost, noticed=noticed):
                return await own.run(look())

    if is_async:
        results = asyncio.run(look_async())
    else:
        with Client(ConnectionFactory(nodes.url), give_up_s=GIVE_UP_S) as own:
            own.run(look())
            with unserved(nodes, *lost, noticed=noticed):
                results = own.run(look())
    assert isinstance(results[-1], Inspection), results
    assert all(isinstance(result, UnavailableError) for result in results[:-1])
    assert sum(paused_s) < 2 * GIVE_UP_S
    if noticed:
        for keys, result in zip(lost, results, strict=False):
            assert f"serves slot {key_slot(keys.meta.encode())}" in str(result)


def test_fsck_repairs_nothing_that_an_unserved_slot_may_explain(
    nodes: Cluster, namespace: str
) -> None:
    """It checks the other queues, and names what it could not read: a call that is there is not counted as lost."""

    def run(*words: str) -> Result:
        return CliRunner().invoke(cli, ["--url", nodes.url, "--namespace", namespace, *words])

    app = QWorker(namespace, url=nodes.url)
    lost, back, sound = (keys.queue for keys in queues(nodes, namespace, nodes.masters()[0], 3, 0))
    call = app.task(name="same", queue=lost, result="1h")(_same).call(1)
    handle = (
        group([call], policy="successes")
        .then(app.task(name="sum", queue=back, result="1h")(_sum))
        .start(id="g")
    )
    app.queue("wide").divide(2, wait=0)
    for name in ("wide", sound):
        app.queue(name).send({"n": 1})
    wide = QueueKeys(namespace, "wide/1")
    app.client.ask("HSET", QueueKeys(namespace, back).join("g"), "@made", 1)  # long ago
    app.client.ask("HSET", QueueKeys(namespace, sound).stats, "unacked", 7)
    app.client.ask("HSET", QueueKeys(namespace, "wide").meta, "shards", "1 1 1")
    with unserved(nodes, QueueKeys(namespace, lost), wide):
        found = run("fsck", "--repair", "--yes", "--json")
        again = run("fsck")
    document = json.loads(found.stdout)
    assert [(one["queue"], one["kind"]) for one in document["findings"]] == [(sound, "counter")]
    assert found.exit_code == 3
    calls, *unread = document["unchecked"]
    assert calls.startswith("the calls that groups wait for were not searched for")
    assert [text.split(":")[0] for text in unread] == [
        f"{name} cannot be read" for name in sorted((lost, "wide/1"))
    ]
    assert all("no node has it" in text for text in unread)
    assert again.exit_code == 5
    assert "nothing found" in again.stdout
    with app.client:
        assert "bad shards" in run("fsck", "--repair", "--yes").stdout
        drain(app)
        assert handle.result(0) == 1
        assert run("fsck").exit_code == 0


def test_fsck_says_which_repairs_it_has_left_until_a_slot_is_served(
    nodes: Cluster, namespace: str
) -> None:
    """A limit over a queue that cannot be read is not divided again; the last line does not send you in circles."""

    def run(*words: str) -> list[str]:
        result = CliRunner().invoke(
            cli, ["--url", nodes.url, "--namespace", namespace, "fsck", *words]
        )
        return [" ".join(line.split()) for line in result.stdout.splitlines()]

    app = QWorker(namespace, url=nodes.url)
    lost, sound = (keys.queue for keys in queues(nodes, namespace, nodes.masters()[0], 2, 0))
    keys = QueueKeys(namespace, sound)
    with app.client:
        app.queue(sound).set_limit("api/", concurrency=2, with_queues=[lost])
        app.client.ask("HDEL", keys.limits, "api/")
        app.client.ask("HSET", keys.stats, "unacked", 7)
        with unserved(nodes, QueueKeys(namespace, lost)):
            checked, repaired, again = run(), run("--repair", "--yes"), run("--repair", "--yes")
        why = f"none: {lost} cannot be read"
        then = f"-> share: qworker fsck --repair, once {lost} can be read"
        assert checked[-1] == (
            "2 findings, 0 messages checked; qworker fsck --repair repairs 1 of them"
        )
        assert repaired[-1] == "1 finding repaired, 1 left, 0 messages checked"
        assert again[-1] == "0 findings repaired, 1 left, 0 messages checked"
        for lines in (checked, repaired, again):
            assert any(line.endswith(why) for line in lines), lines
            assert then in lines
        assert run("--repair", "--yes")[-1] == "1 finding repaired, 0 messages checked"


def test_leases_of_other_nodes_are_extended_while_a_dead_child_is_settled(
    nodes: Cluster, held: tuple[Held, Held]
) -> None:
    """Its leases on a frozen node are settled when that is back, without holding up heartbeats."""
    dead, alive = held
    app = alive.app
    keeper = LeaseKeeper(app.client)
    began = time.monotonic()
    keeper.settle_dead(dead.board, dead.keys, Death(code=1, at=boot_time()))
    dead.close()
    keeper.extend_due([(alive.board, alive.keys)])
    assert time.monotonic() - began < LONGEST_S
    assert keeper.extended == 5
    assert keeper.unsettled
    for node in nodes.nodes:
        node.resume()

    def settled() -> bool:
        keeper.settle_again()
        return not keeper.unsettled

    until(settled, 20)
    counted = [app.client.execute(inspect(keys)) for keys in dead.keys]
    assert [seen.unacked for seen in counted] == [0] * LOST
    assert [seen.ready + seen.delayed for seen in counted] == [1] * LOST


def test_a_worker_is_checked_while_leases_of_one_node_cannot_be_extended(
    held: tuple[Held, Held],
) -> None:
    """It stays in sight of operators, and obeys them."""
    away, others = held
    checked = threading.Event()
    thread = LeaseThread(others.app.client, lambda: [away, others], checked.set)  # type: ignore[list-item, return-value]
    thread.start()
    try:
        assert checked.wait(LONGEST_S)
        until(lambda: thread.keeper.extended == 5, LONGEST_S)
        assert thread.answering_since is not None
    finally:
        thread.end(1.0)
        away.close()


def test_a_queue_that_a_user_may_not_read_does_not_hide_its_neighbours(
    client: Client, nodes: Cluster, namespace: str
) -> None:
    """A refusal concerns one queue, not all of its node."""
    places = queues(nodes, namespace, nodes.masters()[0], 3, 1)
    for keys in places:
        Queue(client, namespace, keys.name).send({"n": 1})
    patterns = [f"~{namespace}:{{{keys.name}}}:*" for keys in places[1:]]
    for node in nodes.nodes:
        node.ask("ACL", "SETUSER", "some", "on", ">pw", "+@all", *patterns)
    try:
        url = nodes.url.replace("://", "://some:pw@")
        with Client(ConnectionFactory(url)) as own:
            _, swept = own.execute(sweep(places, 1000))

        async def sweep_async() -> list[bool]:
            async with AsyncClient(ConnectionFactory(url)) as own:
                _, swept = await own.execute(sweep(places, 1000))
            return [each.unserved is None for each in swept]

        assert [each.unserved is None for each in swept] == [False, True, True, True]
        assert asyncio.run(sweep_async()) == [False, True, True, True]
    finally:
        for node in nodes.nodes:
            node.ask("ACL", "DELUSER", "some")


def test_doctor_waits_once_for_a_frozen_node(
    nodes: Cluster,
    namespace: str,
    monkeypatch: pytest.MonkeyPatch,
    request: pytest.FixtureRequest,
) -> None:
    """However many checks and queues it holds; each check says what it could not read."""
    lost = nodes.masters()[0]
    space = namespace_of(nodes, namespace, lost, [queues_key, owners_key])
    app = QWorker(space, url=nodes.url)
    with app.client:
        for keys in queues(nodes, space, lost, 3, 5):
            app.queue(keys.name).send({"n": 1})
    replicas = [node.address for node in nodes.nodes if node not in nodes.masters()]
    url = f"redis+cluster://{','.join((*replicas, *(node.address for node in nodes.masters())))}"
    request.getfixturevalue("frozen")
    failed: list[tuple[str | None, Address | None]] = []
    attempt = Client._attempt

    def noted(self: Client, lane: object, command: Command[Any], *rest: Any, **named: Any) -> Any:
        try:
            return attempt(self, lane, command, *rest, **named)  # type: ignore[arg-type]
        except ServerError:
            failed.append((command.key, command.node))
            raise

    monkeypatch.setattr(Client, "_attempt", noted)
    words = ["--url", url, "--namespace", space, "doctor", "--json"]
    found = json.loads(CliRunner().invoke(cli, words).stdout)["findings"]
    texts = {finding["check"]: finding["text"] for finding in found}
    assert texts.get("queues", "").startswith("5 with 5"), texts
    assert "found by their keys" in texts["index"]
    assert texts["schedules"].startswith("not checked")
    assert len(failed) == 1, failed


@pytest.mark.parametrize(
    "holds",
    [
        queues_key,
        pytest.param(
            workers_key, marks=pytest.mark.nightly("test_lists_wait_once_for_a_frozen_node")
        ),
    ],
)
def test_lists_wait_once_for_a_frozen_node(
    nodes: Cluster,
    namespace: str,
    holds: Callable[[str], str],
    monkeypatch: pytest.MonkeyPatch,
    request: pytest.FixtureRequest,
) -> None:
    """They show what the other nodes hold, name the one that was not read, and exit with 1."""
    space, lost = namespace, nodes.masters()[0]
    space = namespace_of(nodes, namespace, lost, [holds])
    app = QWorker(space, url=nodes.url)
    with app.client:
        places = queues(nodes, space, lost, 3, 3)
        for keys in places:
            app.queue(keys.name).send({"n": 1})
    request.getfixturevalue("frozen")
    failed: list[object] = []
    connect = ConnectionFactory.open

    def noted(self: ConnectionFactory, *given: Any) -> Any:
        try:
            return connect(self, *given)
        except ServerError as error:
            failed.append(error)
            raise

    monkeypatch.setattr(ConnectionFactory, "open", noted)

    def run(*words: str) -> Result:
        failed.clear()
        result = CliRunner().invoke(cli, ["--url", nodes.url, "--namespace", space, *words])
        assert len(failed) <= 1, failed
        return result

    listed = run("queue", "ls")
    assert listed.exit_code == 1
    assert f"not read: what {lost.address} holds" in listed.stderr
    assert all(keys.name in listed.stdout for keys in places[3:])
    shown = run("queue", "show", places[3].name, "--over", "0", "--json")
    assert json.loads(shown.stdout)["ready"] == 1
    shown = run("queue", "show", places[3].name, "--over", "0")
    workers = run("worker", "ls")
    if holds is workers_key:
        assert "workers  unknown" in shown.stdout
        assert "the list of workers cannot be read" in shown.stderr
        assert workers.exit_code == 1
        assert lost.address in workers.stderr
    else:
        assert "workers  0" in shown.stdout
        assert (workers.exit_code, workers.stdout) == (0, "")


def test_workers_are_asked_whose_node_serves(
    nodes: Cluster, namespace: str, request: pytest.FixtureRequest
) -> None:
    """`worker stack` prints what they answer, and says which were not asked; by its name one is asked in any case."""
    lost = nodes.masters()[0]
    space = namespace_of(nodes, namespace, lost, [])

    def named(there: bool) -> str:
        return next(
            name
            for name in (f"w{n}" for n in range(999))
            if (nodes.master_of(control_key(space, name)) is lost) == there
        )

    mute, fluent = named(True), named(False)
    handler = {"pid": 7, "task": "t", "id": "m1", "seconds": 1.0, "stack": "in handle"}
    with Client(ConnectionFactory(nodes.url)) as client:
        now_ms = client.now_ms()
        for name in (mute, fluent):
            client.ask("HSET", workers_key(space), name, json.dumps({"seen_ms": now_ms}))
        request.getfixturevalue("frozen")

        def answer() -> None:
            """Play the worker whose node serves, until it has answered once."""
            request_of = until(lambda: client.ask("LPOP", control_key(space, fluent)))
            asked = read_request(request_of)
            assert asked is not None
            written = write(Answer(fluent, done=True, data={"handlers": [handler]}))
            client.ask("RPUSH", answer_key(space, asked.id), written)

        words = ["--url", nodes.url, "--namespace", space, "worker", "stack"]
        for more in ([], [fluent]):
            client.ask("HSET", workers_key(space), fluent, json.dumps({"seen_ms": client.now_ms()}))
            worker = threading.Thread(target=answer)
            worker.start()
            shown = CliRunner().invoke(cli, [*words, *more])
            worker.join()
            assert f"{fluent}  pid 7  t  m1  1s" in shown.stdout, shown.output
            if more:
                assert shown.exit_code == 0
            else:
                assert shown.exit_code == 1
                assert f"{mute} was not asked: {lost.address}" in shown.stderr


def test_operators_see_what_the_other_nodes_know(
    nodes: Cluster, namespace: str, request: pytest.FixtureRequest
) -> None:
    """`queue ls`, `top`, `doctor` and `fsck` name what cannot be read, and read the rest."""
    lost = nodes.masters()[0]
    space = namespace_of(nodes, namespace, lost, [reapers_key])
    places = queues(nodes, space, lost, 2, 2)
    app = QWorker(space, url=nodes.url)
    with app.client:
        for keys in places:
            app.queue(keys.name).send({"n": 1})
    request.getfixturevalue("away")

    def run(*words: str) -> Result:
        environ = {"QWORKER_GIVE_UP": "300ms"}
        return CliRunner().invoke(
            cli, ["--url", nodes.url, "--namespace", space, *words], env=environ
        )

    ls = run("queue", "ls", "--json")
    assert ls.exit_code == 1
    listed = json.loads(ls.stdout)
    assert [queue["queue"] for queue in listed["queues"]] == sorted(k.name for k in places[2:])
    assert listed["unread"].keys() == {keys.name for keys in places[:2]}
    top = run("top", "--once").stdout
    assert all(keys.name in top for keys in places[2:])
    assert "unknown: their node is away" in top
    found = json.loads(run("doctor", "--json").stdout)["findings"]
    texts = {finding["check"]: finding["text"] for finding in found}
    assert texts["unread"].startswith("2 queues cannot be read")
    assert texts["reapers"].startswith("not checked")
    assert not texts["workers"].startswith("not checked")
    checked = run("fsck", "--repair", "--yes", "--json")
    assert checked.exit_code == 5
    document = json.loads(checked.stdout)
    assert (document["clean"], document["findings"]) == (False, [])
    for name in (keys.name for keys in places[:2]):
        assert any(
            text.startswith(f"{name} cannot be read: its node is away")
            for text in document["unchecked"]
        ), document
    named = run("fsck", places[0].name)
    assert named.exit_code == 5
    assert f"{places[0].name} cannot be read: its node is away" in named.stderr


@pytest.mark.parametrize(
    "is_async",
    [
        pytest.param(
            False,
            marks=pytest.mark.nightly("test_a_chain_is_searched_for_in_time_beside_a_frozen_node"),
        ),
        True,
    ],
)
def test_a_chain_is_searched_for_in_time_beside_a_frozen_node(
    nodes: Cluster, namespace: str, request: pytest.FixtureRequest, is_async: bool
) -> None:
    """At the end of a wait, and by a cancel: the node with the queue of a step is not waited for at each look."""
    app, lost = QWorker(namespace, url=nodes.url, give_up="2s"), nodes.masters()[0]
    there, here = (keys.queue for keys in queues(nodes, namespace, lost, 1, 1))
    for name in (there, here):
        app.task(name=name, queue=name, result="1h")(_same)
        app.queue(name).create()
    handle = chain(app.find(here).call(1), app.find(there).then(), app.find(here).then()).start()
    app.queue(here).purge()
    request.getfixturevalue("frozen")
    passed_s: list[float] = []

    def wait_and_cancel() -> None:
        with passing(passed_s), pytest.raises(ResultTimeoutError):
            handle.result("300ms")
        with passing(passed_s), pytest.raises(UnavailableError):
            handle.cancel()

    async def wait_and_cancel_asynchronously() -> None:
        with passing(passed_s), pytest.raises(ResultTimeoutError):
            await handle.aresult("300ms")
        with passing(passed_s), pytest.raises(UnavailableError):
            await handle.acancel()
        await app.aclose()

    asyncio.run(wait_and_cancel_asynchronously()) if is_async else wait_and_cancel()
    # To find out that its queue cannot be read takes one limit, to look at it another: of 1 s, and of 2 s.
    assert passed_s[0] < 3.3
    assert passed_s[1] < 5.5
    app.close()


@contextmanager
def passing(passed_s: list[float]) -> Iterator[None]:
    """Note how long the block takes."""
    watch = Watch(os.getpid())
    yield
    passed_s.append(watch.passed_s())


def _sum(numbers: list[int]) -> int:
    return sum(numbers)


def _same(number: int) -> int:
    return number
