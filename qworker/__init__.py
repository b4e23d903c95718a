"""Reliable queues on Redis and Valkey: tasks, consumers, a reaper daemon and operator tools.

Names are imported on first use: pytest loads this package's plugin into every run, and the command line prints its
help, without importing a Redis client.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any, Final

from qworker.errors import *  # noqa: F403
from qworker.errors import __all__ as _errors

if TYPE_CHECKING:
    from qworker.app.app import QWorker
    from qworker.app.context import Context, current
    from qworker.app.control import Bury, Discard, LetExpire, Release, Retry
    from qworker.app.handle import Handle
    from qworker.app.log_context import add_message_fields
    from qworker.app.middleware import Middleware
    from qworker.app.schedule import cron, every
    from qworker.client.message import Message
    from qworker.engine.options import QueueAttributes, SendOptions
    from qworker.wire.keyring import Keyring

__all__ = [
    "Bury",
    "Context",
    "Discard",
    "Handle",
    "Keyring",
    "LetExpire",
    "Message",
    "Middleware",
    "QWorker",
    "QueueAttributes",
    "Release",
    "Retry",
    "SendOptions",
    "add_message_fields",
    "cron",
    "current",
    "every",
    *_errors,
]

_HOMES: Final = {
    "Bury": "app.control",
    "Context": "app.context",
    "Discard": "app.control",
    "Handle": "app.handle",
    "Keyring": "wire.keyring",
    "LetExpire": "app.control",
    "Message": "client.message",
    "Middleware": "app.middleware",
    "QWorker": "app.app",
    "QueueAttributes": "engine.options",
    "Release": "app.control",
    "Retry": "app.control",
    "SendOptions": "engine.options",
    "add_message_fields": "app.log_context",
    "cron": "app.schedule",
    "current": "app.context",
    "every": "app.schedule",
}


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = globals()[name] = getattr(import_module(f"qworker.{_HOMES[name]}"), name)
    return value


def __dir__() -> list[str]:
    return __all__
