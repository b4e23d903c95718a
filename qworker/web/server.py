"""`qworker web`: the dashboard as its own process."""

from __future__ import annotations

import asyncio
import importlib
import ipaddress
import os
import signal
import socket
import sys
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final

from qworker.errors import AppLoadError, InvalidOptionError
from qworker.web.access import OneTimeLink
from qworker.web.mount import GIVE_UP_S, check_installed

if TYPE_CHECKING:
    import uvicorn

    from qworker.daemon.systemd import SystemdNotifier
    from qworker.store.url import ServerURL
    from qworker.web.access import Authorize
    from qworker.web.application import Dashboard
    from qworker.web.options import WebOptions
    from qworker.wire.keyring import Keyring

__all__ = ["check_options", "serve"]

_PACKAGES: Final = ("starlette", "jinja2", "uvicorn")
#: Seconds that open requests have to end when the process is stopped.
_GRACE_S: Final = 3
#: Seconds until a signal is noticed.
_SIGNAL_S: Final = 0.2
#: Connections at the same time; each open page has one.
_CONNECTIONS: Final = 1000


def check_options(options: WebOptions) -> None:
    """Raise `InvalidOptionError` if a package is missing, or anyone on the network could do everything."""
    check_installed(*_PACKAGES)
    if options.authorize is None and not _is_loopback(options.host):
        raise InvalidOptionError(
            "host",
            f"{options.host} can be reached from other hosts, and has no users and rights",
            "pass --authorize MODULE:FUNCTION (docs/guides/web.md), or listen on 127.0.0.1 and use an SSH tunnel",
        )


def serve(
    options: WebOptions,
    url: ServerURL,
    server: ServerURL,
    namespace: str,
    keyring: Keyring,
    say: Callable[[str], None],
) -> None:
    """Serve until SIGTERM or SIGINT; `say` prints where. Raises `InvalidOptionError`, `AppLoadError`."""
    check_options(options)
    import uvicorn

    from qworker.client.execute.single_wait import WatchingClient
    from qworker.daemon.systemd import SystemdNotifier
    from qworker.monitor.namespace import Namespace
    from qworker.store.connections import ConnectionFactory
    from qworker.web.application import Dashboard
    from qworker.web.guard import Guard

    notifier = SystemdNotifier()
    given = None if options.authorize is None else _load(options.authorize)
    listener = _listen(options)
    address = _address(listener)
    link: OneTimeLink | None = None
    if given is not None:
        say(f"serving {address}/")
        authorize: Authorize = given
    else:
        port = listener.getsockname()[1]
        link = OneTimeLink(
            f"qworker_{port}", lambda token: say(f"open {address}/enter?token={token}")
        )
        authorize = link.authorize
    client = WatchingClient(
        ConnectionFactory(server, name="qworker-web"), give_up_s=GIVE_UP_S, keyring=keyring
    )
    dashboard = Dashboard(
        Namespace(namespace, client, url, server),
        Guard(authorize, read_only=options.read_only),
        link=link,
        lasts=True,
        frame_ancestors=(options.frame_ancestors or "").split(),
    )

    dashboard.sampler.sample  # noqa: B018  starts it: the history begins now
    # uvicorn sends itself a signal again when it has ended, for handlers that were there before.
    for stop in (signal.SIGINT, signal.SIGTERM):
        signal.signal(stop, lambda *_: None)
    try:
        asyncio.run(_run(uvicorn.Server(_server_config(dashboard)), listener, dashboard, notifier))
    finally:
        dashboard.close()


def _server_config(dashboard: Dashboard) -> uvicorn.Config:
    import uvicorn

    return uvicorn.Config(
        dashboard,
        log_config=None,
        access_log=False,
        lifespan="off",
        # A name that a client sends in a header is not the client's.
        proxy_headers=False,
        server_header=False,
        limit_concurrency=_CONNECTIONS,
        timeout_graceful_shutdown=_GRACE_S,
    )


async def _run(
    server: Any, listener: socket.socket, dashboard: Dashboard, notifier: SystemdNotifier
) -> None:
    """Serve until a signal comes; then end the streams, which would last as long as browsers have pages open."""
    serving, ready = asyncio.create_task(server.serve(sockets=[listener])), False
    while not (server.should_exit or serving.done()):
        await asyncio.wait([serving], timeout=_SIGNAL_S)
        if server.started and not ready:
            ready = True
            notifier.ready()
        notifier.ping()
    notifier.stopping()
    dashboard.sampler.end()
    await serving


def _is_loopback(host: str) -> bool:
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return False


def _listen(options: WebOptions) -> socket.socket:
    host = options.host.strip("[]")
    try:
        found = socket.getaddrinfo(
            host, options.port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )
        family, _, _, _, address = found[0]
        return socket.create_server(address[:2], family=family, backlog=128)
    except OSError as error:
        raise InvalidOptionError(
            "port",
            f"cannot listen on {host} port {options.port}: {error.strerror or error}",
            "stop what listens there, or choose another port",
        ) from error


def _address(listener: socket.socket) -> str:
    host, port = listener.getsockname()[:2]
    return f"http://{f'[{host}]' if ':' in host else host}:{port}"


def _load(name: str) -> Any:
    module, _, attribute = name.partition(":")
    sys.path.insert(0, os.getcwd())
    try:
        function = getattr(importlib.import_module(module), attribute)
    except Exception as error:
        raise AppLoadError(f"cannot import {name}: {type(error).__name__}: {error}") from error
    if not callable(function):
        raise InvalidOptionError("authorize", f"{name} is not a function", "name a function")
    return function
