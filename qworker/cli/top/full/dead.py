"""Dead letters on the screen: the newest of each queue, grouped by their error."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from qworker.cli.framework.terminal import Cell
from qworker.cli.top.full.columns import GridColumn
from qworker.cli.top.full.glyphs import Glyphs, bars
from qworker.cli.top.full.view import Key, View
from qworker.client.dead.filter import DeadFilter
from qworker.client.dead.groups import ErrorGroup, group_by_error
from qworker.client.dead.newest import newest
from qworker.formats import ago, count

if TYPE_CHECKING:
    from qworker.monitor.namespace import Namespace
    from qworker.monitor.sample import Sample

__all__ = ["ALONE", "STOP", "DeadLetters", "DeadRow", "read_dead"]

#: Queues that are read, those with the most dead letters, and dead letters: of each queue, and of one alone.
_QUEUES: Final = 50
_EACH: Final = 500
ALONE: Final = 5_000
_MOST: Final = 10_000
#: Reading them again waits for this many times what it took.
_REST: Final = 150


STOP: Final = Key(
    "s",
    "stop",
    "stop",
    "Undo the drop of this queue that has not begun; stop the change that runs.",
)


@dataclass(frozen=True, slots=True)
class DeadRow:
    """The dead letters of a queue with the same error. `whole`: all dead letters of the queue were read."""

    queue: str
    group: ErrorGroup
    whole: bool
    now_ms: int

    @property
    def number(self) -> str:
        """How many there are, at least."""
        return count(self.group.count) if self.whole else f"{count(self.group.count)}+"


@dataclass(frozen=True, slots=True)
class DeadGroups:
    """Groups, how many dead letters were read for them, and how many there were."""

    rows: tuple[DeadRow, ...] = ()
    read: int = 0
    of: int = 0
    took_s: float = 0.0


def read_dead(namespace: Namespace, numbers: dict[str, int], only: str = "") -> DeadGroups:
    """Read and group the newest dead letters of queues, `numbers` of them by queue; of one queue more of them.

    Raises `QworkerError`.
    """
    started_s = namespace.spent_s()
    chosen = sorted(numbers, key=lambda name: (-numbers[name], name))[:_QUEUES]
    most = ALONE if only else min(_EACH, _MOST // max(1, len(chosen)))
    rows: list[DeadRow] = []
    read = 0
    for name in [only] if only else chosen:
        ref = namespace.queues.ref(name)
        found = namespace.client.run(newest(ref, DeadFilter(), most_read=most))
        read += found.read
        rows += [
            DeadRow(name, group, found.last is None, found.now_ms)
            for group in group_by_error(found.found).values()
        ]
    of = numbers.get(only, 0) if only else sum(numbers.values())
    return DeadGroups(tuple(rows), read, max(of, read), namespace.spent_s() - started_s)


class DeadLetters(View[DeadRow]):
    """Dead letters by queue and error: the latest death first."""

    name = "dead"
    title = "Dead letters"
    short = "Dead"
    keys = (
        Key("enter", "open", "open", "List the dead letters of this kind."),
        Key("r", "redrive", "change('redrive')", "Put all of this kind back to ready, at a rate."),
        Key("x", "drop", "change('drop')", "Delete all of this kind."),
        Key(
            "R",
            "redrive all",
            "change_all('redrive')",
            "Put all dead letters of the queue back.",
            "R",
        ),
        Key("X", "drop all", "change_all('drop')", "Delete all dead letters of the queue.", "X"),
        STOP,
    )

    def __init__(self, namespace: str, glyphs: Glyphs) -> None:
        super().__init__()
        self._namespace = namespace
        self.found = DeadGroups()
        #: The one queue that is shown; '' for all.
        self.only = ""
        self.problem = ""
        self._sample: Sample | None = None
        self._known: tuple[str, dict[str, int]] | None = None
        self._stale = False
        self._due_s = 0.0
        self.columns = (
            GridColumn(
                "COUNT",
                lambda row, _: Cell(row.number, "warn"),
                lambda row: row.group.count,
                7,
                number=True,
            ),
            GridColumn("QUEUE", lambda row, _: row.queue, lambda row: row.queue, 12, 30),
            GridColumn("LAST", _last, lambda row: row.now_ms - row.group.letter.died_ms, 10),
            GridColumn(
                "FIRST",
                lambda row, _: ago(row.group.first_ms, row.now_ms),
                lambda row: row.now_ms - row.group.first_ms,
                10,
                spare=4,
            ),
            GridColumn(
                "DEATHS",
                lambda row, width: Cell(_deaths(row, width, glyphs), "spark"),
                None,
                12,
                30,
                spare=3,
            ),
            GridColumn(
                "REASON",
                lambda row, _: row.group.letter.reason,
                lambda row: row.group.letter.reason,
                13,
                spare=2,
            ),
            GridColumn(
                "TASK",
                lambda row, _: row.group.letter.message.task,
                lambda row: row.group.letter.message.task,
                14,
                28,
                spare=1,
            ),
            GridColumn(
                "ERROR", lambda row, _: row.group.pattern, lambda row: row.group.pattern, 24, 120
            ),
        )

    def read(self, sample: Sample) -> Sequence[DeadRow]:
        """Return the groups as last read."""
        self._sample = sample
        return self.found.rows

    def numbers(self) -> dict[str, int]:
        """Return how many dead letters queues have, those without left out."""
        if self._sample is None:
            return {}
        return {queue.queue: queue.dead for queue in self._sample.read() if queue.dead}

    def is_due(self) -> bool:
        """Whether to read them again: their numbers have changed, and enough time has passed since the last reading."""
        if self._sample is None or not self._sample.now_ms:
            return False
        known = (self.only, self.numbers())
        if known == self._known:
            return False
        other = self._known is None or self._known[0] != self.only
        return other or time.monotonic() >= self._due_s

    def take(self, found: DeadGroups, known: tuple[str, dict[str, int]]) -> None:
        """Show what was read."""
        self.found, self.problem = found, ""
        # Read queues again that changed during this reading.
        self._known = None if self._stale else known
        self._due_s = time.monotonic() + max(1.0, _REST * found.took_s)
        self._all = found.rows
        self.arrange()

    def begin(self) -> None:
        """Begin to read them."""
        self._stale = False

    def forget(self) -> None:
        """Read them again as soon as possible: something has changed them."""
        self._known, self._stale = None, True

    def name_of(self, row: DeadRow) -> str:
        """Name it by queue and fingerprint."""
        return f"{row.queue} {row.group.fingerprint}"

    def urgency(self, row: DeadRow) -> Any:
        """Sort the latest death first."""
        return -row.group.letter.died_ms

    def filter_text(self, row: DeadRow) -> str:
        """Search queue, task, reason, error and fingerprint."""
        letter = row.group.letter
        parts = (row.queue, letter.message.task, letter.reason, letter.error_class)
        return " ".join([*parts, row.group.pattern, row.group.fingerprint])

    def empty(self) -> str:
        """Say that there are none."""
        if self.problem:
            return f"they could not be read: {self.problem}"
        where = f"queue {self.only}" if self.only else f"namespace {self._namespace!r}"
        if not self._all and self._known is None and self.numbers():
            return "reading the dead letters"
        return f"no dead letter in {where}"

    def badge(self) -> tuple[str, str]:
        """Count all dead letters of the namespace."""
        number = sum(self.numbers().values())
        return (f"{number:,}", "warn" if number else "")

    def scope(self) -> str:
        """Say which of them are shown."""
        parts = [f"of {self.only} alone (Esc shows all)"] if self.only else []
        if 0 < self.found.read < self.found.of:
            parts.append(f"the newest {self.found.read:,} of {self.found.of:,} read")
        return ", ".join(parts)


def _last(row: DeadRow, _: int) -> Cell | str:
    age_s = (row.now_ms - row.group.letter.died_ms) / 1000
    text = ago(row.group.letter.died_ms, row.now_ms)
    return Cell(text, "bad") if age_s < 600 else text


def _deaths(row: DeadRow, width: int, glyphs: Glyphs) -> str:
    """Draw when they died: from the first death to now."""
    if width <= 0:
        return ""
    lasts_ms = max(60_000, row.now_ms - row.group.first_ms)
    counts = Counter(
        min(width - 1, max(0, width - 1 - (row.now_ms - died_ms) * width // lasts_ms))
        for died_ms in row.group.died
    )
    return bars([float(counts[at]) for at in range(width)], glyphs)
