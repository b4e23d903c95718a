"""A table of any number of rows: only those in sight are written, so 10,000 cost what 20 do."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar, Final

from rich.segment import Segment
from rich.style import Style
from textual import events
from textual.binding import Binding, BindingType
from textual.geometry import Size
from textual.message import Message
from textual.scroll_view import ScrollView
from textual.strip import Strip

from qworker.cli.framework.terminal import Cell, plain
from qworker.cli.top.full.columns import GAP, GridColumn, fitted, widths_of

if TYPE_CHECKING:
    from qworker.cli.top.full.glyphs import Glyphs
    from qworker.cli.top.full.view import View

__all__ = ["TONES", "Grid"]

TONES: Final = {
    "": Style(),
    "bad": Style(color="red", bold=True),
    "warn": Style(color="yellow"),
    "good": Style(color="green"),
    "dim": Style(dim=True),
    "spark": Style(color="cyan"),
}
_HEADER: Final = Style(dim=True, underline=True)
_SORTED: Final = Style(bold=True, underline=True)
_CURSOR: Final = Style(color="bright_white", bgcolor="blue", bold=True)
#: Without colours the row must be seen anyway.
_CURSOR_PLAIN: Final = Style(reverse=True)
_MOUSE_LINES: Final = 3


class Grid(ScrollView, can_focus=True):
    """Shows the rows of a view below the titles of its columns, and moves the cursor of the view."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("up,k", "move(-1)", show=False),
        Binding("down,j", "move(1)", show=False),
        Binding("pageup,ctrl+b", "page(-1)", show=False),
        Binding("pagedown,ctrl+f,space", "page(1)", show=False),
        Binding("home,g", "first", show=False),
        Binding("end,G", "last", show=False),
        Binding("enter", "open", show=False),
        Binding("left", "sort(-1)", show=False),
        Binding("right", "sort(1)", show=False),
        Binding("i", "invert", show=False),
    ]

    class Opened(Message):
        """Enter was pressed on a row."""

    class Moved(Message):
        """The cursor is on another row, or other rows are in sight."""

    def __init__(self, view: View[Any], glyphs: Glyphs, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self._glyphs = glyphs
        self.view = view

    @property
    def room(self) -> int:
        """Rows that fit below the titles."""
        return max(1, self.size.height - 1)

    def show(self, view: View[Any]) -> None:
        """Show a view as it is now: its rows may have changed."""
        self.view = view
        self._settle()

    def in_sight(self) -> list[Any]:
        """Return the rows that are on the screen."""
        return self.view.rows[self.view.top : self.view.top + self.room]

    def render_line(self, y: int) -> Strip:
        """Write the titles, or a row that is in sight."""
        width = self.size.width
        columns = widths_of(self.view.columns, width)
        if y == 0:
            return self._titles(columns, width)
        at = self.view.top + y - 1
        if at < len(self.view.rows):
            return self._row(self.view.rows[at], columns, width, at == self.view.cursor)
        if y == 2 and not self.view.rows:
            text = fitted(f" {plain(self.view.nothing())}", width, self._glyphs)
            return Strip([Segment(text, TONES["dim"])], width)
        return Strip.blank(width)

    def action_move(self, by: int) -> None:
        """Move the cursor by rows."""
        self._go(self.view.cursor + by)

    def action_page(self, by: int) -> None:
        """Move the cursor by pages."""
        self._go(self.view.cursor + by * max(1, self.room - 1))

    def action_first(self) -> None:
        """Go to the first row."""
        self._go(0)

    def action_last(self) -> None:
        """Go to the last row."""
        self._go(len(self.view.rows) - 1)

    def action_open(self) -> None:
        """Open the row under the cursor."""
        if self.view.selected is not None:
            self.post_message(self.Opened())

    def action_sort(self, by: int) -> None:
        """Sort by the next column to the left or right that is in sight."""
        shown = [column for column, _ in widths_of(self.view.columns, self.size.width)]
        self.view.sort_next(shown, by)
        self._settle()

    def action_invert(self) -> None:
        """Invert the order."""
        self.view.invert()
        self._settle()

    def on_resize(self) -> None:
        """Keep the cursor in sight."""
        self._settle()

    def on_mouse_scroll_down(self, event: events.MouseScrollDown) -> None:
        """Move down by a few rows."""
        event.stop()
        self.action_move(_MOUSE_LINES)

    def on_mouse_scroll_up(self, event: events.MouseScrollUp) -> None:
        """Move up by a few rows."""
        event.stop()
        self.action_move(-_MOUSE_LINES)

    def on_click(self, event: events.Click) -> None:
        """Sort by the column that was clicked, or go to the row; a second click opens it."""
        if event.y == 0:
            self._sort_at(event.x)
            return
        at = self.view.top + event.y - 1
        if at < len(self.view.rows):
            self._go(at)
            if event.chain == 2:
                self.action_open()

    def _sort_at(self, x: int) -> None:
        start = 1
        for column, width in widths_of(self.view.columns, self.size.width):
            if start - 1 <= x < start + width + GAP - 1:
                self.view.sort_by(column)
                break
            start += width + GAP
        self._settle()

    def _go(self, row: int) -> None:
        self.view.move_to(row)
        self._settle()

    def _settle(self) -> None:
        """Bring the cursor into sight, and draw."""
        self.view.keep_in_sight(self.room)
        self.virtual_size = Size(self.size.width, self.size.height)
        self.refresh()
        self.post_message(self.Moved())

    def _titles(self, columns: list[tuple[GridColumn[Any], int]], width: int) -> Strip:
        segments = [Segment(" ", _HEADER)]
        for column, wide in columns:
            sorted_by = column is self.view.sort
            title = column.title
            if sorted_by:
                arrow = self._glyphs.descending if self.view.descending else self._glyphs.ascending
                title = f"{arrow}{title}" if column.number else f"{title}{arrow}"
            text = fitted(title, wide, self._glyphs, number=column.number)
            segments += [
                Segment(text, _SORTED if sorted_by else _HEADER),
                Segment(" " * GAP, _HEADER),
            ]
        return Strip(segments).adjust_cell_length(width, _HEADER)

    def _row(
        self, row: Any, columns: list[tuple[GridColumn[Any], int]], width: int, selected: bool
    ) -> Strip:
        segments = [Segment(" ")]
        for column, wide in columns:
            cell = column.cell(row, wide)
            tone = cell.tone if isinstance(cell, Cell) else ""
            text = fitted(plain(cell), wide, self._glyphs, number=column.number)
            segments += [Segment(text, TONES[tone]), Segment(" " * GAP)]
        if not selected:
            return Strip(segments).adjust_cell_length(width)
        style = _CURSOR_PLAIN if self.app.no_color else _CURSOR
        line = "".join(segment.text for segment in segments)
        return Strip([Segment(line, style)]).adjust_cell_length(width, style)
