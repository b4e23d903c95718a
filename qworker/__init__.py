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
    from qworker.app.arguments.failures import Failure
    from qworker.app.chain import Chain, chain
    from qworker.app.context import Context, current
    from qworker.app.control import Bury, Cancel, Discard, LetExpire, RateLimited, Release, Retry
    from qworker.app.feed import Feed
    from qworker.app.group import group
    from qworker.app.group_call import GroupCall
    from qworker.app.handle import Handle
    from qworker.app.handles import Handles
    from qworker.app.log_context import add_message_fields
    from qworker.app.middleware import Middleware
    from qworker.app.runs.run import Run
    from qworker.app.runs.sync_run import SyncRun
    from qworker.app.schedule import cron, every
    from qworker.client.cancel_message import Cancellation
    from qworker.client.message import Message
    from qworker.engine.options import QueueAttributes, SendOptions
    from qworker.wire.feed import FeedEntry
    from qworker.wire.keyring import Keyring

__all__ = [
    "Bury",
    "Cancel",
    "Cancellation",
    "Chain",
    "Context",
    "Discard",
    "Failure",
    "Feed",
    "FeedEntry",
    "GroupCall",
    "Handle",
    "Handles",
    "Keyring",
    "LetExpire",
    "Message",
    "Middleware",
    "QWorker",
    "QueueAttributes",
    "RateLimited",
    "Release",
    "Retry",
    "Run",
    "SendOptions",
    "SyncRun",
    "add_message_fields",
    "chain",
    "cron",
    "current",
    "every",
    "group",
    *_errors,
]

_HOMES: Final = {
    "Bury": "app.control",
    "Cancel": "app.control",
    "Cancellation": "client.cancel",
    "Chain": "app.chain",
    "Context": "app.context",
    "Discard": "app.control",
    "Failure": "app.arguments.failures",
    "Feed": "app.feed",
    "FeedEntry": "wire.feed",
    "GroupCall": "app.group_call",
    "Handle": "app.handle",
    "Handles": "app.handles",
    "Keyring": "wire.keyring",
    "LetExpire": "app.control",
    "Message": "client.message",
    "Middleware": "app.middleware",
    "QWorker": "app.app",
    "QueueAttributes": "engine.options",
    "RateLimited": "app.control",
    "Release": "app.control",
    "Retry": "app.control",
    "Run": "app.runs.run",
    "SendOptions": "engine.options",
    "SyncRun": "app.runs.sync_run",
    "add_message_fields": "app.log_context",
    "chain": "app.chain",
    "cron": "app.schedule",
    "current": "app.context",
    "every": "app.schedule",
    "group": "app.group",
}


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = globals()[name] = getattr(import_module(f"qworker.{_HOMES[name]}"), name)
    return value


def __dir__() -> list[str]:
    return __all__
