"""Refuses apps that gevent or eventlet has patched: a child needs real threads, sockets and polls."""

from __future__ import annotations

import sys
from typing import Any

from qworker.errors import AppLoadError

__all__ = ["check_unpatched"]


def check_unpatched() -> None:
    """Raise `AppLoadError` if importing the app has replaced threads or sockets by green ones."""
    gevent: Any = sys.modules.get("gevent.monkey")
    if gevent is not None and any(
        gevent.is_module_patched(name) for name in ("threading", "_thread", "socket", "select")
    ):
        raise AppLoadError(_problem("gevent.monkey.patch_all()"))
    eventlet: Any = sys.modules.get("eventlet.patcher")
    if eventlet is not None and any(
        eventlet.is_monkey_patched(name) for name in ("thread", "socket", "select")
    ):
        raise AppLoadError(_problem("eventlet.monkey_patch()"))


def _problem(call: str) -> str:
    return (
        f"{call} was called while the app was imported; it replaces the threads and the asyncio on which handlers run: "
        "leave it out of what a worker imports (--concurrency says how many handlers run at once)"
    )
