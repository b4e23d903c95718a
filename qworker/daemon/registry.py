"""The queues of a namespace: those that have keys.

The index `ns:queues` names them. It may be lost, away, too large or written by others, and a plain `RPUSH` does not
announce its queue. So an entry counts only if its queue has keys, and is removed after a while without; and the reaper
also walks through the key space (see `discovery`) and announces the queues that it finds there.
"""

from __future__ import annotations

import time
from bisect import bisect_left
from collections.abc import Callable, Iterable, Sequence
from typing import Final

import structlog

from qworker.client.execute.backoff import AWAY
from qworker.client.execute.protocol import Execute
from qworker.client.namespace.queues import is_shard_name
from qworker.daemon.discovery import Discovery
from qworker.engine.index import MAX_ASKED, announce, names, present, withdraw
from qworker.engine.raw import raw
from qworker.errors import BrokenQueueError, QworkerError, ServerError, concerns_the_call
from qworker.store.nodes import Address
from qworker.telemetry.throttle import LogThrottle
from qworker.wire.keys import QueueKeys, queues_key

__all__ = ["Registry"]

_log = structlog.get_logger(__name__)

#: Seconds after which the index is read again although its size has not changed.
_REREAD_S: Final = 10.0
#: Pages of the index, of 1,000 entries, that one call reads; and known queues that one reading checks for keys.
_PAGES: Final = 20
_CHECKED: Final = 500
#: Entries that one call removes.
_WITHDRAWN: Final = 1000
#: Entries without keys that are remembered, and those that a log line names.
_MAX_ABSENT: Final = 100_000
_LOGGED: Final = 10


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
        self._discovery = Discovery(execute, namespace, masters, clock=clock)

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
        for found in self._discovery.walk(now, budget_s, self.reapers):
            self._register(found)
        if self._keys.keys() != {keys.queue for keys in self.queues}:
            self.queues = tuple(self._keys[name] for name in sorted(self._keys))

    # -- the index -----------------------------------------------------------------------------

    def _follow_index(self, now: float, budget_s: float) -> None:
        size = self._execute(raw("HLEN", self._key, decode=int))
        if size < self._size:
            # An operator removed a queue, or the server has lost its data (no AOF, a failover, FLUSHDB).
            self._discovery.alert(now)
        if self._page is None and (size != self._size or now - self._read_at >= _REREAD_S):
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
                if len(self._absent) < _MAX_ABSENT:
                    self._absent[name] = now
            elif now - self._absent[name] >= _REREAD_S:
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
            elif now - self._absent.setdefault(name, now) >= _REREAD_S:
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
        for first in range(0, len(gone), _WITHDRAWN):
            some = gone[first : first + _WITHDRAWN]
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
        self._discovery.alert_soon(now)
        if now - self._read_at >= _REREAD_S:
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

    # -- queues outside the index --------------------------------------------------------------

    def _register(self, found: set[str]) -> None:
        for name in sorted(found - self._keys.keys()):
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
