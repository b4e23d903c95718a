"""Several servers for tests: a 3+3 Cluster, and a master with two replicas behind three Sentinels.

    with servers.cluster() as cluster:
        cluster.url                        # redis+cluster://127.0.0.1:…,127.0.0.1:…
        cluster.master_of("n:{q}:ready")   # the Node that serves the slot of a key
        with cluster.moving(slot, to):     # a slot that is halfway between two masters

    with servers.sentinel() as trio:
        trio.url                           # redis+sentinel://…/main
        trio.master().kill()
        trio.wait_for_master(other_than=node)

With `rtt_ms` every data node is so far away, behind a relay, from clients and from each other, but for the bus of a
Cluster; Sentinels are near.

A `Node` is killed, paused and started again by its own pid, and ends with the context or with this process.

With QWORKER_TEST_SERVER=cluster or =sentinel the server that tests share is such a set; a test that needs one
server (a proxy in front of it, its pid) starts one, or is skipped.
"""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import redis
from redis.backoff import NoBackoff
from redis.cluster import ClusterNode, RedisCluster
from redis.crc import key_slot
from redis.retry import Retry

from qworker.store.connections import ConnectionFactory
from qworker.store.url import ServerURL
from tests.ports import free_ports
from tests.relay import Relay
from tests.servers import binary_of, start
from tests.timing import looks

__all__ = [
    "CLUSTERED",
    "SLOTS",
    "Cluster",
    "Node",
    "Trio",
    "client_of",
    "cluster",
    "sentinel",
    "shared",
    "until",
]

SLOTS = 16384
#: After which a server that all tests share counts as away, where servers watch each other.
_PATIENT_MS = 15_000
#: Whether the server that tests share is a Cluster.
CLUSTERED = os.environ.get("QWORKER_TEST_SERVER") == "cluster"
#: What Sentinels call the master.
SERVICE = "main"
_DEADLINE_S = 60.0
#: How often a Sentinel is asked to hand over, which it gives up after 5 s, and how long all may take to agree.
_HAND_OVERS = 4
_HAND_OVER_S = 20.0

# Starts the server, says its pid, and waits for the end of its input: the kernel brings that about when the owner dies.
_WATCHER = """
log=$1; shift
"$@" </dev/null >>"$log" 2>&1 &
server=$!
echo "$server"
read -r _
kill -KILL "$server" 2>/dev/null
wait "$server" 2>/dev/null
"""


def until(true: Callable[[], Any], within_s: float = _DEADLINE_S, what: str = "") -> Any:
    """Wait until `true()` is, and return what it gave; connection errors count as not yet."""
    for _ in looks(within_s, 0.02):
        with suppress(redis.RedisError, OSError):
            if node := true():
                return node
    raise AssertionError(f"not within {within_s:g} s: {what or true}")


class Node:
    """One server process on a port of 127.0.0.1, with a directory that outlives a kill."""

    def __init__(self, command: Sequence[str], port: int, directory: Path) -> None:
        self.command, self.port, self.directory = list(command), port, directory
        self.pid = 0
        self._watcher: subprocess.Popen[bytes] | None = None
        self._client: redis.Redis | None = None

    def __repr__(self) -> str:
        return f"Node({self.port})"

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self.port}"

    @property
    def log(self) -> str:
        return (self.directory / "server.log").read_text(errors="replace")

    def start(self) -> None:
        """Start the process, or start it again after a kill; does not wait for an answer."""
        self._reap()
        self._watcher = subprocess.Popen(
            ["/bin/sh", "-c", _WATCHER, "node", str(self.directory / "server.log"), *self.command],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
            cwd=self.directory,
        )
        assert self._watcher.stdout is not None
        self.pid = int(self._watcher.stdout.readline())

    def kill(self) -> None:
        """End it as a crash would."""
        os.kill(self.pid, signal.SIGKILL)
        self._reap()

    def pause(self) -> None:
        os.kill(self.pid, signal.SIGSTOP)

    def resume(self) -> None:
        os.kill(self.pid, signal.SIGCONT)

    def close(self) -> None:
        if self._client is not None:
            self._client.close()
        self._reap()

    def redis(self) -> redis.Redis:
        """A plain client of this node, without retries; it is closed with the node."""
        if self._client is None:
            self._client = redis.Redis(
                port=self.port, retry=Retry(NoBackoff(), 0), socket_timeout=60.0, protocol=2
            )
        return self._client

    def ask(self, *words: Any) -> Any:
        client: Any = self.redis()
        return client.execute_command(*words)

    def info(self, section: str) -> dict[str, Any]:
        return self.redis().info(section)

    def _reap(self) -> None:
        watcher, self._watcher = self._watcher, None
        if watcher is not None:
            watcher.communicate(b"\n", timeout=_DEADLINE_S)


