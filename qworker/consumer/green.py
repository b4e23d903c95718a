"""Apps that gevent or eventlet has patched: a child needs real threads, sockets and polls, and would stand still."""

from __future__ import annotations

import sys
from typing import Any

from qworker.errors import AppLoadError

__all__ = ["check_unpatched"]


def check_unpatched() -> None:
    """Raise `AppLoadError` where the import of an app has replaced threads or sockets by those of green threads."""
    gevent: Any = sys.modules.get("gevent.monkey")
    if gevent is not None and any(
        gevent.is_module_patched(name) for name in ("threading", "_thread", "socket", "select")
    ):
        raise AppLoadError(_words("gevent.monkey.patch_all()"))
    eventlet: Any = sys.modules.get("eventlet.patcher")
    if eventlet is not None and any(
        eventlet.is_monkey_patched(name) for name in ("thread", "socket", "select")
    ):
        raise AppLoadError(_words("eventlet.monkey_patch()"))


def _words(call: str) -> str:
    return (
        f"{call} was called while the app was imported; it replaces the threads and the asyncio on which handlers run: "
        "leave it out of what a worker imports (--concurrency says how many handlers run at once)"
    )
