"""The results of the job in one SQLite file, outside the queue.

    sent     key                        every message, written by its sender after the send was confirmed
    handled  key, task, path, pid       every time that a handler finished
    files    path, …                    the index itself: each file once, however often it was handled

The key of a message is its id; summaries carry their own key, because a batch handler does not get ids.
Several processes write at a time; one that is killed leaves only whole transactions.
"""

from __future__ import annotations

import json
import os
import sqlite3
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Self

from qworker.demo.summary import FileSummary

__all__ = ["Index", "Results", "keys_of"]

_SCHEMA: Final = """
CREATE TABLE sent (key TEXT PRIMARY KEY) WITHOUT ROWID;
CREATE TABLE handled (key TEXT, task TEXT, path TEXT, pid INTEGER);
CREATE TABLE files (
    path TEXT PRIMARY KEY, module TEXT, lines INTEGER, classes INTEGER, functions INTEGER, imports TEXT
) WITHOUT ROWID;
"""
_BUSY_S: Final = 30.0


@dataclass(frozen=True, slots=True)
class Index:
    """Totals over all files. `imports`: the names that most files import, with the number of files."""

    files: int
    lines: int
    classes: int
    functions: int
    imports: tuple[tuple[str, int], ...]

    @property
    def symbols(self) -> int:
        """Classes and functions."""
        return self.classes + self.functions


class Results:
    """A connection to the file, for one thread."""

    def __init__(self, path: Path | str) -> None:
        self._database = sqlite3.connect(path, timeout=_BUSY_S, isolation_level=None)
        # It must survive the death of a process, not of the machine.
        self._database.execute("PRAGMA synchronous = OFF")

    @classmethod
    def create(cls, path: Path | str) -> Self:
        """Create the file, with empty tables."""
        results = cls(path)
        # Readers do not wait for the writer, nor the writer for readers.
        results._database.execute("PRAGMA journal_mode = WAL")
        results._database.executescript(_SCHEMA)
        return results

    # -- writing -------------------------------------------------------------------------------

    def note(
        self,
        *,
        sent: Iterable[str] = (),
        handled: Iterable[tuple[str, str, str]] = (),
        summaries: Iterable[FileSummary] = (),
    ) -> None:
        """Write in one transaction: keys sent, (key, task, path) handled, and summaries into the index."""
        pid = os.getpid()
        with self._transaction():
            self._database.executemany(
                "INSERT OR IGNORE INTO sent VALUES (?)", ((key,) for key in sent)
            )
            self._database.executemany(
                "INSERT INTO handled VALUES (?, ?, ?, ?)", ((*row, pid) for row in handled)
            )
            self._database.executemany(
                "INSERT OR REPLACE INTO files VALUES (?, ?, ?, ?, ?, ?)",
                (
                    (
                        summary.path,
                        summary.module,
                        summary.lines,
                        summary.classes,
                        summary.functions,
                        json.dumps(summary.imports),
                    )
                    for summary in summaries
                ),
            )

    # -- reading -------------------------------------------------------------------------------

    def sent(self) -> set[str]:
        """Return the keys of all messages whose send was confirmed."""
        return {key for (key,) in self._database.execute("SELECT key FROM sent")}

    def handled(self, *, by_others_than: int | None = None) -> set[str]:
        """Return the keys of all messages whose handler finished, in any process or in all but one."""
        rows = self._database.execute(
            "SELECT DISTINCT key FROM handled WHERE pid IS NOT ?", (by_others_than,)
        )
        return {key for (key,) in rows}

    def duplicates(self) -> int:
        """Count how often a task finished for a file that it had finished before."""
        rows = self._database.execute(
            "SELECT COUNT(*) FROM handled UNION ALL "
            "SELECT COUNT(*) FROM (SELECT DISTINCT task, path FROM handled)"
        )
        handled, distinct = (number for (number,) in rows)
        return int(handled - distinct)

    def index(self, most_imports: int = 6) -> Index:
        """Return the totals of the index."""
        files, *sums = self._database.execute(
            "SELECT COUNT(*), SUM(lines), SUM(classes), SUM(functions) FROM files"
        ).fetchone()
        imports: Counter[str] = Counter()
        for (names,) in self._database.execute("SELECT imports FROM files"):
            imports.update(json.loads(names))
        lines, classes, functions = (number or 0 for number in sums)
        return Index(files, lines, classes, functions, tuple(imports.most_common(most_imports)))

    def close(self) -> None:
        """Close the connection."""
        self._database.close()

    @contextmanager
    def _transaction(self) -> Iterator[None]:
        # IMMEDIATE: SQLite refuses to let a transaction that began with a read wait for a write.
        self._database.execute("BEGIN IMMEDIATE")
        try:
            yield
        except BaseException:
            self._database.execute("ROLLBACK")
            raise
        self._database.execute("COMMIT")


def keys_of(summaries: Sequence[FileSummary], task: str) -> list[tuple[str, str, str]]:
    """Return summaries as `Results.note` takes handled messages."""
    return [(summary.key, task, summary.path) for summary in summaries]
