"""The input of a page: the request, and the last sample."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any
from urllib.parse import urlencode

if TYPE_CHECKING:
    from qworker.monitor.jobs import Jobs
    from qworker.monitor.namespace import Namespace
    from qworker.monitor.readings import Readings
    from qworker.monitor.sample import Sample
    from qworker.web.access import Access
    from qworker.web.body import Redact

__all__ = ["Page", "PageRequest"]


@dataclass(frozen=True, slots=True)
class PageRequest:
    """A request for a page. `base` is the path under which the dashboard is mounted, without a slash at its end."""

    base: str
    path: str
    query: Mapping[str, str]
    names: Mapping[str, str]
    access: Access
    namespace: Namespace
    sample: Sample
    jobs: Jobs
    readings: Readings
    redact: Redact | None = None
    #: Whether only the part that changes is made.
    live: bool = False

    def to(self, path: str, **query: object) -> str:
        """Write a link to a page of the dashboard; empty values are left out."""
        given = {name: value for name, value in query.items() if value not in ("", None)}
        return f"{self.base}{path}{'?' if given else ''}{urlencode(given)}"

    def here(self, **changes: object) -> str:
        """Write a link to this page with a changed query."""
        return self.to(self.path, **{**self.query, **changes})

    def number(self, name: str, *, lowest: int = 1, highest: int = 1_000_000) -> int:
        """Read a number of the query; the lowest for anything else."""
        text = self.query.get(name, "")
        if not (text.isascii() and text.isdigit() and len(text) < 10):
            return lowest
        return min(max(int(text), lowest), highest)

    @property
    def embedded(self) -> bool:
        """Whether a page of another site asks for it as a card."""
        return self.query.get("embed") == "1"

    @property
    def is_live(self) -> bool:
        """Whether the page follows what happens."""
        return self.query.get("live") != "off"


@dataclass(frozen=True, slots=True)
class Page:
    """A page: its template and what that shows; `watched`: queues that are read often while it is open."""

    template: str
    title: str
    shows: Mapping[str, Any] = field(default_factory=dict)
    watched: tuple[str, ...] = ()
    status: int = 200
    #: Whether it has a part that changes.
    changes: bool = True
    #: Whether pages of other sites may show it in a frame: a user who may only view can change nothing on it.
    card: bool = False
    #: Whether it has readings of its own, so that it is not written again with every sample.
    reads: bool = False
    #: Another page to go to, with its query, in place of this one.
    to: str = ""
