"""Which queues there are: those of which there are keys.

The index `ns:queues` names them, so that they need not be sought. It may be lost, away, too large or written by a
stranger, and a plain `RPUSH` of somebody else announces nothing. So an entry counts where there are keys of that queue,
and leaves the index where there are none for a while. And the key space is looked through, a slice per call: at the
start, then every ten seconds where the server holds up to 16,000 keys, more seldom the more there are, every ten
minutes from a million on; every ten seconds while the index cannot be read or has shrunk. What is found is announced.
"""

from __future__ import annotations

import re
import time
from bisect import bisect_left
from collections.abc import Callable, Iterable, Sequence
from typing import Any, Final, Protocol, TypeVar

import structlog

from qworker.client.commands.command import Command
from qworker.client.commands.index import MAX_ASKED, announce, names, present, withdraw
from qworker.client.registry import is_place
from qworker.errors import (
    AccessDeniedError,
    BrokenQueueError,
    InDoubtError,
    LoadingError,
    OutOfMemoryError,
    QworkerError,
    ServerError,
    UnavailableError,
    concerns_the_call,
)
from qworker.store.nodes import Address
from qworker.telemetry.logs import Seldom
from qworker.wire.keys import QueueKeys, queues_key

__all__ = ["AWAY", "Execute", "Registry"]

_log = structlog.get_logger(__name__)
T = TypeVar("T")

#: Seconds after which the index is read again although it has as many entries as before.
REREAD_S: Final = 10.0
#: The most seconds between two walks through the key space; the fewest are `REREAD_S`. In between it is this many per
#: SCAN of the last one, times the reapers that share them.
DISCOVER_S: Final = 600.0
_REST_PER_SCAN_S: Final = 0.6
#: Seconds for which walks follow each other closely after the index has shrunk: who uses a queue announces it again
#: within a minute, but may be gone before.
_UNEASY_S: Final = 70.0
#: Keys that one SCAN looks at: about 0.2 ms of the server.
_SCANNED: Final = 1000
#: SCANs of one call, once the first walk is over.
_SCANS: Final = 20
#: Pages of the index, of 1,000 entries, that one call reads; and known queues that one reading looks at again.
_PAGES: Final = 20
_CHECKED: Final = 500
#: Entries without keys that are remembered, and that a log line names.
_MOST_ABSENT: Final = 100_000
_LOGGED: Final = 10


#: What a call to a node of a Cluster raises that is away; others may serve.
AWAY: Final = (UnavailableError, InDoubtError, LoadingError)


class Execute(Protocol):
    """How commands reach the server: `Client.execute`, with its patience set."""

    def __call__(self, command: Command[T], /) -> T:
        """Execute one command."""
        ...


