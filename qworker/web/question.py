"""The question that the dashboard asks before a change: its page, which posts the change or goes back."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

from qworker.web.page_request import Page

__all__ = ["FOR_GOOD", "Question"]

FOR_GOOD: Final = "This cannot be undone."


@dataclass(frozen=True, slots=True, kw_only=True)
class Question:
    """What a change does, and its button; `to`: the path that it posts `fields` to. `back`: the link of a refusal."""

    sentence: str
    button: str
    to: str
    back: str
    fields: Mapping[str, str] = field(default_factory=dict)
    warning: str = ""
    destroys: bool = False

    def page(self, title: str) -> Page:
        """Make the page that asks."""
        return Page("ask.html", title, {"question": self}, changes=False)
