"""Which server a call goes to: the only one, the master that Sentinels name, or the node that serves the key's slot.

Searches ask servers. They are generators that yield a `Question` and are sent its reply or error; `ConnectionFactory`
asks, over sync or asyncio connections. A topology's knowledge is plain values that are replaced as a whole, so forks
and threads can share it.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Collection, Generator, Sequence
from typing import Any, Final, Protocol

import msgspec
from redis.crc import key_slot

from qworker.errors import (
    ClusterMovingError,
    InDoubtError,
    InvalidOptionError,
    ReadOnlyError,
    ServerError,
    SlotUnservedError,
    UnavailableError,
    UnsupportedServerError,
)
from qworker.store.hello import Hello
from qworker.store.nodes import Address
from qworker.store.url import ServerURL

__all__ = ["Key", "Question", "RedirectedError", "Search", "Topology", "slot_of", "topology_of"]

Key = str | bytes

SLOTS: Final = 16384
#: The least time between two reads of the whole map after a MOVED: slots move one by one.
_READ_AGAIN_S: Final = 1.0
#: How long a map that names no node for a slot is believed: a pass over many such queues reads it once.
_UNSERVED_S: Final = 0.25
#: How long a server may take to name another, in seconds per step. While there are more to ask, each gets `_QUICK_S`
#: first: a frozen one must not hold up a call to a server that serves.
_QUICK_S: Final = 0.25
_PATIENT_S: Final = 1.0


class Question(msgspec.Struct, frozen=True):
    """A plain command to a server, which gets `within_s` for each step; `sentinel`: with the Sentinels' user."""

    address: Address
    words: tuple[str, ...]
    sentinel: bool = False
    within_s: float = _PATIENT_S


#: A server, and the seconds that it gets for each step of an answer.
Turn = tuple[Address, float]
#: Yields questions, is sent replies or errors, and returns the server.
Search = Generator[Question, Any, Address]


class RedirectedError(ClusterMovingError):
    """The slot is on another node (MOVED), or may be while it moves (ASK). The client handles it; you never see it."""

    def __init__(self, text: str, slot: int, address: Address, *, asking: bool) -> None:
        super().__init__(text)
        self.slot, self.address, self.asking = slot, address, asking


class Topology(Protocol):
    """An arrangement of servers."""

    def node(self, key: Key | None) -> Address | None:
        """Return the server for calls with this key (None: any); None if `search` has to find it."""
        ...

    def last_node(self, key: Key | None) -> Address | None:
        """Return the server that was last known for calls with this key, to tell whose failure a failed call was."""
        ...

    def search(self, key: Key | None) -> Search:
        """Find the server for calls with this key. Raises `ServerError`, and `InvalidOptionError` for a wrong URL."""
        ...

    def masters(self) -> tuple[Address, ...]:
        """Return the known servers that have slots."""
        ...

    def accept(self, hello: Hello, address: Address) -> None:
        """Raise `ReadOnlyError` for a server that is not a master, or not yet."""
        ...

    def failed(self, error: ServerError, address: Address) -> bool:
        """Learn from an error; returns whether to drop the connection that raised it."""
        ...


def topology_of(url: ServerURL) -> Topology:
    """Make the topology that a URL names."""
    if url.has_sentinels:
        return Sentinel(url.nodes, url.service)
    if url.clustered:
        return Cluster(url.nodes)
    return Standalone(Address(url.path, 0) if url.path else Address(url.host, url.port))


def _turns(servers: Collection[Address]) -> deque[Turn]:
    """Return the servers that a search asks, each with the seconds that it gets."""
    return deque((server, _QUICK_S if len(servers) > 1 else _PATIENT_S) for server in servers)


def _again(turn: Turn, error: Exception) -> list[Turn]:
    """Ask a server again, patiently, after all others: it may be far away, or busy. Only if it got little time."""
    server, within_s = turn
    slow = within_s < _PATIENT_S and isinstance(error, UnavailableError | InDoubtError)
    return [(server, _PATIENT_S)] if slow else []


class Standalone:
    """One server."""

    def __init__(self, address: Address) -> None:
        self._address = address

    def node(self, key: Key | None) -> Address:
        return self._address

    last_node = node

    def search(self, key: Key | None) -> Search:
        return self._address
        yield

    def masters(self) -> tuple[Address, ...]:
        return (self._address,)

    def accept(self, hello: Hello, address: Address) -> None:
        """Accept any server: a replica refuses writes itself."""

    def failed(self, error: ServerError, address: Address) -> bool:
        return True


