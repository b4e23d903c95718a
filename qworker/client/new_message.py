"""Messages from bodies: their flags, unique keys, groups and protection."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Final

from qworker.client.queue_ref import QueueRef
from qworker.engine.options import LARGEST_MAXSIZE, SendOptions
from qworker.engine.send import UNTIL_END, NewMessage
from qworker.errors import (
    InvalidError,
    InvalidOptionError,
)
from qworker.wire.codec import check_size, encode
from qworker.wire.envelope import tail
from qworker.wire.groups import flag_of

__all__ = ["new_message", "new_messages"]

#: Flags of messages whose end others wait for: of results, runs and chains.
_AWAITED: Final = frozenset("rcj")


def new_message(
    queue: QueueRef,
    body: object,
    options: SendOptions,
    *,
    flags: dict[str, str] | None = None,
    sending: Callable[[bytes, dict[str, str]], None] | None = None,
    message_id: str | None = None,
    group: str = "",
) -> NewMessage:
    """Make a message of a body: bytes as they are, anything else as JSON. Raises `InvalidError`s.

    `sending` gets the body and the header flags, and may change the flags. Without a `message_id` it draws one. `group`
    is the stored name of a group, '' for that of the options.
    """
    data = body if isinstance(body, bytes) else encode(body)
    check_size(data, LARGEST_MAXSIZE)
    flags = {} if flags is None else flags
    if options.max_receives is not None:
        flags["m"] = str(options.max_receives)
    if options.priority:
        flags["p"] = str(options.priority)
    if options.unique is not None:
        _mark_unique(flags, options)
    if not group and options.group is not None:
        group = flag_of(options.group, options.ordered)
    if group:
        flags["g"] = group
    if options.visibility_ms is not None:
        flags["v"] = str(options.visibility_ms)
        if options.visibility_ms == 0:
            flags["m"] = "1"  # At most once: a failed or lost message is dead.
    if sending is not None:
        sending(data, flags)
    if message_id is None:
        message_id = queue.ids.message_id()
    if queue.protected:
        data = queue.protect(message_id, data, flags)
    if options.unique is None:
        return NewMessage(message_id, tail(data, flags), flags.get("u", ""), group=group)
    if options.unique_for_ms is not None:
        return NewMessage(
            message_id, tail(data, flags), options.unique, f"={options.unique_for_ms}", group
        )
    held = f"~{options.debounce_max_ms or 0}" if options.debounce_ms is not None else UNTIL_END
    return NewMessage(message_id, tail(data, flags), flags.get("u", ""), held, group)


def _mark_unique(flags: dict[str, str], options: SendOptions) -> None:
    """Set the flags of a unique key that the message frees: at its end, or (flag l) at its delivery."""
    if options.unique is None or options.unique_for_ms is not None:
        return
    flags["u"] = options.unique
    if options.debounce_ms is not None or options.unique_until == "started":
        flags["l"] = "1"
    if options.debounce_ms is not None and not _AWAITED.isdisjoint(flags):
        raise InvalidOptionError(
            "debounce",
            "is set for a message whose result is kept",
            "a later message may replace it, and its result would never come; send it by a task without result=",
        )


def new_messages(
    queue: QueueRef, bodies: Iterable[object], options: SendOptions
) -> list[NewMessage]:
    """Make a message of each body. Raises the `InvalidError` of the first that is refused, with its index."""
    messages = []
    for index, body in enumerate(bodies):
        try:
            messages.append(new_message(queue, body, options))
        except InvalidError as error:
            path = error.field.removeprefix("body")
            dot = "." if path and path == error.field else ""
            raise error.at(f"bodies[{index}]{dot}{path}") from error
    return messages
