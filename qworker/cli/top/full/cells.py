"""Cells that several tables have, and the key that opens a row."""

from __future__ import annotations

from typing import Final

from qworker.cli.framework.terminal import Cell
from qworker.cli.top.full.glyphs import Glyphs
from qworker.cli.top.full.view import Key
from qworker.formats import span

__all__ = ["OPEN", "aged", "drawn_cell"]

#: Seconds from which a ready message, or a handler, is shown as old, and as too old.
_OLD_S: Final = 60.0
_TOO_OLD_S: Final = 600.0
OPEN: Final = Key("enter", "open", "open", "Open the row, with all its details.")


def aged(seconds: float, old_s: float = _OLD_S, too_old_s: float = _TOO_OLD_S) -> Cell:
    """Write an age in the tone that it deserves."""
    tone = "bad" if seconds >= too_old_s else "warn" if seconds >= old_s else ""
    return Cell(span(seconds), tone)


def drawn_cell(text: str, glyphs: Glyphs) -> Cell:
    """Make a cell of a sparkline; one along the bottom is not worth a look."""
    return Cell(text, "spark" if set(text) - {" ", glyphs.levels[0]} else "dim")