class Sentinel:
    """A master with replicas; Sentinels say which server is the master."""

    def __init__(self, sentinels: Sequence[Address], service: str) -> None:
        self._sentinels, self._service = tuple(sentinels), service
        self._master: Address | None = None

    def node(self, key: Key | None) -> Address | None:
        return self._master

    last_node = node

    def search(self, key: Key | None) -> Search:
        problem: Exception | None = None
        words = ("SENTINEL", "GET-MASTER-ADDR-BY-NAME", self._service)
        turns = _turns(self._sentinels)
        while turns:
            turn = sentinel, within_s = turns.popleft()
            reply = yield Question(sentinel, words, sentinel=True, within_s=within_s)
            if isinstance(reply, Exception):
                problem = reply
                turns += _again(turn, reply)
            elif reply is not None:
                # Ask this one first next time: another may be frozen.
                others = (other for other in self._sentinels if other != sentinel)
                self._sentinels = (sentinel, *others)
                self._master = Address(reply[0].decode(), int(reply[1]))
                return self._master
        if problem is None:
            raise InvalidOptionError(
                "url",
                f"names the service {self._service!r}, which its Sentinels do not watch",
                "write the name that `SENTINEL MASTERS` shows",
            )
        raise UnavailableError(f"no Sentinel names the master; {problem}") from problem

    def masters(self) -> tuple[Address, ...]:
        return () if self._master is None else (self._master,)

    def accept(self, hello: Hello, address: Address) -> None:
        if hello.role != "master":
            self._forget(address)
            raise ReadOnlyError(
                f"{address} should be the master and is a {hello.role}; a failover is in progress"
            )

    def failed(self, error: ServerError, address: Address) -> bool:
        self._forget(address)
        return True

    def _forget(self, address: Address) -> None:
        if self._master == address:
            self._master = None


class Cluster:
    """A Cluster: every slot has a master, and nodes redirect calls for slots of others."""

    def __init__(
        self, nodes: Sequence[Address], *, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._named, self._clock = tuple(nodes), clock
        self._slots: list[Address | None] = [None] * SLOTS
        self._masters: tuple[Address, ...] = ()
        #: For calls without a key: the master that sent the map, because it answers. None if a replica sent it.
        self._any: Address | None = None
        #: The map must be read before its next use.
        self._stale = True
        self._read_at = float("-inf")
        #: Nodes that failed and have not sent a map since: ask them last.
        self._failed: frozenset[Address] = frozenset()

    def node(self, key: Key | None) -> Address | None:
        return None if self._stale else self.last_node(key)

    def last_node(self, key: Key | None) -> Address | None:
        return self._slots[slot_of(key)] if key is not None else self._any

    def search(self, key: Key | None) -> Search:
        problem: Exception | None = None
        if not self._stale and key is not None and self._clock() - self._read_at < _UNSERVED_S:
            return self._served(key)
        # Other threads use the old map until then.
        self._stale, self._read_at = not self._masters, self._clock()
        known = dict.fromkeys((*self._masters, *self._named))
        turns = _turns(sorted(known, key=self._failed.__contains__))
        asked: set[Address] = set()
        while turns:
            turn = node, within_s = turns.popleft()
            asked.add(node)
            reply = yield Question(node, ("CLUSTER", "SLOTS"), within_s=within_s)
            if isinstance(reply, UnsupportedServerError):
                raise reply
            if isinstance(reply, Exception):
                problem = reply
                self._failed |= {node}
                turns += _again(turn, reply)
            elif self._read(reply, node):
                if key is not None:
                    return self._served(key)
                if self._any is not None:
                    return self._any
                # A replica sent the map. Which masters answer is known once they are asked.
                again = [turn for turn in turns if turn[0] in asked and turn[0] in self._masters]
                turns = _turns([master for master in self._masters if master not in asked])
                turns += again
        self._stale = True
        raise UnavailableError(
            f"no node of the Cluster says which slots it serves ({problem})"
        ) from problem

    def masters(self) -> tuple[Address, ...]:
        return self._masters

    def accept(self, hello: Hello, address: Address) -> None:
        """Accept any node: one that does not serve a slot redirects the call."""

    def failed(self, error: ServerError, address: Address) -> bool:
        if isinstance(error, RedirectedError):
            if not error.address.host:  # the node does not know its own address
                error.address = error.address._replace(host=address.host)
            if not error.asking:
                self._slots[error.slot] = error.address
                self._stale = self._stale or self._clock() - self._read_at >= _READ_AGAIN_S
            return False
        self._stale = True
        if isinstance(error, ClusterMovingError):
            return False
        self._failed |= {address}
        return True

    def _served(self, key: Key) -> Address:
        """Return the node that serves a key by a map just read."""
        if (node := self.last_node(key)) is None:
            raise SlotUnservedError(f"no node of the Cluster serves slot {slot_of(key)}")
        return node

    def _read(self, reply: Any, asked: Address) -> bool:
        """Read a reply of CLUSTER SLOTS; returns whether it names any master."""
        slots: list[Address | None] = [None] * SLOTS
        masters: dict[Address, None] = {}
        for first, last, master, *_ in reply:
            # A node that does not know its own address leaves it out.
            host = master[0].decode() if master[0] else ""
            node = Address(host if host not in ("", "?") else asked.host, int(master[1]))
            masters[node] = None
            slots[first : last + 1] = [node] * (last + 1 - first)
        if not masters:
            return False
        self._slots, self._masters = slots, tuple(masters)
        self._any = asked if asked in masters else None
        self._stale = False
        self._failed = self._failed.intersection((*masters, *self._named)) - {asked}
        return True


def slot_of(key: Key) -> int:
    """Return the slot of a key in a Cluster."""
    return int(key_slot(key.encode() if isinstance(key, str) else key))
