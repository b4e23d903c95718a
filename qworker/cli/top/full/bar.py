"""A line of the screen, parts of which can be clicked."""

from __future__ import annotations

from rich.style import Style
from textual import events
from textual.widgets import Static

__all__ = ["Bar", "pressing"]

_ACTION = "press"


def pressing(action: str) -> Style:
    """Mark text that calls an action when it is clicked; it looks as it did."""
    return Style(meta={_ACTION: action})


class Bar(Static):
    """A line of text. Links of the library would have their own colour."""

    async def on_click(self, event: events.Click) -> None:
        """Call the action of the part that was clicked."""
        action = event.style.meta.get(_ACTION)
        if isinstance(action, str):
            event.stop()
            await self.app.run_action(action, self.screen)
