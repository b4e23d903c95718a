"""Faults of several servers: failover behind Sentinels, slots that move, masters that are lost."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from contextlib import AbstractContextManager, ExitStack, suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import psutil
from redis.crc import key_slot

from qworker.wire.keys import queues_key
from tests.topologies import servers
from tests.topologies.servers import Cluster, Node, Trio
from verification.faults.built import DIVIDED
from verification.faults.consumers import KILLED, nothing
from verification.faults.load import Load
from verification.faults.network import RECONNECT
from verification.faults.partial import WITHOUT_PAUSE, longest_gap_s
from verification.faults.partition import PartedTrio, parted_trio
from verification.faults.processes import NAMESPACE
from verification.faults.producer import Sending
from verification.faults.row import Row, at_least, at_most, exactly
from verification.faults.server import FaultServer
from verification.faults.stage import DEADLINE_S, Stage

__all__ = ["ROWS"]

#: What a replica had not got is gone: sends that were confirmed, and acks.
ASYNCHRONOUS = "replication is asynchronous: sends that had not reached the new master are lost"
#: Likewise.
NOT_REPLICATED = "an ack, or a receive and its ack, that the new master had not got"
#: How long a master is cut off, and how long one may accept writes without a replica that answers.
SPLIT_S = 9.0
MAX_LAG_S = 2


class _Nodes(FaultServer):
    """A set of nodes in the place of one server."""

    def __init__(self, made: AbstractContextManager[Any]) -> None:
        self._made = made
        self._stack = ExitStack()

    def __enter__(self) -> FaultServer:
        self.nodes: Cluster | Trio = self._stack.enter_context(self._made)
        self.near = self.url = self.nodes.url
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
    return lambda stack, directory: _Nodes(
        servers.sentinel("valkey", *options, rtt_ms=FaultServer.rtt_ms)
    )


def a_parted_trio(*options: str) -> Callable[[ExitStack, Path], FaultServer]:
    """Make one whose master can be cut off from all but one producer."""
    return lambda stack, directory: _Nodes(parted_trio(*options, rtt_ms=FaultServer.rtt_ms))


def a_cluster(stack: ExitStack, directory: Path) -> FaultServer:
    """Make three masters with a replica each."""
    return _Nodes(servers.cluster(rtt_ms=FaultServer.rtt_ms))


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
    time.sleep(2.0)
    _lose(stage, _trio(stage).master())


def lose_master_in_step(stage: Stage) -> None:
    """Kill the master once its replicas have all that it stores; it takes no more writes from then on."""
    time.sleep(2.0)
    master = _trio(stage).master()
    master.ask("CLIENT", "PAUSE", int(DEADLINE_S * 1000), "WRITE")

    def is_copied() -> bool:
        info = master.info("replication")
        return all(
            info[f"slave{number}"]["offset"] == info["master_repl_offset"] for number in range(2)
        )

    stage.until(is_copied, "replicas in step")
    _lose(stage, master)


def _lose(stage: Stage, old: Node) -> None:
    trio = _trio(stage)
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
    """Let both replicas freeze for longer than the master may be without them."""
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


def part_master(stage: Stage) -> None:
    """Leave the master alone with one producer for nine seconds, while the others make another one the master."""
    trio = _trio(stage)
    assert isinstance(trio, PartedTrio)
    stage.environ["QWORKER_URL"] = trio.own_url
    # It continues although its remaining master is cut off from all clients.
    left = stage.produce(backlog=sys.maxsize)
    del stage.environ["QWORKER_URL"]
    name = f"p{stage.producers.index(left)}"
    stage.until(lambda: stage.confirmed(name), "first send of the producer that is left with it")
    time.sleep(1.0)
    old = trio.master()
    stage.lose()
    begun = time.monotonic_ns()
    trio.proxy.blackhole = True
    trio.wait_for_master(other_than=old)
    stage.measured["failover_s"] = round((time.monotonic_ns() - begun) / 1e9, 1)
    stage.server_returned(*stage.workers, *stage.daemons)
    time.sleep(max(0.0, SPLIT_S - (time.monotonic_ns() - begun) / 1e9))
    left.stop()
    # With the chunk whose reply came just before, and which no replica may have got.
    stage.measured["sent_to_old"] = stage.confirmed(name, since=begun) + CALM.chunk
    stage.measured["refused"] = len(stage.notes("refused"))
    trio.proxy.blackhole = False
    trio.wait_until_whole()
    nothing(stage)


def hand_over(stage: Stage) -> None:
    """Let the Sentinels hand over to a replica: connections end up at a server that is read-only.

    From the promotion until the old master follows there are two: what the old one still takes meanwhile may be gone.
    """
    trio = _trio(stage)
    for _ in stage.goes_on(1.0):
        old = trio.master()
        stage.lose()
        pids = [pid for worker in stage.workers for pid in worker.pids()]
        before, begun = _cpu_s(pids), time.monotonic_ns()
        trio.sentinels[0].ask("SENTINEL", "FAILOVER", servers.SERVICE)
        _watch_old(stage, trio, old, begun)
        stage.server_returned()
        took_s = (time.monotonic_ns() - begun) / 1e9
        used = [now - before[pid] for pid, now in _cpu_s(pids).items()]
        stage.most("busiest", round(max(used) / took_s, 2))
        stage.add("handovers", 1)
        trio.wait_until_whole()


def _watch_old(stage: Stage, trio: Trio, old: servers.Node, begun: int) -> None:
    """Wait until the old master follows, and add what was confirmed since the last look that saw no other master.

    With a chunk of each producer, and as many acks, for what was on its way to the replicas. `begun` (ns): before the
    handover.
    """
    others = [node for node in trio.data if node is not old]
    looked_at, promoted_after = begun, 0

    def follows() -> bool:
        nonlocal looked_at, promoted_after
        now = time.monotonic_ns()
        if not promoted_after:
            if any(node.info("replication")["role"] == "master" for node in others):
                promoted_after = looked_at
            looked_at = now
        return bool(old.info("replication")["role"] == "slave")

    servers.until(follows, what=f"{old} to follow")
    since = promoted_after or looked_at
    stage.most("two_masters_s", round((time.monotonic_ns() - since) / 1e9, 2))
    slack = stage.load.producers * stage.load.sending.chunk
    acked = sum(len(event.rest) for event in stage.notes("acked") if since <= event.at)
    stage.add("sent_at_old", stage.confirmed(since=since) + slack)
    stage.add("acked_at_old", acked + slack)


def _cpu_s(pids: list[int]) -> dict[int, float]:
    """Seconds of a core that each process has used."""
    cpu_s = {}
    for pid in pids:
        with suppress(psutil.NoSuchProcess):
            times = psutil.Process(pid).cpu_times()
            cpu_s[pid] = times.user + times.system
    return cpu_s


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
    """Kill the master of the load's queue in a Cluster; its replica is promoted, and the load goes on."""
    lose_node_while(stage, nothing)


