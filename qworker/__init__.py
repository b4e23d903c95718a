"""Reliable queues on Redis and Valkey: tasks, consumers, a reaper daemon and operator tools."""

from __future__ import annotations

from qworker.app.app import QWorker
from qworker.app.context import Context, current
from qworker.app.control import Bury, Discard, LetExpire, Release, Retry
from qworker.app.middleware import Middleware
from qworker.app.schedule import cron, every
from qworker.errors import *  # noqa: F403
from qworker.errors import __all__ as _errors
from qworker.message import Message
from qworker.options import QueueAttributes, SendOptions

__all__ = [
    "Bury",
    "Context",
    "Discard",
    "LetExpire",
    "Message",
    "Middleware",
    "QWorker",
    "QueueAttributes",
    "Release",
    "Retry",
    "SendOptions",
    "cron",
    "current",
    "every",
    *_errors,
]
