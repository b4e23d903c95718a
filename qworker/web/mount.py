"""`asgi(app, …)`: the dashboard of an application's namespace, to mount under any path."""

from __future__ import annotations

import importlib.util
from collections.abc import Collection
from typing import TYPE_CHECKING, Final

from qworker.errors import InvalidOptionError
from qworker.web.options import check_origins

if TYPE_CHECKING:
    from qworker.app.app import QWorker
    from qworker.web.access import Authorize
    from qworker.web.application import Dashboard
    from qworker.web.body import Redact

__all__ = ["GIVE_UP_S", "asgi", "check_installed"]

#: Seconds after which a page says that the server does not answer.
GIVE_UP_S: Final = 2.0
_PACKAGES: Final = ("starlette", "jinja2")


def asgi(
    app: QWorker,
    *,
    authorize: Authorize,
    read_only: bool = False,
    origins: Collection[str] = (),
    redact: Redact | None = None,
    frame_ancestors: Collection[str] = (),
) -> Dashboard:
    """Make the dashboard of an app's namespace, an ASGI application.

    `authorize(request)` returns the `Access` of a request's user, None for no access, or a response such as a redirect
    to a login page; it is a coroutine function, or a plain one, which runs on a thread. `read_only`: no user may change
    anything. `origins`: origins of the dashboard's own pages, as `https://ops.example.com`, if a proxy rewrites the
    Host header. `redact(task, body)` gets what a body holds (bytes if it is not JSON) and returns what a page shows of
    it. `frame_ancestors`: origins whose pages may frame cards, as `https://grafana.example.com`.

    Connects at the first request, also after a fork. Raises `InvalidOptionError` without the extra `web`.
    """
    check_installed(*_PACKAGES)
    if frame_ancestors:
        check_origins(" ".join(frame_ancestors), "frame_ancestors")
    from qworker.client.execute.single_wait import WatchingClient
    from qworker.monitor.namespace import Namespace
    from qworker.store.connections import ConnectionFactory
    from qworker.store.embedded.store import resolve_url
    from qworker.store.url import ServerURL
    from qworker.web.application import Dashboard
    from qworker.web.guard import Guard

    server = ServerURL.parse(resolve_url(app.url))
    client = WatchingClient(
        ConnectionFactory(server, name="qworker-web"), give_up_s=GIVE_UP_S, keyring=app.keyring
    )
    namespace = Namespace(app.namespace, client, ServerURL.parse(app.url), server)
    return Dashboard(
        namespace,
        Guard(authorize, read_only=read_only, origins=origins),
        redact=redact,
        frame_ancestors=frame_ancestors,
    )


def check_installed(*packages: str) -> None:
    """Raise `InvalidOptionError` for a package of the extra that is not installed."""
    for name in packages:
        if importlib.util.find_spec(name) is None:
            raise InvalidOptionError(
                "web", f"needs {name}, which is not installed", "pip install 'qworker-redis[web]'"
            )