def lose_node_while(stage: Stage, course: Callable[[Stage], None]) -> None:
    """Kill that master, and play a course from when its replica is the master."""
    cluster, key = _cluster(stage), stage.queue().keys.meta
    time.sleep(2.0)
    old = cluster.master_of(key)
    stage.lose()
    stage.notebook.note("master_lost")
    begun = time.monotonic()
    old.kill()
    cluster.master_of(key, other_than=old)
    stage.measured["failover_s"] = round(time.monotonic() - begun, 1)
    stage.server_returned()
    old.start()
    course(stage)
    cluster.wait_until_whole()


def lose_index(stage: Stage) -> None:
    """Let the node of the index of queues freeze, and its replica, so that no replica takes its place.

    The load's queue is on another node: it continues, children that are killed meanwhile are replaced, and a
    worker that starts meanwhile works.
    """
    cluster = _cluster(stage)
    index = cluster.master_of(queues_key(NAMESPACE))
    assert cluster.master_of(stage.queue().keys.meta) is not index
    pair = [index, cluster.replica_of(index)]
    for node in pair:
        node.pause()
    begun = time.monotonic_ns()
    newcomer = stage.worker()
    for _ in stage.goes_on(1.0, kills=1, away_s=5.0):
        stage.kill_child()
        stage.measured["away_s"] = (time.monotonic_ns() - begun) / 1e9
    stage.until(
        lambda: stage.spoken(newcomer.children()), "work of a worker that started meanwhile"
    )
    ended = time.monotonic_ns()
    stage.measured["away_s"] = round((ended - begun) / 1e9, 1)
    for word in ("sent", "started"):
        stage.measured[f"gap_{word}_s"] = round(longest_gap_s(stage, word, begun, ended), 2)
    for node in pair:
        node.resume()
    cluster.wait_until_whole()
    stage.server_returned()
    nothing(stage)


