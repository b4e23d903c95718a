"""Checks of every request: access, origin, and headers that let a browser run nothing but our own files."""

from __future__ import annotations

import inspect
from collections.abc import Collection
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import parse_qsl, urlsplit

from starlette.concurrency import run_in_threadpool
from starlette.datastructures import MutableHeaders
from starlette.exceptions import HTTPException
from starlette.responses import Response

from qworker.web.access import VIEW, Access

if TYPE_CHECKING:
    from starlette.requests import Request
    from starlette.types import ASGIApp, Message, Receive, Scope, Send

    from qworker.web.access import Authorize

__all__ = ["MAY_BE_FRAMED", "Guard", "SecureHeaders", "read_form"]

#: Bytes of a form.
_FORM: Final = 65_536
_FIELDS: Final = 50
_POLICY: Final = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; "
    "form-action 'self'; base-uri 'none'; frame-ancestors "
)
_HEADERS: Final = {
    "X-Content-Type-Options": "nosniff",
    # Not `no-referrer`: a browser would send `Origin: null` with our own forms.
    "Referrer-Policy": "same-origin",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Permissions-Policy": "camera=(), geolocation=(), microphone=()",
}


#: Key of the scope of a request whose response may be framed by the origins that were named.
MAY_BE_FRAMED: Final = "qworker.may_be_framed"


class SecureHeaders:
    """Sets the headers of every response; nothing but static files is stored by a browser or proxy.

    `frame_ancestors`: origins whose pages may frame the cards.
    """

    def __init__(self, app: ASGIApp, frame_ancestors: Collection[str] = ()) -> None:
        self._app = app
        self._ancestors = " ".join(frame_ancestors)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Handle a request."""

        async def send_with_headers(message: Message) -> None:
            if message["type"] == "http.response.start":
                headers = MutableHeaders(scope=message)
                framed = self._ancestors if scope.get(MAY_BE_FRAMED) else ""
                headers["Content-Security-Policy"] = _POLICY + (framed or "'none'")
                if not framed:
                    headers["X-Frame-Options"] = "DENY"
                for name, value in _HEADERS.items():
                    headers[name] = value
                headers.setdefault("Cache-Control", "no-store")
            await send(message)

        await self._app(scope, receive, send_with_headers if scope["type"] == "http" else send)


class Guard:
    """Finds the user of a request, and refuses changes that come from pages of other sites.

    `origins`: further origins of our own pages, as `https://ops.example.com`, for a proxy that rewrites the host.
    """

    def __init__(
        self, authorize: Authorize, *, read_only: bool = False, origins: Collection[str] = ()
    ) -> None:
        self._authorize = authorize
        self._read_only = read_only
        self._origins = frozenset(origins)

    async def access(self, request: Request, right: str = VIEW) -> Access | Response:
        """Return the user's access, or the response that `authorize` gave. Raises `HTTPException`."""
        if inspect.iscoroutinefunction(self._authorize):
            found: Any = await self._authorize(request)
        else:
            # It may ask a database.
            found = await run_in_threadpool(self._authorize, request)
        if isinstance(found, Response):
            response: Response = found
            return response
        if not isinstance(found, Access):
            raise HTTPException(401)
        access: Access = found.only_view() if self._read_only else found
        if not access.may(VIEW) or not access.may(right):
            raise HTTPException(403, f"This needs the right to {right}, which {access.user} lacks.")
        return access

    def check_origin(self, request: Request) -> None:
        """Refuse a change unless a page of the dashboard sent it. Raises `HTTPException`."""
        origin = request.headers.get("origin", "")
        fetched = request.headers.get("sec-fetch-site", "same-origin")
        ours = origin in self._origins or (
            origin.startswith(("http://", "https://"))
            and urlsplit(origin).netloc == request.headers.get("host", "")
        )
        if not ours or (fetched != "same-origin" and origin not in self._origins):
            raise HTTPException(
                403, "The request does not come from a page of this dashboard (wrong Origin)."
            )


async def read_form(request: Request) -> dict[str, str]:
    """Read a form: its fields, each once. Raises `HTTPException`."""
    kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if kind != "application/x-www-form-urlencoded":
        raise HTTPException(415, "A form is sent as application/x-www-form-urlencoded.")
    body = bytearray()
    async for chunk in request.stream():
        body += chunk
        if len(body) > _FORM:
            raise HTTPException(413, "The form is too large.")
    try:
        pairs = parse_qsl(
            body.decode("ascii"),
            keep_blank_values=True,
            max_num_fields=_FIELDS,
            errors="strict",
        )
    except ValueError:
        raise HTTPException(400, "The form cannot be read.") from None
    fields = dict(pairs)
    if len(fields) < len(pairs):
        raise HTTPException(400, "The form has a field twice.")
    return fields
