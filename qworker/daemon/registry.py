"""The queues of a namespace: those that have keys.

The index `ns:queues` names them. It may be lost, away, too large or written by others, and a plain `RPUSH` does not
announce its queue. So an entry counts only if its queue has keys, and is removed after a while without. In addition
the reaper scans the key space, a slice per call, and announces the queues that it finds: at the start, then every ten
seconds if the server holds up to 16,000 keys, less often the more keys there are, down to every ten minutes from a
million on; and every ten seconds while the index cannot be read or has shrunk.
"""

from __future__ import annotations

import re
import time
from bisect import bisect_left
from collections.abc import Callable, Iterable, Sequence
from typing import Any, Final, Protocol, TypeVar

import structlog

from qworker.client.namespace.queues import is_shard_name
from qworker.engine.command import Command
from qworker.engine.index import MAX_ASKED, announce, names, present, withdraw
from qworker.engine.raw import raw
from qworker.errors import (
    AccessDeniedError,
    BrokenQueueError,
    BusyError,
    InDoubtError,
    LoadingError,
    OutOfMemoryError,
    QworkerError,
    ReadOnlyError,
    ServerError,
    UnavailableError,
    concerns_the_call,
)
from qworker.store.nodes import Address
from qworker.telemetry.throttle import LogThrottle
from qworker.wire.keys import QueueKeys, queues_key

__all__ = ["AWAY", "Execute", "Registry"]

_log = structlog.get_logger(__name__)
T = TypeVar("T")

#: Seconds after which the index is read again although its size has not changed.
REREAD_S: Final = 10.0
#: The most seconds between two walks through the key space; the fewest are `REREAD_S`. In between, it is the rest per
#: SCAN of the last walk, times the number of reapers, which share the walks.
DISCOVER_S: Final = 600.0
_REST_PER_SCAN_S: Final = 0.6
#: Seconds of frequent walks after the index has shrunk: clients announce their queues again within a minute, but may be
#: gone before.
_ALERT_S: Final = 70.0
#: Keys that one SCAN visits, about 0.2 ms of the server.
_SCANNED: Final = 1000
#: SCANs of one call after the first walk.
_SCANS: Final = 20
#: Pages of the index, of 1,000 entries, that one call reads; and known queues that one reading checks for keys.
_PAGES: Final = 20
_CHECKED: Final = 500
#: Entries without keys that are remembered, and those that a log line names.
_MOST_ABSENT: Final = 100_000
_LOGGED: Final = 10


#: Errors of a call to a node of a Cluster that does not serve now; others may serve.
AWAY: Final = (UnavailableError, InDoubtError, LoadingError, BusyError, ReadOnlyError)


class Execute(Protocol):
    """How commands reach the server: `Client.execute`, with its patience set."""

    def __call__(self, command: Command[T], /) -> T:
        """Execute one command."""
        ...