CALM = Sending(rate=300)
#: Messages of half a second, of two producers: what a replica may be behind on a busy machine.
LAG = CALM.rate
GUARDED = ("--min-replicas-to-write", "1", "--min-replicas-max-lag", str(MAX_LAG_S))

ROWS = [
    Row(
        name="F28",
        fault="a master behind Sentinels is killed, and a replica promoted",
        course=lose_master,
        server=a_trio(),
        load=Load(sending=CALM),
        takes=ASYNCHRONOUS,
        undoes=NOT_REPLICATED,
        bounds=(at_most("taken", LAG), at_most("undone", LAG), RECONNECT),
        seconds=10,
    ),
    Row(
        name="F28r",
        fault="the same, and each send waits for a replica",
        course=lose_master,
        server=a_trio(),
        load=Load(sending=Sending(rate=300, options={"replicas": 1, "within": "500ms"})),
        takes="acks may be gone, sends may not",
        undoes=NOT_REPLICATED,
        bounds=(at_most("taken", 0), at_most("undone", LAG), RECONNECT),
        seconds=10,
    ),
    Row(
        name="F28s",
        fault="a master behind Sentinels is killed when its replicas have all that it stored",
        course=lose_master_in_step,
        server=a_trio(),
        load=Load(sending=CALM),
        bounds=(RECONNECT,),
        seconds=10,
    ),
    Row(
        name="F29",
        fault="a master with min-replicas-to-write is cut off with one producer, and replaced",
        course=part_master,
        server=a_parted_trio(*GUARDED),
        load=Load(producers=1, sending=CALM),
        takes="the cut-off master continues for min-replicas-max-lag (2 s), and for up to 2 s until it notices",
        undoes=NOT_REPLICATED,
        bounds=(
            at_least("refused", 1),
            at_least("taken", 1),
            at_most("taken", CALM.rate * (MAX_LAG_S + 2)),
            at_most("undone", CALM.chunk),
            RECONNECT,
        ),
        seconds=12,
    ),
    Row(
        name="F29u",
        fault="a master without min-replicas-to-write is cut off with one producer, and replaced",
        course=part_master,
        server=a_parted_trio(),
        load=Load(producers=1, sending=CALM),
        takes="nothing informs the cut-off master: it accepts all sends until the end",
        undoes=NOT_REPLICATED,
        bounds=(
            at_least("taken", 1),
            at_most("taken", "sent_to_old"),
            at_most("undone", CALM.chunk),
            RECONNECT,
        ),
        seconds=12,
    ),
    Row(
        name="F29s",
        fault="the replicas are frozen, and the master accepts nothing without them",
        course=stop_replicas,
        server=a_trio(*GUARDED),
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
        takes="SENTINEL FAILOVER does not stop the old master first: sends that it still accepts are lost",
        undoes="the old master still confirms acks",
        bounds=(
            at_least("handovers", 1),
            at_most("taken", "sent_at_old"),
            at_most("undone", "acked_at_old"),
            # The share of a core that any process of a worker takes while it finds the new master.
            at_most("busiest", 0.5),
            RECONNECT,
        ),
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
        undoes=NOT_REPLICATED,
        bounds=(at_most("taken", LAG), at_most("undone", LAG), RECONNECT),
        seconds=10,
    ),
    Row(
        name="F64",
        fault="the node of a Cluster that holds the index of queues stands still, and its replica",
        course=lose_index,
        server=a_cluster,
        load=Load(fewest=2, sending=KILLED),
        bounds=(
            at_least("away_s", 5.0),
            at_least("kills", 1),
            at_most("duplicates", "killed_running"),
            exactly("dead", 0),
            *WITHOUT_PAUSE,
            RECONNECT,
        ),
        seconds=8,
    ),
    replace(
        DIVIDED,
        name="F57c",
        fault="the same in a Cluster, whose masters hold some of the shards each",
        server=a_cluster,
        load=Load(sending=CALM, daemons=2),
    ),
]
