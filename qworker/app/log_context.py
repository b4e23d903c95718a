"""Says in every log line of a handler for which message it runs.

Workers install both ways: lines of structlog and of the standard library's `logging` get the fields `task`, `queue` and
`message_id`. They are looked up when a line is written: a message of which nothing is logged pays nothing.
"""

from __future__ import annotations

import logging
from collections.abc import MutableMapping
from contextvars import ContextVar
from typing import Any, Final

from qworker.app.context import running

__all__ = ["RECORD_FIELDS", "add_message_fields", "calling", "mark_records", "message_fields"]

#: Attributes of a `logging.LogRecord`, '' outside of handlers. With a prefix, for a record refuses an `extra=` of the
#: same name, and many call theirs `task`.
RECORD_FIELDS: Final = ("qworker_task", "qworker_queue", "qworker_message_id")

#: The call of a batch handler that runs here: task, queue, number of messages.
calling: ContextVar[tuple[str, str, int] | None] = ContextVar("qworker_calling", default=None)


def message_fields() -> dict[str, Any]:
    """Return task, queue and message id of the message that is handled here; a batch has its number of messages.

    Empty outside of handlers.
    """
    delivery = running.get()
    if delivery is not None:
        context = delivery.context()
        return {"task": context.task, "queue": context.queue, "message_id": context.message_id}
    batch = calling.get()
    if batch is None:
        return {}
    task, queue, messages = batch
    return {"task": task, "queue": queue, "messages": messages}


def add_message_fields(
    _logger: object, _method: str, event: MutableMapping[str, Any]
) -> MutableMapping[str, Any]:
    """Add `message_fields` to a line of structlog; fields that the line has stay as they are. A structlog processor."""
    for name, value in message_fields().items():
        event.setdefault(name, value)
    return event


def mark_records() -> None:
    """Let every record of `logging` have `RECORD_FIELDS` from now on, whatever formats it."""
    make = logging.getLogRecordFactory()

    def marked(*args: Any, **kwargs: Any) -> logging.LogRecord:
        record = make(*args, **kwargs)
        fields = message_fields()
        for name in RECORD_FIELDS:
            setattr(record, name, fields.get(name.removeprefix("qworker_"), ""))
        return record

    logging.setLogRecordFactory(marked)
