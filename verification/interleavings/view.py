"""A queue as the promises speak of it: where each message stands, who holds what, how far groups and runs have come."""

from __future__ import annotations

from functools import cached_property, lru_cache
from typing import Any, NamedTuple

from qworker.wire.envelope import Envelope
from verification.interleavings.fixed import NOW
from verification.interleavings.tables import LANE, NEVER_MS, held, numbers_of, pairs, rows_of

__all__ = ["Location", "View", "view"]


class Location(NamedTuple):
    """Where a message stands, and its counts. `at` is its index in a lease, else ''."""

    place: str
    at: str
    receives: int
    nacks: int
    timeouts: int
    shared: int

    @property
    def counts(self) -> tuple[int, int, int, int]:
        """Receives, nacks, timeouts, shared."""
        return (self.receives, self.nacks, self.timeouts, self.shared)


class View:
    """A queue as the promises speak of it."""

    def __init__(self, table: bytes) -> None:
        rows = rows_of(table)
        self.table = table
        #: Each message at each place where it stands; one, if all is well.
        self.locations: dict[str, list[Location]] = {}
        self.order: dict[str, list[str]] = {}
        self.leases: dict[str, dict[str, str]] = {}
        self.expiries: dict[str, int] = {}
        self.keys_held: dict[str, str] = {}
        self.dead_letters: dict[str, str] = {}
        self.due: dict[str, int] = {}
        #: What waits to be stored: number → fields.
        self.outbox: dict[int, dict[str, str]] = {}
        #: Groups of calls, runs by id, and results: what is kept of each.
        self.joins: dict[str, dict[str, Any]] = {}
        self.runs: dict[str, dict[str, str]] = {}
        self.results: dict[str, str] = {}
        for part, (kind, content) in rows.items():
            self._read(part, kind, content)
        self.deadlines = numbers_of(rows.get("unacked", ("", []))[1])
        self.cancelled = numbers_of(rows.get("cancelled", ("", []))[1])
        self.meta: dict[str, str] = pairs(rows.get("meta", ("", []))[1])
        stats = pairs(rows.get("stats", ("", []))[1])
        lanes = pairs(rows.get("producers", ("", []))[1])
        lanes |= {
            name.removeprefix(LANE): known for name, known in stats.items() if name.startswith(LANE)
        }
        self.lanes = {lane: int(known.split(" ")[0]) for lane, known in lanes.items()}
        #: unique key → (message id, until)
        self.unique: dict[str, tuple[str, int]] = {}
        for key, holding in pairs(rows.get("unique", ("", []))[1]).items():
            holder, until_ms = holding.split(" ")
            self.unique[key] = (holder, int(until_ms))
        self.stats = {
            name: int(value) for name, value in stats.items() if not name.startswith(LANE)
        }
        #: Those that have not ended.
        self.open_joins = pairs(rows.get("joins", ("", []))[1]).keys()
        self.open_runs = pairs(rows.get("runs", ("", []))[1]).keys()
        self.fired = int(pairs(rows.get("schedules", ("", []))[1]).get("s:fired", -1))

    def _read(self, part: str, kind: str, content: list[Any]) -> None:
        if part == "suspect" or part.startswith("ready"):
            self.order[part] = [self._stand(item, part) for item in content]
        elif part == "delayed":
            for item, due in zip(content[::2], content[1::2], strict=True):
                self.due[self._stand(item, part)] = int(due)
        elif part.startswith("lease:"):
            self.leases[part[6:]] = {
                index: self._stand(item, part, index) for index, item in held(content).items()
            }
        elif part.startswith("out:"):
            for entry, fields in content[1:]:
                self.outbox[int(entry.partition("-")[0])] = pairs(fields)
        elif part.startswith("join:"):
            self.joins[part[5:]] = pairs(content)
        elif part.startswith("run:"):
            self.runs[part[4:]] = pairs(content)
        elif part.startswith("result:"):
            self.results[part[7:]] = content[0]
        elif part == "dead":
            for entry, fields in content[1:]:
                self.dead_letters[self._stand(pairs(fields)["envelope"], part)] = entry

    def _stand(self, item: str, place: str, at: str = "") -> str:
        envelope = Envelope.parse(item.encode())
        assert envelope is not None, item
        counts = (envelope.receives, envelope.nacks, envelope.timeouts, envelope.shared)
        self.locations.setdefault(envelope.id, []).append(Location(place, at, *counts))
        if "x" in envelope.flags:
            self.expiries[envelope.id] = int(envelope.flags["x"])
        if "u" in envelope.flags:
            self.keys_held[envelope.id] = envelope.flags["u"]
        return envelope.id

    @cached_property
    def is_waiting(self) -> bool:
        """Whether anything is going to happen by itself at a time to come."""
        ahead = [*self.deadlines.values(), *self.due.values(), *self.expiries.values()]
        ahead += [until_ms for _, until_ms in self.unique.values()]
        return any(NOW < at < NEVER_MS for at in [*ahead, *self.cancelled.values()])

    @property
    def paused_out(self) -> bool:
        """Whether nothing is delivered."""
        return self.meta.get("paused", "") in ("out", "all")


@lru_cache(maxsize=200_000)
def view(table: bytes) -> View:
    """The view of a table."""
    return View(table)
