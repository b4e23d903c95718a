"""Sums: the counts of a report, as tables that add up: the sums of two stretches of events make those of both.

So a report can carry them from one run to the next. A table maps a key to whole numbers, each of which is added, or the
least or greatest of which counts. Times are µs, times of day µs since 1970.

Buckets are numbered since 1970, and those of one width fall into those of a multiple of it. Durations are counted in
bins, a hundred for each power of ten; a percentile is the mean of the bin with its rank, and so within 2.4 % of the
exact one, and exact if the values of that bin are equal.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

__all__ = ["BINS_PER_DECADE", "TABLES", "Key", "Sums", "TableColumns", "percentiles"]

#: Bins between 1 ms and 10 ms, 10 ms and 100 ms …
BINS_PER_DECADE: Final = 100
#: Tables by free text (tasks, errors, workers) keep the keys with most, and not more than this.
_MOST: Final = 10_000
_RANKS: Final = (("p50", 0.5), ("p95", 0.95), ("p99", 0.99))

Key = tuple[Any, ...]


def _add(one: int, other: int) -> int:
    return one + other


@dataclass(frozen=True, slots=True)
class TableColumns:
    """The columns of a table. `buckets`: the places of buckets in its key.

    `least`, `most`: the values of which the least or the greatest counts. `by`: the value by which the largest are
    kept, if there are too many; `of`: how many columns of the key name one.
    """

    keys: tuple[str, ...]
    values: tuple[str, ...]
    buckets: tuple[int, ...] = ()
    least: frozenset[str] = frozenset()
    most: frozenset[str] = frozenset()
    by: str = ""
    of: int = 1

    @property
    def merges(self) -> tuple[Callable[[int, int], int], ...]:
        """How two values of each column become one."""
        return tuple(
            min if name in self.least else max if name in self.most else _add
            for name in self.values
        )


TABLES: Final[Mapping[str, TableColumns]] = {
    # Events of the window.
    "overview": TableColumns(
        (),
        ("rows", "first_us", "last_us"),
        least=frozenset({"first_us"}),
        most=frozenset({"last_us"}),
    ),
    "flow": TableColumns(
        ("queue", "bucket"), ("acked", "ended", "dead", "failed", "busy_us"), buckets=(1,)
    ),
    # Attempts that closed. kind: wait or run.
    "durations": TableColumns(("kind", "bucket", "bin"), ("attempts", "us"), buckets=(1,)),
    # bin: of the time that they ran; None without one.
    "tasks": TableColumns(
        ("task", "bin"), ("attempts", "failed", "run_us", "failed_us"), by="run_us"
    ),
    "failures": TableColumns(("task", "error"), ("failed", "run_us"), by="failed", of=2),
    "workers": TableColumns(
        ("worker", "task", "bin"), ("attempts", "failed", "run_us"), by="run_us", of=2
    ),
    # Deliveries of messages that waited for a limit. limit: as in the journal; bin: of the time from due to received.
    "limits": TableColumns(("queue", "limit", "bin"), ("waits", "us"), by="waits", of=2),
    # Messages. begun: when they became due; until: when they ended, None: they have not.
    "arrivals": TableColumns(("queue", "bucket"), ("messages",), buckets=(1,)),
    "backlog": TableColumns(
        ("queue", "begun", "until"),
        ("messages", "oldest_us"),
        buckets=(1, 2),
        least=frozenset({"oldest_us"}),
    ),
    "attempts": TableColumns(("attempts", "state"), ("messages",)),
    # bin: of the time from due to acked; None: they died.
    "sla": TableColumns(("queue", "bin"), ("done", "within", "failed", "took_us")),
    # Runs. state: completed, dead, cancelled, otherwise, open; bin: of the time that completed ones took, else None.
    "runs": TableColumns(("task", "state", "bin"), ("runs", "steps", "took_us"), by="runs"),
    # What they waited for: sleep, signal, gather.
    "waits": TableColumns(("task", "reason", "bin"), ("waits", "us"), by="waits"),
    # Groups of calls. queue: of the callback; state: ok, failed, cancelled, otherwise, open.
    "groups": TableColumns(
        ("queue", "state", "bin"),
        ("groups", "calls", "largest", "took_us"),
        most=frozenset({"largest"}),
    ),
}


@dataclass(frozen=True, slots=True)
class Sums:
    """All tables, with buckets of `width_s` seconds."""

    width_s: int
    tables: Mapping[str, dict[Key, list[int]]] = field(
        default_factory=lambda: {name: {} for name in TABLES}
    )

    def __getitem__(self, name: str) -> Mapping[Key, list[int]]:
        return self.tables[name]

    def add(self, name: str, rows: Iterable[tuple[Key, Sequence[int]]]) -> None:
        """Add rows to a table."""
        table, merges = self.tables[name], TABLES[name].merges
        for key, values in rows:
            known = table.get(key)
            if known is None:
                table[key] = list(values)
            else:
                for place, merge in enumerate(merges):
                    known[place] = merge(known[place], values[place])

    def plus(self, *others: Sums) -> Sums:
        """Add up sums of the same width."""
        total = Sums(self.width_s)
        for sums in (self, *others):
            assert sums.width_s == self.width_s
            for name, rows in sums.tables.items():
                total.add(name, rows.items())
        return total

    def wider(self, width_s: int) -> Sums:
        """Put buckets together, to a multiple of their width."""
        factor, rest = divmod(width_s, self.width_s)
        assert rest == 0, (width_s, self.width_s)
        total = Sums(width_s)
        for name, rows in self.tables.items():
            places = TABLES[name].buckets
            total.add(
                name,
                (
                    (
                        tuple(
                            part // factor if place in places and part is not None else part
                            for place, part in enumerate(key)
                        ),
                        values,
                    )
                    for key, values in rows.items()
                ),
            )
        return total

    def bounded(self) -> Sums:
        """Leave out the smallest of too many tasks, errors and workers."""
        tables = dict(self.tables)
        for name, table in TABLES.items():
            if not table.by:
                continue
            place, totals = table.values.index(table.by), dict[Key, int]()
            for key, values in tables[name].items():
                totals[key[: table.of]] = totals.get(key[: table.of], 0) + values[place]
            if len(totals) > _MOST:
                kept = set(sorted(totals, key=lambda key: (-totals[key], key))[:_MOST])
                rows = tables[name].items()
                tables[name] = {key: values for key, values in rows if key[: table.of] in kept}
        return Sums(self.width_s, tables)

    def to_arrow(self) -> Any:
        """The tables as one of pyarrow: `name`, `key` (JSON), `values`."""
        import pyarrow as pa

        rows = [
            (name, json.dumps(key), values)
            for name, table in self.tables.items()
            for key, values in table.items()
        ]
        names, keys, values = zip(*rows, strict=True) if rows else ((), (), ())
        return pa.table(
            {
                "name": pa.array(names, pa.string()),
                "key": pa.array(keys, pa.string()),
                "values": pa.array(values, pa.list_(pa.int64())),
            }
        )

    @classmethod
    def of_arrow(cls, table: Any, width_s: int) -> Sums:
        """Read what `to_arrow` made. Raises `KeyError`, `ValueError` for anything else."""
        sums = cls(width_s)
        columns = (table.column(name).to_pylist() for name in ("name", "key", "values"))
        for name, key, values in zip(*columns, strict=True):
            if len(values) != len(TABLES[name].values):
                raise ValueError(f"{name} has {len(values)} values")
            sums.tables[name][tuple(json.loads(key))] = values
        return sums

    def by(self, name: str, *columns: str) -> Iterator[tuple[Key, dict[Any, list[int]]]]:
        """Group a table by some columns of its key; the rest of each key is one column, or a tuple."""
        names = TABLES[name].keys
        places = [names.index(column) for column in columns]
        others = [place for place in range(len(names)) if place not in places]
        groups: dict[Key, dict[Any, list[int]]] = {}
        for key, values in self.tables[name].items():
            rest = tuple(key[place] for place in others)
            group = groups.setdefault(tuple(key[place] for place in places), {})
            group[rest[0] if len(rest) == 1 else rest] = values
        yield from groups.items()


def percentiles(bins: Mapping[int, tuple[int, int]]) -> dict[str, float | None]:
    """Read p50_ms, p95_ms and p99_ms from bins: bin → number of values, and their sum in µs. None without any."""
    total = sum(number for number, _ in bins.values())
    found: dict[str, float | None] = {f"{name}_ms": None for name, _ in _RANKS}
    if not total:
        return found
    reached, ordered = 0, sorted(bins.items())
    ranks = [(name, max(1, math.ceil(share * total))) for name, share in _RANKS]
    for _, (number, us) in ordered:
        reached += number
        while ranks and ranks[0][1] <= reached:
            found[f"{ranks.pop(0)[0]}_ms"] = round(us / number / 1000, 3)
    return found