class Registry:
    """The queues of one namespace that have keys, as of the last `refresh`."""

    def __init__(
        self,
        execute: Execute,
        namespace: str,
        masters: Callable[[], Sequence[Address]],
        *,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        #: Sorted by name.
        self.queues: tuple[QueueKeys, ...] = ()
        #: The number of reapers, which share the walks through the key space.
        self.reapers = 1
        self._execute = execute
        self._namespace = namespace
        self._masters = masters
        self._key = queues_key(namespace)
        self._clock = clock
        self._keys: dict[str, QueueKeys] = {}
        #: Entries without a key, and since when.
        self._absent: dict[str, float] = {}
        self._throttle = LogThrottle(clock=clock)
        self._size = -1
        self._read_at = float("-inf")
        #: The cursor of the next page of the index, None between two readings; and the names that this one has read.
        self._page: str | None = None
        self._named: set[str] = set()
        self._ignored = 0
        #: The next known queue to check for keys.
        self._turn = ""
        #: Servers that the walk still has to scan, and the cursor in the first of them.
        self._ahead: list[Address] = []
        self._cursor = "0"
        self._scans = 0
        self._walk_at = float("-inf")
        self._walked = False
        self._alert_until = float("-inf")
        # meta, ready, unacked or delayed; the pattern leaves leases, which are many, on the server.
        self._pattern = f"{namespace}:{{*}}:[mrud][en]*"
        self._part = re.compile(
            re.escape(namespace) + r":\{([^{}]+)\}:(?:meta|ready|unacked|delayed)"
        )

    def refresh(self, budget_s: float) -> None:
        """Read the index if it may have changed, and continue a walk through the key space that is due.

        One O(1) call if nothing has changed. The first walk takes up to `budget_s` seconds a call, a later one
        at most 20 SCANs. Raises the `ServerError` of a server that does not answer.
        """
        now = self._clock()
        try:
            self._follow_index(now, budget_s)
        except AWAY as error:
            # In a Cluster the node of the index may be away alone, and the queues of other nodes are known.
            if len(self._masters()) == 1:
                raise
            self._without_index("unread", error)
        except (BrokenQueueError, ServerError) as error:
            if not concerns_the_call(error):
                raise
            self._without_index("broken", error)
        if now >= self._walk_at:
            self._walk(now + budget_s)
        if self._keys.keys() != {keys.queue for keys in self.queues}:
            self.queues = tuple(self._keys[name] for name in sorted(self._keys))

    # -- the index -----------------------------------------------------------------------------

    def _follow_index(self, now: float, budget_s: float) -> None:
        size = self._execute(raw("HLEN", self._key, decode=int))
        if size < self._size:
            # An operator removed a queue, or the server has lost its data (no AOF, a failover, FLUSHDB).
            self._alert(now)
        if self._page is None and (size != self._size or now - self._read_at >= REREAD_S):
            self._page, self._named, self._ignored, self._read_at = "0", set(), 0, now
        self._size = size
        if self._page is None:
            return
        for number in range(_PAGES):
            if number and self._clock() - now >= budget_s:
                return
            page = self._execute(names(self._namespace, self._page))
            self._page = None if page.cursor == "0" else page.cursor
            valid = {name for name in page.names if is_shard_name(name)}
            self._ignored += page.others + len(page.names) - len(valid)
            self._named |= valid
            self._check_unknown(sorted(valid - self._keys.keys()))
            if self._page is None:
                self._end_of_index()
                return

    def _end_of_index(self) -> None:
        """Compare the index with the known queues; announce those again that it has lost but that have keys."""
        lost = sorted(self._keys.keys() - self._named)
        self._named = set()
        present = self._present(lost)
        for name in lost:
            if name not in present:
                del self._keys[name]
        if present:
            self._announce(present)
        self._check_known()
        if self._ignored and (suppressed := self._throttle.admit("others")) is not None:
            _log.warning(
                "index_entries_ignored", key=self._key, entries=self._ignored, held_back=suppressed
            )

    def _check_unknown(self, unknown: Sequence[str]) -> None:
        """Take entries that have keys as queues; remove those that have had none for some time."""
        present = self._present(unknown)
        now = self._clock()
        gone = []
        for name in unknown:
            if name in present:
                self._add(name)
            elif name not in self._absent:
                if len(self._absent) < _MOST_ABSENT:
                    self._absent[name] = now
            elif now - self._absent[name] >= REREAD_S:
                gone.append(name)
        self._withdraw(gone)

    def _check_known(self) -> None:
        """Check that known queues still have keys, some of them in turn."""
        known = sorted(self._keys)
        first = bisect_left(known, self._turn)
        some = [*known[first:], *known[:first]][:_CHECKED]
        self._turn = known[(first + len(some)) % len(known)] if known else ""
        present = self._present(some)
        now = self._clock()
        gone = []
        for name in some:
            if name in present:
                self._absent.pop(name, None)
            elif now - self._absent.setdefault(name, now) >= REREAD_S:
                gone.append(name)
                del self._keys[name]
        self._withdraw(gone)

    def _present(self, queues: Sequence[str]) -> set[str]:
        """Return those that have keys."""
        named = set()
        for first in range(0, len(queues), MAX_ASKED):
            some = queues[first : first + MAX_ASKED]
            answers = self._execute(present([QueueKeys(self._namespace, name) for name in some]))
            named |= {
                name for name, shards in zip(some, answers, strict=True) if shards is not None
            }
        return named

    def _withdraw(self, gone: Sequence[str]) -> None:
        if not gone:
            return
        for first in range(0, len(gone), _SCANNED):
            some = gone[first : first + _SCANNED]
            self._size -= self._execute(withdraw(self._namespace, some))
        for name in gone:
            self._absent.pop(name, None)
        _log.info("index_entries_removed", entries=len(gone), queues=list(gone[:_LOGGED]))

    def _add(self, name: str) -> None:
        self._absent.pop(name, None)
        if name not in self._keys:
            self._keys[name] = QueueKeys(self._namespace, name)

    def _without_index(self, problem: str, error: QworkerError) -> None:
        """Continue with the known queues, and find others by frequent walks."""
        self._page = None
        now = self._clock()
        self._alert_until = now + _ALERT_S
        self._walk_at = min(self._walk_at, now + REREAD_S)
        if now - self._read_at >= REREAD_S:
            self._read_at = now
            self._check_without_index()
        if (suppressed := self._throttle.admit(problem)) is not None:
            log = _log.warning if problem == "unread" else _log.error
            log(
                f"index_{problem}",
                key=self._key,
                problem=str(error),
                queues=len(self._keys),
                held_back=suppressed,
            )

    def _check_without_index(self) -> None:
        some = sorted(self._keys)[:_CHECKED]
        present = self._present(some)
        for name in some:
            if name not in present:
                del self._keys[name]

    # -- the walk ------------------------------------------------------------------------------

    def _walk(self, deadline: float) -> None:
        """Continue the walk through the key space, and add the queues of the keys that it finds."""
        scans, away = 0, False
        self._ahead = self._ahead or list(self._masters())
        try:
            while scans == 0 or (self._clock() < deadline and (not self._walked or scans < _SCANS)):
                words = ("SCAN", self._cursor, "MATCH", self._pattern, "COUNT", _SCANNED)
                try:
                    command = raw(*words, decode=_page, node=self._ahead[0])
                    self._cursor, keys = self._execute(command)
                except AWAY:
                    # A cursor holds only on the server that gave it, and another one may have taken over.
                    if len(self._masters()) == 1:
                        self._begin_again(REREAD_S)
                        raise
                    self._cursor, keys, away = "0", [], True
                self._register(keys)
                scans += 1
                self._scans += 1
                if self._cursor == "0":
                    del self._ahead[0]
                if not self._ahead:
                    self._walked = True
                    self._begin_again(self._rest_s(soon=away))
                    break
        except (AccessDeniedError, OutOfMemoryError) as error:
            # Only queues that no client announced are missed.
            _log.warning("discovery_refused", problem=str(error))
            self._begin_again(DISCOVER_S)

    def _rest_s(self, *, soon: bool) -> float:
        """Seconds until the next walk: walks use less than a two thousandth of a server's time."""
        if soon or self._clock() < self._alert_until:
            return REREAD_S
        return min(DISCOVER_S, max(REREAD_S, _REST_PER_SCAN_S * self._scans * self.reapers))

    def _begin_again(self, after_s: float) -> None:
        self._ahead, self._cursor, self._scans = [], "0", 0
        self._walk_at = self._clock() + after_s

    def _alert(self, now: float) -> None:
        self._alert_until = now + _ALERT_S
        self._begin_again(0.0)

    def _register(self, keys: list[str]) -> None:
        queues = {match[1] for key in keys if (match := self._part.fullmatch(key))}
        for name in sorted(queues - self._keys.keys()):
            if is_shard_name(name):
                self._add(name)
                if self._announce([name]):
                    _log.info("queue_found", queue=name)

    def _announce(self, queues: Iterable[str]) -> bool:
        """Write queues into the index; returns whether one was missing. If that fails, they are served anyway."""
        try:
            return self._execute(announce(self._namespace, sorted(queues))) > 0
        except QworkerError as error:
            if (suppressed := self._throttle.admit("unwritten")) is not None:
                _log.warning("index_unwritten", problem=str(error), held_back=suppressed)
            return True


def _page(reply: Any) -> tuple[str, list[str]]:
    cursor, keys = reply
    return cursor.decode(), [key.decode("utf-8", "replace") for key in keys]