class _Set:
    """Nodes that belong together, under one directory."""

    def __init__(self, engine: str, rtt_ms: float) -> None:
        self.engine, self.binary, self._rtt_ms = engine, binary_of(engine), rtt_ms
        self._relays = ExitStack()
        self.directory = Path(tempfile.mkdtemp(prefix="qworker-nodes-"))
        self.nodes: list[Node] = []

    def node(self, *arguments: str, port: int, announce: str) -> Node:
        """Start a data node with an AOF; `announce` is the option for a port that others are to come to."""
        directory = self.directory / str(port)
        directory.mkdir()
        settings: tuple[str, ...] = (
            *("--port", str(port), "--bind", "127.0.0.1", "--dir", str(directory)),
            *("--appendonly", "yes", "--appendfsync", "everysec", "--save", ""),
            # Without it a replica waits 5 s for its first copy, and a master killed meanwhile is never replaced.
            *("--repl-diskless-sync-delay", "0", "--repl-ping-replica-period", "1"),
        )
        if not self._rtt_ms:
            return self._started(Node([self.binary, *settings, *arguments], port, directory))
        relay = self._relays.enter_context(Relay(f"redis://127.0.0.1:{port}", rtt_ms=self._rtt_ms))
        far = urlsplit(relay.url).port
        assert far is not None
        settings += (announce, str(far))
        return self._started(Node([self.binary, *settings, *arguments], far, directory))

    def close(self) -> None:
        for node in self.nodes:
            node.close()
        self._relays.close()
        shutil.rmtree(self.directory, ignore_errors=True)

    def _started(self, node: Node) -> Node:
        self.nodes.append(node)
        node.start()
        return node


