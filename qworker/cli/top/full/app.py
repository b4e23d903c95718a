"""The full screen of `qworker top`: tables to choose from, pages behind their rows, questions before a change."""

from __future__ import annotations

from typing import ClassVar, Final

from textual.binding import Binding, BindingType
from textual.widgets import Input

from qworker.cli.top.full.dead import DeadLetters
from qworker.cli.top.full.dead_of_kind import DeadOfKind
from qworker.cli.top.full.drawing import ALWAYS, footer
from qworker.cli.top.full.head import KEY_NAMES
from qworker.cli.top.full.queues import Queues
from qworker.cli.top.full.tasks import Tasks
from qworker.cli.top.full.texts import (
    help_page,
)
from qworker.cli.top.full.verbs import Verbs
from qworker.cli.top.full.workers import Handlers, Workers

__all__ = ["Top"]

_VERBS: Final = sorted(
    {
        key.key
        for view in (Queues, Workers, Handlers, DeadLetters, DeadOfKind, Tasks)
        for key in view.keys
        if key.key != "enter"
    }
)


class Top(Verbs):
    """Shows a namespace until `q`. `glyphs`: what the terminal can draw."""

    ENABLE_COMMAND_PALETTE = False

    BINDINGS: ClassVar[list[BindingType]] = [
        *(Binding(str(number), f"nth({number - 1})", show=False) for number in range(1, 8)),
        *(Binding(KEY_NAMES.get(key, key), f"verb('{key}')", show=False) for key in _VERBS),
        Binding("tab", "next(1)", show=False, priority=True),
        Binding("shift+tab", "next(-1)", show=False, priority=True),
        Binding("slash", "filter", show=False),
        Binding("p", "freeze", show=False),
        Binding("question_mark,h", "help", show=False),
        Binding("escape", "leave", show=False),
        Binding("q", "quit", show=False),
        Binding("ctrl+c", "interrupt", show=False, priority=True),
    ]

    def check_action(self, action: str, parameters: tuple[object, ...]) -> bool | None:
        """Keep the keys of tables from the pages behind them."""
        return not (self._page is not None and action in ("nth", "next", "filter", "help", "leave"))

    def action_show(self, name: str) -> None:
        """Show a table by its name."""
        self._turn_to(next(view for view in self.views if view.name == name))

    def action_nth(self, number: int) -> None:
        """Show a table by its number."""
        self._turn_to(self.views[number])

    def action_next(self, by: int) -> None:
        """Show the next table."""
        at = self.views.index(self.dead if isinstance(self.view, DeadOfKind) else self.view)
        self._turn_to(self.views[(at + by) % len(self.views)])

    def action_filter(self) -> None:
        """Ask for words that rows contain; rows follow while they are typed."""
        box = self.query_one("#filter", Input)
        box.display = True
        box.value = self.view.filter
        box.focus()

    def on_input_changed(self, event: Input.Changed) -> None:
        """Filter while words are typed."""
        if event.input.id == "filter" and event.input.display:
            self.view.set_filter(event.value)
            self.draw()

    def on_input_submitted(self, event: Input.Submitted) -> None:
        """Keep the filter."""
        if event.input.id == "filter":
            self._close_filter()

    def action_leave(self) -> None:
        """Leave the filter, the list of a kind, or the dead letters of one queue, in this order."""
        if self.query_one("#filter", Input).display or self.view.filter:
            self._close_filter()
            self.view.set_filter("")
        elif isinstance(self.view, DeadOfKind):
            self._turn_to(self.dead)
        elif self.view is self.dead and self.dead.only:
            self._only("")
        self._said = ("", "", 0.0)
        self.draw()

    def action_freeze(self) -> None:
        """Pause the screen, or continue."""
        self.frozen = not self.frozen
        self.on_grid_moved()
        self.draw()

    def action_help(self) -> None:
        """Show the keys."""
        self._open(
            "Keys", lambda: help_page([*self.views, DeadOfKind], [*footer(self.glyphs), *ALWAYS])
        )

    def action_interrupt(self) -> None:
        """End as an interrupted program does."""
        self.exit(return_code=130)

    async def action_verb(self, key: str) -> None:
        """Do what a key means in the table or page that is shown."""
        page = self._page
        for known in page.keys if page is not None else self.view.keys:
            if known.key == key:
                await self.run_action(known.action)
