"""Users of the dashboard and their rights.

An application gives a function `authorize(request)`: it knows the user, from a session, a header of a proxy, a client
certificate. Without one, `qworker web` listens on loopback only, and admits the browser that opens the link that it
prints: any process of the host can connect to loopback, and a page of another site can make a browser do so.
"""

from __future__ import annotations

import hmac
import secrets
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from starlette.requests import Request

__all__ = ["DESTROY", "OPERATE", "RIGHTS", "VIEW", "Access", "Authorize", "OneTimeLink"]

#: See queues, messages, workers.
VIEW: Final = "view"
#: Pause, resume: what can be undone.
OPERATE: Final = "operate"
#: Delete: what cannot be undone.
DESTROY: Final = "destroy"
RIGHTS: Final = frozenset({VIEW, OPERATE, DESTROY})

#: Hours after which a browser needs a new link.
_SESSION_S: Final = 12 * 3600
#: Browsers that are remembered at the same time.
_SESSIONS: Final = 100


@dataclass(frozen=True, slots=True)
class Access:
    """A user by the name that the audit trail shows, and its rights: any of view, operate, destroy."""

    user: str
    rights: frozenset[str] = frozenset({VIEW})

    def __post_init__(self) -> None:
        unknown = frozenset(self.rights) - RIGHTS
        if unknown:
            names = ", ".join(sorted(map(str, unknown)))
            raise ValueError(f"no such right: {names}; rights are {', '.join(sorted(RIGHTS))}")
        object.__setattr__(self, "rights", frozenset(self.rights))

    def may(self, right: str) -> bool:
        """Say whether the user has a right."""
        return right in self.rights

    def only_view(self) -> Access:
        """Return the same user without the rights to change anything."""
        return replace(self, rights=self.rights & {VIEW})


#: Takes Starlette's request; returns the user's access, None to refuse it, or a response, such as a
#: redirect to a login page. A coroutine function, or a plain one, which runs on a thread.
Authorize = Callable[["Request"], Any | Awaitable[Any]]


class OneTimeLink:
    """Lets in a browser that comes with the token of the link, once; it is known by a cookie from then on.

    `on_new` is called with each new token: the first one, and the next one when a browser has used the last. `cookie`
    names the cookie: browsers keep one jar for all ports of a host.
    """

    def __init__(self, cookie: str, on_new: Callable[[str], None]) -> None:
        self.cookie = cookie
        self._on_new = on_new
        self._sessions: dict[str, float] = {}
        self._token = ""
        self._renew()

    def enter(self, token: str) -> str | None:
        """Take a token; returns the value of a cookie, or None if it is not the token or was used before."""
        if not hmac.compare_digest(token.encode(), self._token.encode()):
            return None
        session = secrets.token_urlsafe(32)
        while len(self._sessions) >= _SESSIONS:
            del self._sessions[next(iter(self._sessions))]
        self._sessions[session] = time.monotonic() + _SESSION_S
        self._renew()
        return session

    def authorize(self, request: Request) -> Access | None:
        """Let a browser with our cookie do everything: it belongs to the user who started the process."""
        ends = self._sessions.get(request.cookies.get(self.cookie, ""))
        return Access("local", RIGHTS) if ends is not None and ends > time.monotonic() else None

    def _renew(self) -> None:
        self._token = secrets.token_urlsafe(24)
        self._on_new(self._token)
