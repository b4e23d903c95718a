"""Which server a call goes to: the only one, the master that Sentinels name, or the node that serves the key's slot.

Finding that out takes questions to servers. They are written here once, as generators that yield each `Question` and
are sent its reply, or the error; `ConnectionFactory` asks them, over sync or asyncio connections. What is known is a
plain value, so it passes a fork and is shared by threads: whoever learns more replaces it.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Generator, Sequence
from dataclasses import dataclass
from typing import Any, Final, Protocol

from redis.crc import key_slot

from qworker.errors import (
    ClusterMovingError,
    InvalidOptionError,
    ReadOnlyError,
    ServerError,
    UnavailableError,
    UnsupportedServerError,
)
from qworker.store.hello import Hello
from qworker.store.nodes import Address
from qworker.store.url import ServerURL

__all__ = ["Key", "Question", "RedirectedError", "Search", "Topology", "topology_of"]

Key = str | bytes

SLOTS: Final = 16384
#: After a MOVED the whole map is read again, but not more often than this: one slot after another may be moving.
_READ_AGAIN_S: Final = 1.0


@dataclass(frozen=True, slots=True)
class Question:
    """A plain command to a server; `sentinel`: it is a Sentinel, with a user of its own."""

    address: Address
    words: tuple[str, ...]
    sentinel: bool = False


#: Yields questions, is sent replies or errors, and returns where to go.
Search = Generator[Question, Any, Address]


class RedirectedError(ClusterMovingError):
    """The node said who serves the slot (MOVED), or who might while it moves (ASK). Never leaves the client."""

    def __init__(self, text: str, slot: int, address: Address, *, asking: bool) -> None:
        super().__init__(text)
        self.slot, self.address, self.asking = slot, address, asking


class Topology(Protocol):
    """One way in which servers are arranged."""

    def place(self, key: Key | None) -> Address | None:
        """Where a call with this key goes, None with any key; None where that has to be searched for."""
        ...

    def search(self, key: Key | None) -> Search:
        """Find out where a call goes. Raises `ServerError`, or `InvalidOptionError` for a URL that is wrong."""
        ...

    def masters(self) -> tuple[Address, ...]:
        """The servers that have slots, as far as they are known."""
        ...

    def accept(self, hello: Hello, address: Address) -> None:
        """Raise `ReadOnlyError` for a server that is not (yet, or any more) what it was taken for."""
        ...

    def failed(self, error: ServerError, address: Address) -> bool:
        """Learn from an error; returns whether the connection that gave it is of no more use."""
        ...


def topology_of(url: ServerURL) -> Topology:
    """Make the topology that a URL names; nothing is known of it yet."""
    if url.watched:
        return Watched(url.nodes, url.service)
    if url.clustered:
        return Slots(url.nodes)
    return Single(Address(url.path, 0) if url.path else Address(url.host, url.port))


class Single:
    """One server."""

    def __init__(self, address: Address) -> None:
        self._address = address

    def place(self, key: Key | None) -> Address:
        return self._address

    def search(self, key: Key | None) -> Search:
        return self._address
        yield

    def masters(self) -> tuple[Address, ...]:
        return (self._address,)

    def accept(self, hello: Hello, address: Address) -> None:
        """Take it as it is: a replica refuses writes by itself."""

    def failed(self, error: ServerError, address: Address) -> bool:
        return True


class Watched:
    """A master and its replicas, of which Sentinels say who is who."""

    def __init__(self, sentinels: Sequence[Address], service: str) -> None:
        self._sentinels, self._service = tuple(sentinels), service
        self._master: Address | None = None

    def place(self, key: Key | None) -> Address | None:
        return self._master

    def search(self, key: Key | None) -> Search:
        problem: Exception | None = None
        for sentinel in self._sentinels:
            words = ("SENTINEL", "GET-MASTER-ADDR-BY-NAME", self._service)
            reply = yield Question(sentinel, words, sentinel=True)
            if isinstance(reply, Exception):
                problem = reply
            elif reply is not None:
                # The one that answered is asked first the next time: another may be frozen.
                others = (each for each in self._sentinels if each != sentinel)
                self._sentinels = (sentinel, *others)
                self._master = Address(reply[0].decode(), int(reply[1]))
                return self._master
        if problem is None:
            raise InvalidOptionError(
                "url",
                f"names the service {self._service!r}, which its Sentinels do not watch",
                "write the name that `SENTINEL MASTERS` shows",
            )
        raise UnavailableError(f"no Sentinel says who the master is; {problem}") from problem

    def masters(self) -> tuple[Address, ...]:
        return () if self._master is None else (self._master,)

    def accept(self, hello: Hello, address: Address) -> None:
        if hello.role != "master":
            self._forget(address)
            raise ReadOnlyError(
                f"{address} is named as the master and is a {hello.role}; a failover is going on"
            )

    def failed(self, error: ServerError, address: Address) -> bool:
        self._forget(address)
        return True

    def _forget(self, address: Address) -> None:
        if self._master == address:
            self._master = None


class Slots:
    """A Cluster: each slot has a master, and nodes say when that is another one."""

    def __init__(
        self, nodes: Sequence[Address], *, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._named, self._clock = tuple(nodes), clock
        self._slots: list[Address | None] = [None] * SLOTS
        self._masters: tuple[Address, ...] = ()
        #: Where calls without a key go: the master that told of the slots, since it serves.
        self._any: Address | None = None
        #: The map has to be read before it is used again.
        self._stale = True
        self._read_at = float("-inf")
        #: Nodes that failed since the map was read: asked last.
        self._failed: frozenset[Address] = frozenset()

    def place(self, key: Key | None) -> Address | None:
        if self._stale:
            return None
        return self._slots[_slot(key)] if key is not None else self._any

    def search(self, key: Key | None) -> Search:
        problem: Exception | None = None
        # Others go by the old map meanwhile.
        self._stale, self._read_at = not self._masters, self._clock()
        known = dict.fromkeys((*self._masters, *self._named))
        for node in sorted(known, key=lambda each: each in self._failed):
            reply = yield Question(node, ("CLUSTER", "SLOTS"))
            if isinstance(reply, UnsupportedServerError):
                raise reply
            if isinstance(reply, Exception):
                problem = reply
            elif self._read(reply, node):
                place = self.place(key)
                if place is not None:
                    return place
                self._stale = True
                raise ClusterMovingError(f"no node of the cluster serves slot {_slot(key or '')}")
        self._stale = True
        raise UnavailableError(
            f"no node of the cluster says which slots it serves ({problem})"
        ) from problem

    def masters(self) -> tuple[Address, ...]:
        return self._masters

    def accept(self, hello: Hello, address: Address) -> None:
        """Take it as it is: a node that does not serve a slot says who does."""

    def failed(self, error: ServerError, address: Address) -> bool:
        if isinstance(error, RedirectedError):
            if not error.address.host:  # it does not know its own name
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

    def _read(self, reply: Any, asked: Address) -> bool:
        """Take the reply of CLUSTER SLOTS; returns whether it names any master."""
        slots: list[Address | None] = [None] * SLOTS
        masters: dict[Address, None] = {}
        for first, last, master, *_ in reply:
            # A node that does not know its own name leaves it out.
            host = master[0].decode() if master[0] else ""
            node = Address(host if host not in ("", "?") else asked.host, int(master[1]))
            masters[node] = None
            slots[first : last + 1] = [node] * (last + 1 - first)
        if not masters:
            return False
        self._slots, self._masters = slots, tuple(masters)
        self._any = asked if asked in masters else self._masters[0]
        self._stale, self._failed = False, frozenset()
        return True


def _slot(key: Key) -> int:
    return int(key_slot(key.encode() if isinstance(key, str) else key))
