"""A table of the screen: its rows, sorted and filtered, and where its cursor is. Knows no terminal."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, Generic, TypeVar

if TYPE_CHECKING:
    from qworker.cli.top.full.columns import GridColumn
    from qworker.monitor.sample import Sample

__all__ = ["Key", "View"]

R = TypeVar("R")


@dataclass(frozen=True, slots=True)
class Key:
    """A key of a view: what the footer and the help say of it, and the action of the screen that it calls."""

    key: str
    label: str
    action: str
    help: str
    shown: str = ""

    @property
    def name(self) -> str:
        """How the key is written."""
        return self.shown or ("Enter" if self.key == "enter" else self.key)


class View(Generic[R]):
    """The rows of a kind. Subclasses say what they are; `rows` are those that fit the filter, in order.

    Equal rows are in the order of their names, and never swap. The cursor stays on its row while others come and go,
    but for that of the first row: what comes first stays under it.
    """

    name: ClassVar[str]
    title: ClassVar[str]
    #: On a narrow screen; the title if empty.
    short: ClassVar[str] = ""
    keys: ClassVar[tuple[Key, ...]] = ()
    columns: tuple[GridColumn[R], ...]

    def __init__(self) -> None:
        self.rows: list[R] = []
        self.cursor = 0
        self.top = 0
        self.filter = ""
        #: None: by urgency.
        self.sort: GridColumn[R] | None = None
        self.inverted = False
        self._all: Sequence[R] = ()
        self._name = ""

    def read(self, sample: Sample) -> Sequence[R]:
        """Return the rows of a sample, in any order."""
        raise NotImplementedError

    def name_of(self, row: R) -> str:
        """Return what names a row, the same in the next sample."""
        raise NotImplementedError

    def urgency(self, row: R) -> Any:
        """Return what sorts rows unless a column does, the lowest first."""
        raise NotImplementedError

    def filter_text(self, row: R) -> str:
        """Return the text that the filter searches."""
        return self.name_of(row)

    def empty(self) -> str:
        """Say why there are no rows, and what makes some."""
        raise NotImplementedError

    def badge(self) -> tuple[str, str]:
        """Return what stands beside the title, and its tone."""
        return (f"{len(self._all):,}", "")

    @property
    def total(self) -> int:
        """The number of rows without the filter."""
        return len(self._all)

    @property
    def descending(self) -> bool:
        """Whether the highest is first."""
        return (self.sort is not None and self.sort.number) != self.inverted

    @property
    def selected(self) -> R | None:
        """The row under the cursor; None without rows."""
        return self.rows[self.cursor] if self.cursor < len(self.rows) else None

    def nothing(self) -> str:
        """Say why no row is shown."""
        if self._all:
            return f"nothing contains {self.filter!r}: Esc shows all {len(self._all):,}"
        return self.empty()

    def update(self, sample: Sample) -> None:
        """Take the rows of a new sample."""
        self._all = self.read(sample)
        self.arrange()

    def set_filter(self, text: str) -> None:
        """Show only rows that contain every word of a text, in upper or lower case."""
        self.filter = text
        self.arrange()

    def sort_by(self, column: GridColumn[R]) -> None:
        """Sort by a column; if it does already, invert the order."""
        if column.key is None:
            return
        self.inverted = not self.inverted if column is self.sort else False
        self.sort = column
        self.arrange()

    def sort_next(self, shown: Sequence[GridColumn[R]], by: int) -> None:
        """Sort by the next of some columns to the left or right; before the first one comes urgency."""
        order = [None, *(column for column in shown if column.key is not None)]
        at = order.index(self.sort) if self.sort in order else 0
        self.sort, self.inverted = order[(at + by) % len(order)], False
        self.arrange()

    def invert(self) -> None:
        """Invert the order."""
        self.inverted = not self.inverted
        self.arrange()

    def move_to(self, row: int) -> None:
        """Put the cursor on a row, the nearest one if there are fewer."""
        self.cursor = max(0, min(row, len(self.rows) - 1))
        self._remember()

    def keep_in_sight(self, room: int) -> None:
        """Scroll so that the cursor is among `room` rows, and no line is left empty that a row could fill."""
        self.top = max(0, min(self.top, len(self.rows) - room))
        if self.cursor < self.top:
            self.top = self.cursor
        elif self.cursor >= self.top + room:
            self.top = self.cursor - room + 1

    def arrange(self) -> None:
        """Filter and sort the rows again, and find the cursor's."""
        wanted = self.filter.lower().split()
        rows = list(self._all)
        if wanted:
            rows = [
                row for row in rows if all(word in self.filter_text(row).lower() for word in wanted)
            ]
        rows.sort(key=self.name_of)
        key: Callable[[R], Any] = self.urgency
        if self.sort is not None and self.sort.key is not None:
            key = self.sort.key
        rows.sort(key=key, reverse=self.descending)
        self.rows = rows
        if self.cursor > 0 and self._name:
            at = next((at for at, row in enumerate(rows) if self.name_of(row) == self._name), None)
            if at is not None:
                self.cursor = at
        self.cursor = max(0, min(self.cursor, len(rows) - 1))
        self._remember()

    def _remember(self) -> None:
        self._name = self.name_of(self.rows[self.cursor]) if self.rows else ""