class Cluster(_Set):
    """Masters with a replica each; the slots are divided evenly."""

    def __init__(self, engine: str, masters: int, node_timeout_ms: int, rtt_ms: float) -> None:
        super().__init__(engine, rtt_ms)
        ports = free_ports(4 * masters)
        options = (
            *("--cluster-enabled", "yes", "--cluster-config-file", "nodes.conf"),
            *("--cluster-node-timeout", str(node_timeout_ms)),
            # A master that is lost stops its own slots only.
            *("--cluster-require-full-coverage", "no"),
        )
        for port, bus in zip(ports[: 2 * masters], ports[2 * masters :], strict=True):
            words = (*options, "--cluster-port", str(bus))
            self.node(*words, port=port, announce="--cluster-announce-port")
        self._buses = ports[2 * masters :]

    def join(self) -> None:
        """Make one cluster of the nodes and wait until every replica follows its master."""
        half = len(self.nodes) // 2
        for number, node in enumerate(self.nodes):
            until(partial(_answers, node), what=f"{node} to answer")
            node.ask("CLUSTER", "SET-CONFIG-EPOCH", number + 1)
            if number < half:
                first, last = (SLOTS * at // half for at in (number, number + 1))
                node.ask("CLUSTER", "ADDSLOTSRANGE", first, last - 1)
        for node, bus in list(zip(self.nodes, self._buses, strict=True))[1:]:
            self.nodes[0].ask("CLUSTER", "MEET", "127.0.0.1", node.port, bus)
        for node in self.nodes:
            until(partial(self._knows_all, node), what="to meet")
        for master, replica in zip(self.nodes[:half], self.nodes[half:], strict=True):
            identity = master.ask("CLUSTER", "MYID").decode()
            until(partial(replica.ask, "CLUSTER", "REPLICATE", identity), what="replicas")
        self.wait_until_whole()

    def wait_until_whole(self) -> None:
        """Wait until all slots are served and every living replica is in step with its master."""
        for node in self.nodes:
            until(partial(_cluster_ok, node), what=f"{node} to be in a whole cluster")
        # Asked anew each time: one that was frozen may call itself a master until it hears of its successor.
        until(
            lambda: all(_in_step(master, 1) for master in self.masters()),
            what="each master to have a replica in step",
        )

    @property
    def url(self) -> str:
        return f"redis+cluster://{','.join(node.address for node in self.nodes[:3])}"

    def masters(self) -> list[Node]:
        """The nodes that say of themselves that they are masters."""
        return [node for node in self.nodes if _role(node) == "master"]

    def master_of(self, key: str | int, other_than: Node | None = None) -> Node:
        """The master of a key's slot, or of a slot, as most others see it; waits for one."""
        slot = key if isinstance(key, int) else key_slot(key.encode())
        owner: Node = until(lambda: self._owner(slot, other_than), what=f"a master of slot {slot}")
        return owner

    def replica_of(self, master: Node) -> Node:
        """A replica that follows a master."""
        for node in self.nodes:
            if _role(node) == "slave" and node.info("replication")["master_port"] == master.port:
                return node
        raise AssertionError(f"{master} has no replica")

    @contextmanager
    def moving(self, slot: int, to: Node) -> Iterator[Callable[[], int]]:
        """Begin to move a slot, and end it with the block; what is yielded moves the keys that are there now."""
        source = self.master_of(slot)
        ids = {node: node.ask("CLUSTER", "MYID").decode() for node in (source, to)}
        to.ask("CLUSTER", "SETSLOT", slot, "IMPORTING", ids[source])
        source.ask("CLUSTER", "SETSLOT", slot, "MIGRATING", ids[to])

        def move_keys() -> int:
            keys = source.ask("CLUSTER", "GETKEYSINSLOT", slot, 100)
            if keys:
                source.ask("MIGRATE", "127.0.0.1", to.port, "", 0, 5000, "KEYS", *keys)
            return len(keys)

        try:
            yield move_keys
        finally:
            while move_keys():
                pass
            others = (master for master in self.masters() if master not in (to, source))
            for node in (to, source, *others):
                node.ask("CLUSTER", "SETSLOT", slot, "NODE", ids[to])

    def move(self, slot: int, to: Node) -> None:
        """Move a slot with its keys."""
        with self.moving(slot, to):
            pass

    def _owner(self, slot: int, other_than: Node | None) -> Node | None:
        votes: list[int] = []
        for node in self.nodes:
            with suppress(redis.RedisError, OSError):
                votes += [
                    master[1]
                    for first, last, master, *_ in node.ask("CLUSTER", "SLOTS")
                    if first <= slot <= last
                ]
        if not votes:
            return None
        port = max(votes, key=votes.count)
        value = next((node for node in self.nodes if node.port == port), None)
        return value if value is not other_than else None

    def _knows_all(self, node: Node) -> bool:
        return len(self._known(node)) == len(self.nodes)

    def _known(self, node: Node) -> list[Any]:
        lines = node.ask("CLUSTER", "NODES").decode().splitlines()
        return [line for line in lines if " connected" in line and "handshake" not in line]


class Trio(_Set):
    """A master, two replicas and three Sentinels that watch them as `SERVICE`."""

    def __init__(
        self, engine: str, down_after_ms: int, options: Sequence[str], rtt_ms: float
    ) -> None:
        super().__init__(engine, rtt_ms)
        ports = free_ports(6)
        announce = "--replica-announce-port"
        self.data = [self.node(*options, port=port, announce=announce) for port in ports[:3]]
        self.sentinels: list[Node] = []
        self._sentinel_ports, self._down_after_ms = ports[3:], down_after_ms

    def join(self) -> None:
        """Make replicas of two, wait for their first copy, and only then set the Sentinels on watch."""
        first = self.data[0]
        for node in self.data:
            until(partial(_answers, node), what=f"{node} to answer")
        for node in self.data[1:]:
            node.ask("REPLICAOF", "127.0.0.1", first.port)
        until(lambda: _in_step(first, 2), what="two replicas")
        for port in self._sentinel_ports:
            directory = self.directory / str(port)
            directory.mkdir()
            file = directory / "sentinel.conf"  # it is written to
            file.write_text(
                f"port {port}\nbind 127.0.0.1\ndir {directory}\n"
                f"sentinel monitor {SERVICE} 127.0.0.1 {first.port} 2\n"
                f"sentinel down-after-milliseconds {SERVICE} {self._down_after_ms}\n"
                f"sentinel failover-timeout {SERVICE} 5000\n"
                f"sentinel parallel-syncs {SERVICE} 2\n"
            )
            node = Node([self.binary, str(file), "--sentinel"], port, directory)
            self.sentinels.append(self._started(node))
        for node in self.sentinels:
            until(partial(_answers, node), what=f"{node} to answer")
            # Look at each other more often than every 2 and 10 s.
            node.ask("SENTINEL", "DEBUG", "INFO-PERIOD", 500, "PUBLISH-PERIOD", 200)
        self.wait_until_whole()

    def wait_until_whole(self) -> None:
        """Wait until every Sentinel knows the others and two living replicas, and these are in step."""
        for node in self.sentinels:
            until(partial(self._complete, node), what=f"{node} to see all nodes")
        until(lambda: _in_step(self.master(), 2), what="both replicas")

    @property
    def url(self) -> str:
        return f"redis+sentinel://{','.join(node.address for node in self.sentinels)}/{SERVICE}"

    def master(self) -> Node:
        """The master that the Sentinels name."""
        return self.wait_for_master()

    def wait_for_master(self, other_than: Node | None = None) -> Node:
        """Wait until the Sentinels name a (different) master that serves as one."""
        master: Node = until(lambda: self._named(other_than), what="a master")
        return master

    def hand_over(self) -> Node:
        """Let a replica take the place of the master, which lives on; returns it.

        A Sentinel that gives a hand-over up, since no replica obeyed in time, does not try again: it is asked again.
        """
        old = self.master()
        for _ in range(_HAND_OVERS):
            with suppress(redis.ResponseError, AssertionError):
                self.sentinels[0].ask("SENTINEL", "FAILOVER", SERVICE)
                new: Node = until(lambda: self._named(old), _HAND_OVER_S)
                return new
        raise AssertionError(f"no replica took over from {old}")

    def replicas(self) -> list[Node]:
        """The data nodes that are not the master."""
        master = self.master()
        return [node for node in self.data if node is not master]

    def _named(self, other_than: Node | None) -> Node | None:
        ports = set()
        for node in self.sentinels:
            with suppress(redis.RedisError, OSError):
                ports.add(int(node.ask("SENTINEL", "GET-MASTER-ADDR-BY-NAME", SERVICE)[1]))
        if len(ports) != 1:
            return None
        value = next(node for node in self.data if node.port in ports)
        return value if value is not other_than and _role(value) == "master" else None

    def _complete(self, sentinel: Node) -> bool:
        quorum = sentinel.ask("SENTINEL", "CKQUORUM", SERVICE)
        replicas = sentinel.ask("SENTINEL", "REPLICAS", SERVICE)
        living = [
            replica
            for replica in replicas
            if b"slave" in replica and b"s_down,slave" not in replica
        ]
        return b"OK 3 usable" in quorum and len(replicas) == len(living) == 2


@contextmanager
def cluster(
    engine: str = "valkey", *, masters: int = 3, node_timeout_ms: int = 2000, rtt_ms: float = 0.0
) -> Iterator[Cluster]:
    """Start a cluster of this many masters with a replica each."""
    made = Cluster(engine, masters, node_timeout_ms, rtt_ms)
    try:
        made.join()
        yield made
    finally:
        made.close()


@contextmanager
def sentinel(
    engine: str = "valkey", *options: str, down_after_ms: int = 1000, rtt_ms: float = 0.0
) -> Iterator[Trio]:
    """Start a master with two replicas and three Sentinels; `options` are for the data nodes."""
    made = Trio(engine, down_after_ms, options, rtt_ms)
    try:
        made.join()
        yield made
    finally:
        made.close()


@contextmanager
def shared(engine: str) -> Iterator[str]:
    """Start what QWORKER_TEST_SERVER names (one server, "cluster" or "sentinel"); gives its URL."""
    match os.environ.get("QWORKER_TEST_SERVER"):
        # No test stops these: a failover would only come of a busy machine, and lose what no replica has yet.
        case "cluster":
            with cluster(engine, node_timeout_ms=_PATIENT_MS) as nodes:
                yield nodes.url
        case "sentinel":
            with sentinel(engine, down_after_ms=_PATIENT_MS) as trio:
                yield trio.url
        case _:
            with start(engine) as server:
                yield server.url


def client_of(url: str) -> Any:
    """A plain client of redis-py for what a test looks at or sets up, in any slot of a Cluster."""
    parsed = ServerURL.parse(url)
    if not parsed.clustered:
        return ConnectionFactory(url).redis()
    make: Any = ClusterNode
    nodes = [make(node.host, node.port) for node in parsed.nodes]
    return RedisCluster(startup_nodes=nodes, protocol=2, retry=Retry(NoBackoff(), 0))


def _role(node: Node) -> str:
    with suppress(redis.RedisError, OSError):
        return str(node.info("replication")["role"])
    return ""


def _in_step(master: Node, replicas: int) -> bool:
    info = master.info("replication")
    states = [info.get(f"slave{number}", {}).get("state") for number in range(replicas)]
    return states == ["online"] * replicas


def _answers(node: Node) -> bool:
    return bool(node.redis().ping())


def _cluster_ok(node: Node) -> bool:
    text = node.ask("CLUSTER", "INFO").decode()
    return "cluster_state:ok" in text and f"cluster_slots_ok:{SLOTS}\r\n" in text
