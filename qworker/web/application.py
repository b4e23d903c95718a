"""The application: routes, pages, actions, streams and errors."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator, Callable, Collection
from functools import partial
from typing import TYPE_CHECKING, Any, Final

import structlog
from starlette.applications import Starlette
from starlette.concurrency import run_in_threadpool
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.middleware.gzip import GZipMiddleware
from starlette.responses import (
    HTMLResponse,
    PlainTextResponse,
    RedirectResponse,
    Response,
    StreamingResponse,
)
from starlette.routing import Route

from qworker.client.namespace.audit import Deed
from qworker.errors import QworkerError
from qworker.monitor.jobs import BulkChange, Jobs
from qworker.monitor.readings import Readings
from qworker.monitor.sampler import Sampler
from qworker.web.access import Access
from qworker.web.actions.action import Action, Doing, act, record
from qworker.web.actions.table import ACTIONS
from qworker.web.error_pages import error_page, status_of, title_of
from qworker.web.guard import MAY_BE_FRAMED, Guard, SecureHeaders, read_form
from qworker.web.live_parts import LiveParts
from qworker.web.page_request import Page, PageRequest
from qworker.web.pages.table import PAGES
from qworker.web.render import render
from qworker.web.static_files import static_file
from qworker.web.writer import PageWriter, base_of, check_read

if TYPE_CHECKING:
    from starlette.requests import Request
    from starlette.types import Receive, Scope, Send

    from qworker.monitor.namespace import Namespace
    from qworker.web.access import OneTimeLink
    from qworker.web.body import Redact

__all__ = ["Dashboard"]

_log = structlog.get_logger(__name__)

#: Seconds that the first page waits for the first sample, and a stream for the next before it says that it lives.
_FIRST_S: Final = 6.0
_QUIET_S: Final = 15.0
#: Seconds after which a page that could not be made is asked for again.
_AGAIN_S: Final = 3
#: Seconds after which a stream asks again what its user may do.
_ASK_S: Final = 60.0


class Dashboard:
    """The ASGI application. `link`: lets in browsers with the link that `qworker web` prints."""

    def __init__(
        self,
        namespace: Namespace,
        guard: Guard,
        *,
        link: OneTimeLink | None = None,
        redact: Redact | None = None,
        lasts: bool = False,
        frame_ancestors: Collection[str] = (),
    ) -> None:
        self.sampler = Sampler(namespace, lasts=lasts)
        self._namespace = namespace
        self._guard = guard
        self._link = link
        self._jobs = Jobs(namespace, self._job_ended)
        self._readings = Readings(namespace)
        self._live_parts = LiveParts(self.sampler, namespace.spent_s)
        self._writer = PageWriter(namespace, self._jobs, self._readings, redact)
        self._redact = redact
        routes = [
            Route("/static/{name}", static_file),
            Route("/healthz", self._healthz),
            *(Route(path, self._page(page)) for path, page in PAGES.items()),
            *(
                Route(path, self._action(action), methods=["POST"])
                for path, action in ACTIONS.items()
            ),
        ]
        if link is not None:
            routes.append(Route("/enter", self._enter))
        self._app = SecureHeaders(
            Starlette(
                routes=routes,
                middleware=[Middleware(GZipMiddleware, minimum_size=1000)],
                exception_handlers={
                    HTTPException: self._refused,
                    QworkerError: self._failed,
                    Exception: self._crashed,
                },
            ),
            frame_ancestors,
        )

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Handle a request."""
        await self._app(scope, receive, send)

    def close(self) -> None:
        """End the streams and the sampler, and close its connections."""
        self.sampler.end()
        self._jobs.close()
        self.sampler.join()
        self._namespace.client.close()

    # -- pages ---------------------------------------------------------------------------------

    def _page(self, make: Callable[[PageRequest], Page]) -> Callable[[Request], Any]:
        async def answer(request: Request) -> Response:
            streams = "text/event-stream" in request.headers.get("accept", "")
            access = _seen_by(request, await self._guard.access(request))
            if isinstance(access, Response):
                return access
            sample = await self.sampler.first(_FIRST_S)
            name = request.path_params.get("queue")
            if sample.now_ms and name is not None and name not in sample.queues:
                # It may be new.
                await run_in_threadpool(self.sampler.refresh, name)
                sample = self.sampler.sample
            if streams:
                return StreamingResponse(
                    self._stream(make, request, access),
                    media_type="text/event-stream",
                    # Proxies must pass on each event at once.
                    headers={"X-Accel-Buffering": "no"},
                )
            check_read(sample)
            page_request = self._writer.page_request(request, access, sample)
            page = await run_in_threadpool(make, page_request)
            if page.to:
                return RedirectResponse(f"{page_request.base}{page.to}", 303)
            if page_request.embedded and page.card:
                request.scope[MAY_BE_FRAMED] = True
            notice = await run_in_threadpool(self._writer.notice, page_request)
            return self._writer.html(page, page_request, notice=notice)

        return answer

    async def _stream(
        self, make: Callable[[PageRequest], Page], request: Request, access: Access
    ) -> AsyncIterator[bytes]:
        """Send the changing part of a page whenever it has changed."""
        page_request = self._writer.page_request(request, access, self.sampler.sample)
        key = (
            page_request.path,
            tuple(sorted(page_request.query.items())),
            page_request.base,
            access.rights,
        )
        number, sent, opened_s = -1, "", time.monotonic()
        watched: tuple[str, ...] = ()
        asked_s = opened_s
        while not self.sampler.ended:
            if time.monotonic() - asked_s >= _ASK_S:
                asked_s = time.monotonic()
                if await self._allowed(request) != access:
                    return  # the browser asks again, and gets what it may see now
            with self.sampler.watching(watched):
                sample = await self.sampler.after(number, _QUIET_S)
            if sample.number == number or sample.number == 0:
                yield b": nothing new\n\n"
                continue
            number, live = await run_in_threadpool(
                self._live_parts.get,
                key,
                partial(self._writer.live, make, request, access),
                opened_s,
            )
            watched = live.watched
            if live.text != sent:
                sent = live.text
                yield _event(sent)

    async def _allowed(self, request: Request) -> Access | Response | None:
        """Return the access of a request's user; None if it is refused."""
        try:
            return _seen_by(request, await self._guard.access(request))
        except HTTPException:
            return None

    # -- actions -------------------------------------------------------------------------------

    def _action(self, action: Action) -> Callable[[Request], Any]:
        async def answer(request: Request) -> Response:
            return await self._act(action, request)

        return answer

    async def _act(self, action: Action, request: Request) -> Response:
        self._guard.check_origin(request)
        access = await self._guard.access(request, action.right)
        if isinstance(access, Response):
            return access
        form = await read_form(request)
        doing = Doing(
            self._namespace,
            self._jobs,
            self._readings,
            access,
            request.path_params,
            form,
            self._redact,
        )
        entry, done = await run_in_threadpool(act, action, doing)
        if doing.queue:
            await run_in_threadpool(self.sampler.refresh, doing.queue)
        did = f"{'&' if '?' in done.path else '?'}did={entry}" if entry else ""
        to = f"{base_of(request)}{done.path}{did}"
        return RedirectResponse(to, 303)

    def _job_ended(self, job: BulkChange) -> None:
        deed = Deed(job.user, f"dead {job.verb}", f"{job.queue} {job.filter}", job.outcome)
        record(self._namespace, deed)

    async def _enter(self, request: Request) -> Response:
        assert self._link is not None  # the route exists with a link only
        session = self._link.enter(request.query_params.get("token", ""))
        if session is None:
            raise HTTPException(
                401, "This link was used before, or another process printed it. Use the newest one."
            )
        base = base_of(request)
        response = RedirectResponse(f"{base}/", 303)
        response.set_cookie(
            self._link.cookie,
            session,
            path=f"{base}/",
            httponly=True,
            samesite="strict" if request.headers.get("sec-fetch-site") != "cross-site" else "lax",
            secure=request.url.scheme == "https",
        )
        return response

    # -- the rest ------------------------------------------------------------------------------

    async def _healthz(self, _: Request) -> Response:
        """Answer probes, which have no access: whether the queues can be read, and nothing else."""
        sample = await self.sampler.first(_FIRST_S)
        if sample.problem or not sample.now_ms:
            return PlainTextResponse("the server does not answer\n", 503)
        return PlainTextResponse("ok\n")

    async def _refused(self, request: Request, error: Exception) -> Response:
        assert isinstance(error, HTTPException)
        text = error.detail if error.detail not in _DEFAULTS else ""
        if error.status_code == 401 and not text and self._link is not None:
            text = "Open the link that qworker web has printed in its terminal."
        return self._error(request, error.status_code, text, error.headers)

    async def _failed(self, request: Request, error: Exception) -> Response:
        assert isinstance(error, QworkerError)
        return self._error(request, status_of(error), str(error), title=title_of(error))

    async def _crashed(self, request: Request, error: Exception) -> Response:
        _log.error("page_failed", path=request.url.path[:200], exc_info=error)
        return self._error(request, 500)

    def _error(
        self, request: Request, status: int, text: str = "", headers: Any = None, title: str = ""
    ) -> Response:
        page_request = self._writer.page_request(request, _NOBODY, self.sampler.sample)
        page = error_page(status, text, title)
        if "text/event-stream" in request.headers.get("accept", ""):
            # Replaces figures that would get old; the browser asks again, and the user may have signed in by then.
            live = render(page.template, self._writer.context(page, page_request), live=True)
            return Response(_event(live), media_type="text/event-stream")
        refreshes = status == 503 and request.method in ("GET", "HEAD")
        context = {
            **self._writer.context(page, page_request),
            "refresh_s": _AGAIN_S if refreshes else 0,
        }
        extra = {"Retry-After": str(_AGAIN_S)} if status == 503 else {}
        return HTMLResponse(
            render(page.template, context), status, headers={**(headers or {}), **extra}
        )


_NOBODY: Final = Access("", frozenset())
_DEFAULTS: Final = frozenset(
    {"Not Found", "Method Not Allowed", "Unauthorized", "Forbidden", "Bad Request"}
)


def _seen_by(request: Request, access: Access | Response) -> Access | Response:
    """Take the rights to change anything from a card: a page of others may be around it."""
    if isinstance(access, Access) and request.query_params.get("embed") == "1":
        return access.only_view()
    return access


def _event(text: str) -> bytes:
    """Write an event of a stream."""
    return b"".join(b"data: %s\n" % line.encode() for line in text.split("\n")) + b"\n"
