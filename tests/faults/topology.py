"""Faults of several servers: failover behind Sentinels, slots that move, masters that are lost."""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import AbstractContextManager, ExitStack
from dataclasses import replace
from pathlib import Path
from typing import Any

from redis.crc import key_slot

from tests.faults.built import DIVIDED
from tests.faults.consumers import nothing
from tests.faults.load import Load
from tests.faults.network import RECONNECT
from tests.faults.producer import Sending
from tests.faults.row import Row, at_least, at_most
from tests.faults.server import FaultServer
from tests.faults.stage import Stage
from tests.topologies import servers
from tests.topologies.servers import Cluster, Trio

__all__ = ["ROWS"]

#: What a replica had not got is gone: sends that were confirmed, and acks.
ASYNCHRONOUS = "replication is asynchronous: what the new master had not got is gone"


class _Nodes(FaultServer):
    """A set of nodes in the place of one server."""

    def __init__(self, made: AbstractContextManager[Any]) -> None:
        self._made = made
        self._stack = ExitStack()

    def __enter__(self) -> FaultServer:
        self.nodes: Cluster | Trio = self._stack.enter_context(self._made)
        self.url = self.nodes.url
        return self

    def __exit__(self, *exc: object) -> None:
        self._stack.close()

    def redis(self) -> Any:
        """A client that reaches every slot."""
        client = servers.client_of(self.url)
        self._stack.callback(client.close)
        return client


def a_trio(*options: str) -> Callable[[ExitStack, Path], FaultServer]:
    """Make a master with two replicas behind three Sentinels."""
    return lambda stack, directory: _Nodes(servers.sentinel("valkey", *options))


def a_cluster(stack: ExitStack, directory: Path) -> FaultServer:
    """Make three masters with a replica each."""
    return _Nodes(servers.cluster())


def _trio(stage: Stage) -> Trio:
    assert isinstance(stage.server, _Nodes)
    assert isinstance(stage.server.nodes, Trio)
    return stage.server.nodes


def _cluster(stage: Stage) -> Cluster:
    assert isinstance(stage.server, _Nodes)
    assert isinstance(stage.server.nodes, Cluster)
    return stage.server.nodes


def lose_master(stage: Stage) -> None:
    """Kill the master; a replica takes its place, and the old one comes back as a replica."""
    trio = _trio(stage)
    time.sleep(2.0)
    old = trio.master()
    stage.lose()
    begun = time.monotonic()
    old.kill()
    trio.wait_for_master(other_than=old)
    stage.measured["failover_s"] = round(time.monotonic() - begun, 1)
    stage.server_returned()
    old.start()
    nothing(stage)
    trio.wait_until_whole()


def stop_replicas(stage: Stage) -> None:
    """Let both replicas stand still for longer than the master may be without them."""
    trio = _trio(stage)
    replicas = trio.replicas()
    for node in replicas:
        node.pause()
    stage.until(lambda: stage.notes("refused"), "refused send")
    for node in replicas:
        node.resume()
    stage.server_returned()
    stage.measured["refused"] = len(stage.notes("refused"))
    nothing(stage)


def hand_over(stage: Stage) -> None:
    """Let the Sentinels hand over to a replica: connections end up at a server that is read-only."""
    trio = _trio(stage)
    for _ in stage.goes_on(1.0):
        old = trio.master()
        stage.lose()
        trio.sentinels[0].ask("SENTINEL", "FAILOVER", servers.SERVICE)
        trio.wait_for_master(other_than=old)
        stage.server_returned()
        stage.add("handovers", 1)
        trio.wait_until_whole()


def move_slots(stage: Stage) -> None:
    """Move the slot of the load's queue from one master to the next, key by key."""
    cluster, key = _cluster(stage), stage.queue().keys.meta
    for _ in stage.goes_on(0.5):
        source = cluster.master_of(key)
        target = next(node for node in cluster.masters() if node is not source)
        begun = time.monotonic()
        with cluster.moving(key_slot(key.encode()), target) as move_keys:
            while move_keys():
                time.sleep(0.01)
        stage.most("moving_s", round(time.monotonic() - begun, 2))
        stage.server_returned()
        stage.add("moves", 1)


def lose_node(stage: Stage) -> None:
    """Kill the master of the load's queue in a Cluster; its replica is promoted."""
    cluster, key = _cluster(stage), stage.queue().keys.meta
    time.sleep(2.0)
    old = cluster.master_of(key)
    stage.lose()
    begun = time.monotonic()
    old.kill()
    cluster.master_of(key, other_than=old)
    stage.measured["failover_s"] = round(time.monotonic() - begun, 1)
    stage.server_returned()
    old.start()
    nothing(stage)
    cluster.wait_until_whole()


CALM = Sending(rate=300)

ROWS = [
    Row(
        name="F28",
        fault="a master behind Sentinels is killed, and a replica promoted",
        course=lose_master,
        server=a_trio(),
        load=Load(sending=CALM),
        takes=ASYNCHRONOUS,
        bounds=(at_most("taken", 20), RECONNECT),
        seconds=10,
    ),
    Row(
        name="F28r",
        fault="the same, and each send waits for a replica",
        course=lose_master,
        server=a_trio(),
        load=Load(sending=Sending(rate=300, options={"replicas": 1, "within": "500ms"})),
        takes="acks may be gone, sends may not",
        bounds=(at_most("taken", 0), RECONNECT),
        seconds=10,
    ),
    Row(
        name="F29",
        fault="the replicas stand still, and the master accepts nothing without them",
        course=stop_replicas,
        server=a_trio("--min-replicas-to-write", "1", "--min-replicas-max-lag", "2"),
        load=Load(sending=CALM),
        bounds=(at_least("refused", 1), RECONNECT),
        seconds=5,
    ),
    Row(
        name="F30",
        fault="the Sentinels hand over to a replica, and the old master is read-only",
        course=hand_over,
        server=a_trio(),
        load=Load(sending=CALM),
        takes="SENTINEL FAILOVER does not stop the old master first: what it still takes is gone",
        bounds=(at_least("handovers", 1), RECONNECT),
        seconds=8,
    ),
    Row(
        name="F31",
        fault="the slot of a queue moves between masters of a Cluster, under load",
        course=move_slots,
        server=a_cluster,
        load=Load(sending=CALM),
        bounds=(at_least("moves", 1), at_most("unexplained", 0), RECONNECT),
        seconds=8,
    ),
    Row(
        name="F32",
        fault="a master of a Cluster is killed, and its replica promoted",
        course=lose_node,
        server=a_cluster,
        load=Load(sending=CALM),
        takes=ASYNCHRONOUS,
        bounds=(at_most("taken", 20), RECONNECT),
        seconds=10,
    ),
    replace(
        DIVIDED,
        name="F57c",
        fault="the same in a Cluster, whose masters hold some of the shards each",
        server=a_cluster,
        load=Load(sending=CALM, daemons=2),
    ),
]
