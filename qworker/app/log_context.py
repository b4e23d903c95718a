"""Adds `task`, `queue` and `message_id` to the log lines of handlers, of structlog and of `logging`.

The fields are read when a line is written: a message without log lines costs nothing.
"""

from __future__ import annotations

import logging
from collections.abc import MutableMapping
from contextvars import ContextVar
from typing import Any, Final

from qworker.app.context import running

__all__ = ["RECORD_FIELDS", "add_message_fields", "mark_records", "message_fields", "running_batch"]

#: Attributes of a `logging.LogRecord`, '' outside of handlers. Prefixed: `logging` refuses an `extra=` with the name of
#: an attribute, and many applications call theirs `task`.
RECORD_FIELDS: Final = ("qworker_task", "qworker_queue", "qworker_message_id")

#: The batch that runs in this thread or coroutine: task, queue, number of messages.
running_batch: ContextVar[tuple[str, str, int] | None] = ContextVar(
    "qworker_running_batch", default=None
)


def message_fields() -> dict[str, Any]:
    """Return `task`, `queue` and `message_id`, for a batch `messages` (their number); empty outside of handlers."""
    delivery = running.get()
    if delivery is not None:
        context = delivery.context()
        return {"task": context.task, "queue": context.queue, "message_id": context.message_id}
    batch = running_batch.get()
    if batch is None:
        return {}
    task, queue, messages = batch
    return {"task": task, "queue": queue, "messages": messages}


def add_message_fields(
    _logger: object, _method: str, event: MutableMapping[str, Any]
) -> MutableMapping[str, Any]:
    """Add `message_fields` to a log line, unless it has such fields. A structlog processor."""
    for name, value in message_fields().items():
        event.setdefault(name, value)
    return event


def mark_records() -> None:
    """Add `RECORD_FIELDS` to every record of `logging` from now on."""
    make = logging.getLogRecordFactory()

    def marked(*args: Any, **kwargs: Any) -> logging.LogRecord:
        record = make(*args, **kwargs)
        fields = message_fields()
        for name in RECORD_FIELDS:
            setattr(record, name, fields.get(name.removeprefix("qworker_"), ""))
        return record

    logging.setLogRecordFactory(marked)
