"""Writes pages: whole, or the part that changes, for the user of a request."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final

from starlette.responses import HTMLResponse

from qworker.client.namespace.audit import read_deed
from qworker.errors import QworkerError, UnavailableError
from qworker.monitor.jobs import Jobs
from qworker.monitor.readings import Readings
from qworker.web.access import Access
from qworker.web.error_pages import ReadingError, error_page, status_of, title_of
from qworker.web.live_parts import LivePart
from qworker.web.page_request import Page, PageRequest
from qworker.web.render import render

if TYPE_CHECKING:
    from starlette.requests import Request

    from qworker.monitor.namespace import Namespace
    from qworker.monitor.sample import Sample
    from qworker.web.body import Redact

__all__ = ["PageWriter", "base_of", "check_read"]

_ENTRY: Final = re.compile(r"[0-9]{1,16}-[0-9]{1,10}", re.ASCII)


class PageWriter:
    """Writes the pages of a namespace."""

    def __init__(
        self, namespace: Namespace, jobs: Jobs, readings: Readings, redact: Redact | None
    ) -> None:
        self._namespace = namespace
        self._jobs = jobs
        self._readings = readings
        self._redact = redact

    def page_request(
        self, request: Request, access: Access, sample: Sample, *, live: bool = False
    ) -> PageRequest:
        """Make the input of a page of a request."""
        base = base_of(request)
        path = request.scope["path"].removeprefix(request.scope.get("root_path", ""))
        query = dict(request.query_params)
        return PageRequest(
            base,
            path or "/",
            query,
            request.path_params,
            access,
            self._namespace,
            sample,
            self._jobs,
            self._readings,
            self._redact,
            live,
        )

    def notice(self, page_request: PageRequest) -> Any:
        """Read the entry of the audit trail that an action has led to."""
        entry = page_request.query.get("did", "")
        if not _ENTRY.fullmatch(entry):
            return None
        namespace = page_request.namespace
        return read_deed(namespace.client.execute, namespace.namespace, entry)

    def html(self, page: Page, page_request: PageRequest, *, notice: Any = None) -> HTMLResponse:
        """Write a whole page."""
        return HTMLResponse(
            render(
                page.template,
                {
                    **self.context(page, page_request),
                    "notice": notice,
                    "streams": page_request.is_live and page.changes,
                },
            ),
            status_code=page.status,
            headers={"Vary": "Accept, Cookie"},
        )

    def context(self, page: Page, page_request: PageRequest) -> dict[str, Any]:
        """Return what every template knows, and what the page shows."""
        return {
            "title": page.title,
            "base": page_request.base,
            "request": page_request,
            "sample": page_request.sample,
            "namespace": self._namespace.namespace,
            "server": self._namespace.server.address,
            "access": page_request.access,
            "refresh_s": 0,
            "notice": None,
            "streams": False,
            "changes": page.changes,
            "is_card": page_request.embedded and page.card,
            **page.shows,
        }

    def live(
        self, make: Callable[[PageRequest], Page], request: Request, access: Access, sample: Sample
    ) -> LivePart:
        """Write the changing part of a page, or what keeps it from being made."""
        page_request = self.page_request(request, access, sample, live=True)
        try:
            check_read(page_request.sample)
            page = make(page_request)
        except QworkerError as error:
            name = str(request.path_params.get("queue"))
            # It is read again with every sample, so that the page comes back.
            watched = (name,) if name in sample.queues else ()
            page = replace(
                error_page(status_of(error), str(error), title_of(error)), watched=watched
            )
        text = render(page.template, self.context(page, page_request), live=True)
        return LivePart(text, page.watched, page.reads)


def check_read(sample: Sample) -> None:
    """Raise `UnavailableError` if nothing has been read yet."""
    if not sample.now_ms:
        if sample.problem:
            raise UnavailableError(sample.problem)
        raise ReadingError(
            "The first reading has not ended: there are many queues, or the server is slow."
        )


def base_of(request: Request) -> str:
    """Return the path under which the dashboard is mounted, without a slash at its end."""
    return str(request.scope.get("root_path", "")).rstrip("/")
