"""Which queues there are: those that `ns:queues` names, and those that only their keys show.

A plain `RPUSH` of somebody else registers nothing, and the registry's slot may fail over alone. So the key space is
looked through at the start, every ten minutes, and when the registry has shrunk, a slice per call, and what is found
there is registered.
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Iterable, Sequence
from typing import Any, Final, Protocol, TypeVar

import structlog

from qworker.client.commands.command import Command
from qworker.client.commands.registering import register
from qworker.errors import (
    AccessDeniedError,
    BrokenQueueError,
    InDoubtError,
    InvalidNameError,
    LoadingError,
    OutOfMemoryError,
    ServerError,
    UnavailableError,
    concerns_the_call,
)
from qworker.store.nodes import Address
from qworker.telemetry.logs import Seldom
from qworker.wire.keys import QueueKeys, queues_key
from qworker.wire.names import check_place, split_place
from qworker.wire.shards import Shards

__all__ = ["AWAY", "Execute", "Registry"]

_log = structlog.get_logger(__name__)
T = TypeVar("T")

#: Seconds after which the registry is read again although it has as many entries as before.
REREAD_S: Final = 10.0
#: Seconds between two walks through the key space.
DISCOVER_S: Final = 600.0
#: Seconds for which walks follow each other closely after the registry has shrunk: who uses a queue announces it again
#: within a minute, but may be gone before.
_UNEASY_S: Final = 70.0
#: Keys that one SCAN looks at: about 0.2 ms of the server.
_SCANNED: Final = 1000
#: SCANs of one call, once the first walk is over.
_SCANS: Final = 20


#: What a call to a node of a Cluster raises that is away; others may serve.
AWAY: Final = (UnavailableError, InDoubtError, LoadingError)


class Execute(Protocol):
    """How commands reach the server: `Client.execute`, with its patience set."""

    def __call__(self, command: Command[T], /) -> T:
        """Execute one command."""
        ...


class Registry:
    """The queues of one namespace, as of the last `refresh`."""

    def __init__(
        self,
        execute: Execute,
        namespace: str,
        masters: Callable[[], Sequence[Address]],
        *,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        #: In the order of their names.
        self.queues: tuple[QueueKeys, ...] = ()
        self._execute = execute
        self._namespace = namespace
        self._masters = masters
        self._key = queues_key(namespace)
        self._clock = clock
        self._keys: dict[str, QueueKeys] = {}
        self._ignored: frozenset[str] = frozenset()
        #: Queues that were found while the registry could not be written.
        self._unregistered: set[str] = set()
        self._seldom = Seldom(clock=clock)
        self._size = -1
        self._read_at = float("-inf")
        #: Servers that the walk has still to go through, and the cursor in the first of them.
        self._ahead: list[Address] = []
        self._cursor = "0"
        self._walk_at = float("-inf")
        self._walked = False
        self._uneasy_until = float("-inf")
        # meta, ready, unacked or delayed; the pattern leaves leases, which are many, on the server.
        self._pattern = f"{namespace}:{{*}}:[mrud][en]*"
        self._part = re.compile(
            re.escape(namespace) + r":\{([^{}]+)\}:(?:meta|ready|unacked|delayed)"
        )

    def refresh(self, budget_s: float) -> None:
        """Read the registry where it may have changed, and go on with a walk through the key space that is due.

        One O(1) call where nothing has changed. The first walk takes up to `budget_s` seconds a call, a later one
        at most 20 SCANs. Raises the `ServerError` of a server that does not answer.
        """
        now = self._clock()
        try:
            found = self._walk(now + budget_s) if now >= self._walk_at else 0
            size = self._execute(Command(None, (), ("HLEN", self._key), int))
            if size < self._size:
                # Somebody removed a queue, or the server has lost what it held (no AOF, a failover, FLUSHDB).
                self._uneasy_until = now + _UNEASY_S
                self._begin_again(0.0)
            if found or size != self._size or now - self._read_at >= REREAD_S:
                self._read()
                self._read_at = now
        except AWAY as error:
            # In a Cluster the registry's node may be away alone, and the queues of others are known.
            if not self.queues or len(self._masters()) == 1:
                raise
            _log.warning("registry_unread", problem=str(error), queues=len(self.queues))
        except ServerError as error:
            if type(error) is not ServerError:
                raise
            # It holds another type: what is known of it, and what the walk has found, are all the queues there are.
            self._know({*self._keys, *self._unregistered})
            if (held := self._seldom.more("broken")) is not None:
                _log.error("registry_broken", key=self._key, problem=str(error), held_back=held)

    def _read(self) -> None:
        names = self._execute(Command(None, (), ("HKEYS", self._key), _texts))
        self._size = len(names)
        self._unregistered.clear()
        self._know(names)

    def _know(self, names: Iterable[str]) -> None:
        known: dict[str, QueueKeys] = {}
        ignored = set()
        for name in sorted(names):
            if name in self._keys:
                known[name] = self._keys[name]
            elif _is_queue(name):
                known[name] = QueueKeys(self._namespace, name)
            else:
                ignored.add(name)
        if ignored - self._ignored:
            _log.warning("queue_names_ignored", key=self._key, names=sorted(ignored)[:10])
        self._keys, self._ignored = known, frozenset(ignored)
        self.queues = tuple(known.values())

    def _walk(self, deadline: float) -> int:
        """Go on with the walk; returns how many queues were found and registered."""
        found = scans = 0
        self._ahead = self._ahead or list(self._masters())
        try:
            while scans == 0 or (self._clock() < deadline and (not self._walked or scans < _SCANS)):
                words = ("SCAN", self._cursor, "MATCH", self._pattern, "COUNT", _SCANNED)
                command = Command(None, (), words, _page, node=self._ahead[0])
                self._cursor, names = self._execute(command)
                found += self._register(names)
                scans += 1
                if self._cursor == "0":
                    del self._ahead[0]
                if not self._ahead:
                    self._walked = True
                    uneasy = self._clock() < self._uneasy_until
                    self._walk_at = self._clock() + (REREAD_S if uneasy else DISCOVER_S)
                    break
        except (AccessDeniedError, OutOfMemoryError) as error:
            # Only queues that nobody registered are missed by this.
            _log.warning("discovery_refused", problem=str(error))
            self._begin_again(DISCOVER_S)
        except AWAY:
            # A cursor is of use on the server that gave it, and that may be another one by now.
            self._begin_again(REREAD_S)
            raise
        return found

    def _begin_again(self, after_s: float) -> None:
        self._ahead, self._cursor = [], "0"
        self._walk_at = self._clock() + after_s

    def _register(self, keys: list[str]) -> int:
        names = {match[1] for key in keys if (match := self._part.fullmatch(key))}
        found = 0
        for name in sorted(names - self._keys.keys()):
            if not _is_queue(name):
                continue
            try:
                new = self._add(name)
            except (BrokenQueueError, ServerError) as error:
                if not concerns_the_call(error):
                    raise
                self._unregistered.add(name)  # the registry holds another type
                continue
            if new:
                _log.info("queue_found", queue=name)
                found += 1
        return found

    def _add(self, name: str) -> bool:
        """Write a queue into the registry, or a shard with its queue; returns whether it was not there."""
        queue, shard = split_place(name)
        if shard:
            self._execute(register(self._key, queue, Shards(kept=shard + 1)))
            return True
        return bool(self._execute(Command(None, (), ("HSETNX", self._key, name, 1), int)))


def _is_queue(name: str) -> bool:
    try:
        check_place(name)
    except InvalidNameError:
        return False
    return True


def _texts(reply: Any) -> list[str]:
    return [word.decode("utf-8", "replace") for word in reply]


def _page(reply: Any) -> tuple[str, list[str]]:
    cursor, keys = reply
    return cursor.decode(), _texts(keys)
