"""Pages that say why another one cannot be shown."""

from __future__ import annotations

from typing import Final

from qworker.errors import (
    BrokenQueueError,
    InvalidError,
    QworkerError,
    ServerError,
    UnavailableError,
    concerns_the_call,
)
from qworker.web.page_request import Page

__all__ = ["ReadingError", "error_page", "status_of", "title_of"]

_TITLES: Final = {
    400: "Bad request",
    401: "No access",
    403: "Not allowed",
    404: "No such page",
    405: "Not possible",
    409: "Not done",
    413: "Too large",
    415: "Not a form",
    500: "The page failed",
    502: "This cannot be read or changed",
    503: "The server does not answer",
}
_TEXTS: Final = {
    401: "Sign in, or ask the operator of this dashboard for access.",
    404: "This page does not exist. Look in the list of queues.",
    405: "This address does not accept this request: use the buttons of the pages.",
    500: "The dashboard has a bug. Its log has the details.",
}


class ReadingError(UnavailableError):
    """The first reading of the queues takes longer than a page waits."""


def status_of(error: QworkerError) -> int:
    """Return the status of an error: 503 while a server is away, 502 if it refuses this, as it does a broken key."""
    if isinstance(error, BrokenQueueError):
        return 502
    if isinstance(error, ServerError):
        return 502 if concerns_the_call(error) else 503
    return 400 if isinstance(error, InvalidError) else 409


def title_of(error: QworkerError) -> str:
    """Return the title of an error's page; '' for that of its status."""
    return "Reading the queues …" if isinstance(error, ReadingError) else ""


def error_page(status: int, text: str, title: str = "") -> Page:
    """Make the page of a status; `text`: what happened, '' for the usual words, as for `title`."""
    shows = {"text": text or _TEXTS.get(status, ""), "status": status}
    return Page("error.html", title or _TITLES.get(status, "Not possible"), shows, status=status)
