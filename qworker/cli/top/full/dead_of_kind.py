"""The dead letters of one kind of error on the screen."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Final

from qworker.cli.top.full.columns import GridColumn
from qworker.cli.top.full.dead import ALONE, STOP, DeadRow
from qworker.cli.top.full.view import Key, View
from qworker.client.dead.filter import DeadFilter
from qworker.client.dead.fingerprint import error_line
from qworker.client.dead.newest import newest
from qworker.formats import ago

if TYPE_CHECKING:
    from qworker.client.message import DeadLetter
    from qworker.monitor.namespace import Namespace
    from qworker.monitor.sample import Sample

__all__ = ["DeadOfKind"]

#: Dead letters that are listed.
_LISTED: Final = 500


class DeadOfKind(View[Any]):
    """The dead letters of one kind of error: the newest first."""

    name = "letters"
    title = "Dead letters"
    keys = (
        Key("enter", "open", "open", "Read the dead letter: its error, its message."),
        Key("r", "redrive", "change_one('redrive')", "Put this dead letter back to ready."),
        Key("x", "drop", "change_one('drop')", "Delete this dead letter."),
        STOP,
    )

    def __init__(self, row: DeadRow) -> None:
        super().__init__()
        self.row = row
        self.reading = True
        self.now_ms = row.now_ms
        self.columns = (
            GridColumn("ENTRY", lambda one, _: one.entry_id, lambda one: one.entry, 18, 24),
            GridColumn(
                "DIED", lambda one, _: ago(one.died_ms, self.now_ms), lambda one: -one.died_ms, 12
            ),
            GridColumn("MESSAGE", lambda one, _: one.message.id, None, 20, 36, spare=2),
            GridColumn(
                "RECEIVES",
                lambda one, _: str(one.message.receives),
                lambda one: one.message.receives,
                8,
                number=True,
                spare=1,
            ),
            GridColumn("ERROR", lambda one, _: error_line(one), error_line, 24, 140),
        )

    def load(self, namespace: Namespace) -> tuple[list[DeadLetter], int]:
        """Read the newest of them, and the server's time. Raises `QworkerError`."""
        wanted = DeadFilter(fingerprint=self.row.group.fingerprint)
        ref = namespace.queues.ref(self.row.queue)
        found = namespace.client.run(newest(ref, wanted, most_read=ALONE))
        return found.found[:_LISTED], found.now_ms

    def take(self, letters: list[DeadLetter], now_ms: int) -> None:
        """Show what was read."""
        self._all, self.now_ms, self.reading = letters, now_ms, False
        self.arrange()

    def read(self, sample: Sample) -> Sequence[Any]:
        """Return them as last read."""
        return self._all

    def name_of(self, row: DeadLetter) -> str:
        """Name it by its entry."""
        return row.entry_id

    def urgency(self, row: DeadLetter) -> Any:
        """Sort the newest first."""
        return -row.died_ms

    def filter_text(self, row: DeadLetter) -> str:
        """Search ids and error."""
        return f"{row.entry_id} {row.message.id} {error_line(row)}"

    def empty(self) -> str:
        """Say that they are being read, or gone."""
        return "reading the dead letters" if self.reading else "none is left of this kind"