class Registry:
    """The queues of one namespace, as of the last `refresh`: those of which there are keys."""

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
        #: How many reapers share the walks through the key space.
        self.reapers = 1
        self._execute = execute
        self._namespace = namespace
        self._masters = masters
        self._key = queues_key(namespace)
        self._clock = clock
        self._keys: dict[str, QueueKeys] = {}
        #: Entries of which there was no key, and since when.
        self._absent: dict[str, float] = {}
        self._seldom = Seldom(clock=clock)
        self._size = -1
        self._read_at = float("-inf")
        #: Where the reading of the index goes on, None between two; and what it has named so far.
        self._page: str | None = None
        self._named: set[str] = set()
        self._others = 0
        #: The queue that is looked at next, whether there are still keys of it.
        self._turn = ""
        #: Servers that the walk has still to go through, and the cursor in the first of them.
        self._ahead: list[Address] = []
        self._cursor = "0"
        self._scans = 0
        self._walk_at = float("-inf")
        self._walked = False
        self._uneasy_until = float("-inf")
        # meta, ready, unacked or delayed; the pattern leaves leases, which are many, on the server.
        self._pattern = f"{namespace}:{{*}}:[mrud][en]*"
        self._part = re.compile(
            re.escape(namespace) + r":\{([^{}]+)\}:(?:meta|ready|unacked|delayed)"
        )

    def refresh(self, budget_s: float) -> None:
        """Read the index where it may have changed, and go on with a walk through the key space that is due.

        One O(1) call where nothing has changed. The first walk takes up to `budget_s` seconds a call, a later one
        at most 20 SCANs. Raises the `ServerError` of a server that does not answer.
        """
        now = self._clock()
        try:
            self._follow_index(now, budget_s)
        except AWAY as error:
            # In a Cluster the node of the index may be away alone, and the queues of others are known.
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
        size = self._execute(Command(None, (), ("HLEN", self._key), int))
        if size < self._size:
            # Somebody removed a queue, or the server has lost what it held (no AOF, a failover, FLUSHDB).
            self._uneasy(now)
        if self._page is None and (size != self._size or now - self._read_at >= REREAD_S):
            self._page, self._named, self._others, self._read_at = "0", set(), 0, now
        self._size = size
        if self._page is None:
            return
        for number in range(_PAGES):
            if number and self._clock() - now >= budget_s:
                return
            page = self._execute(names(self._namespace, self._page))
            self._page = None if page.cursor == "0" else page.cursor
            found = {name for name in page.names if is_place(name)}
            self._others += page.others + len(page.names) - len(found)
            self._named |= found
            self._look_for(sorted(found - self._keys.keys()))
            if self._page is None:
                self._end_of_index()
                return

    def _end_of_index(self) -> None:
        """Compare what the index names with what is known: a queue of which there are keys is written there again."""
        lost = sorted(self._keys.keys() - self._named)
        self._named = set()
        there = self._present(lost)
        for name in lost:
            if name not in there:
                del self._keys[name]
        if there:
            self._announce(there)
        self._check_some()
        if self._others and (held := self._seldom.more("others")) is not None:
            _log.warning(
                "index_entries_ignored", key=self._key, entries=self._others, held_back=held
            )

    def _look_for(self, found: Sequence[str]) -> None:
        """Take entries of which there are keys for queues; others leave the index after some time without."""
        there = self._present(found)
        now = self._clock()
        gone = []
        for name in found:
            if name in there:
                self._know(name)
            elif name not in self._absent:
                if len(self._absent) < _MOST_ABSENT:
                    self._absent[name] = now
            elif now - self._absent[name] >= REREAD_S:
                gone.append(name)
        self._withdraw(gone)

    def _check_some(self) -> None:
        """Look at some of the known queues in turn, whether there are still keys of them."""
        known = sorted(self._keys)
        first = bisect_left(known, self._turn)
        some = [*known[first:], *known[:first]][:_CHECKED]
        self._turn = known[(first + len(some)) % len(known)] if known else ""
        there = self._present(some)
        now = self._clock()
        gone = []
        for name in some:
            if name in there:
                self._absent.pop(name, None)
            elif now - self._absent.setdefault(name, now) >= REREAD_S:
                gone.append(name)
                del self._keys[name]
        self._withdraw(gone)

    def _present(self, found: Sequence[str]) -> set[str]:
        there = set()
        for first in range(0, len(found), MAX_ASKED):
            some = found[first : first + MAX_ASKED]
            answers = self._execute(present([QueueKeys(self._namespace, name) for name in some]))
            there |= {name for name, each in zip(some, answers, strict=True) if each is not None}
        return there

    def _withdraw(self, gone: Sequence[str]) -> None:
        if not gone:
            return
        for first in range(0, len(gone), _SCANNED):
            some = gone[first : first + _SCANNED]
            self._size -= self._execute(withdraw(self._namespace, some))
        for name in gone:
            self._absent.pop(name, None)
        _log.info("index_entries_removed", entries=len(gone), queues=list(gone[:_LOGGED]))

    def _know(self, name: str) -> None:
        self._absent.pop(name, None)
        if name not in self._keys:
            self._keys[name] = QueueKeys(self._namespace, name)

    def _without_index(self, problem: str, error: QworkerError) -> None:
        """Go on with the queues that are known, and find others by walks that follow each other closely."""
        self._page = None
        now = self._clock()
        self._uneasy_until = now + _UNEASY_S
        self._walk_at = min(self._walk_at, now + REREAD_S)
        if now - self._read_at >= REREAD_S:
            self._read_at = now
            self._check_some_without_index()
        if (held := self._seldom.more(problem)) is not None:
            log = _log.warning if problem == "unread" else _log.error
            log(
                f"index_{problem}",
                key=self._key,
                problem=str(error),
                queues=len(self._keys),
                held_back=held,
            )

    def _check_some_without_index(self) -> None:
        known = sorted(self._keys)
        there = self._present(known[:_CHECKED])
        for name in known[:_CHECKED]:
            if name not in there:
                del self._keys[name]

    # -- the walk ------------------------------------------------------------------------------

    def _walk(self, deadline: float) -> None:
        """Go on with the walk through the key space, and take what is found for queues."""
        scans, away = 0, False
        self._ahead = self._ahead or list(self._masters())
        try:
            while scans == 0 or (self._clock() < deadline and (not self._walked or scans < _SCANS)):
                words = ("SCAN", self._cursor, "MATCH", self._pattern, "COUNT", _SCANNED)
                try:
                    command = Command(None, (), words, _page, node=self._ahead[0])
                    self._cursor, keys = self._execute(command)
                except AWAY:
                    # A cursor is of use on the server that gave it, and that may be another one by now.
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
            # Only queues that nobody announced are missed by this.
            _log.warning("discovery_refused", problem=str(error))
            self._begin_again(DISCOVER_S)

    def _rest_s(self, *, soon: bool) -> float:
        """Seconds until the next walk: a reaper's walks use less than a two thousandth of a server's time."""
        if soon or self._clock() < self._uneasy_until:
            return REREAD_S
        return min(DISCOVER_S, max(REREAD_S, _REST_PER_SCAN_S * self._scans * self.reapers))

    def _begin_again(self, after_s: float) -> None:
        self._ahead, self._cursor, self._scans = [], "0", 0
        self._walk_at = self._clock() + after_s

    def _uneasy(self, now: float) -> None:
        self._uneasy_until = now + _UNEASY_S
        self._begin_again(0.0)

    def _register(self, keys: list[str]) -> None:
        found = {match[1] for key in keys if (match := self._part.fullmatch(key))}
        fresh = [name for name in sorted(found - self._keys.keys()) if is_place(name)]
        if not fresh:
            return
        for name in fresh:
            self._know(name)
            if self._announce([name]):
                _log.info("queue_found", queue=name)

    def _announce(self, found: Iterable[str]) -> bool:
        """Write queues into the index; returns whether any was missing there. They are served all the same."""
        try:
            return self._execute(announce(self._namespace, sorted(found))) > 0
        except QworkerError as error:
            if (held := self._seldom.more("unwritten")) is not None:
                _log.warning("index_unwritten", problem=str(error), held_back=held)
            return True


def _page(reply: Any) -> tuple[str, list[str]]:
    cursor, keys = reply
    return cursor.decode(), [key.decode("utf-8", "replace") for key in keys]
