"""Messages and their bodies, as text and for `--json`."""

from __future__ import annotations

import base64
import contextlib
import json
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any, Final

from qworker.cli.framework.output import Block, Fields, Heading, Table
from qworker.cli.framework.terminal import Cell, Column
from qworker.durations import format_ms
from qworker.formats import ago, count, moment_after, safe, shortened, size, span
from qworker.wire.envelope import ItemKind
from qworker.wire.numbers import whole

if TYPE_CHECKING:
    from qworker.client.by_id import Details
    from qworker.client.message import Message, Stored

__all__ = [
    "body_document",
    "body_line",
    "delivery_document",
    "details_document",
    "message_document",
    "message_table",
    "message_text",
]

_LINE: Final = 60
_PAGE: Final = 4000
_AT: Final = {"delayed": "due_ms", "unacked": "deadline_ms"}
_KINDS: Final = {
    ItemKind.PLAIN: "plain JSON, pushed without qworker",
    ItemKind.NEWER: "written by a newer version of qworker",
    ItemKind.FOREIGN: "not written by qworker: consumers cannot handle it",
}


def body_line(body: bytes, *, full: bool = False) -> str:
    """Write a body in one line, cut at 60 characters unless `full`."""
    try:
        text = body.decode()
    except UnicodeDecodeError:
        text = f"{size(len(body))} of binary data: {body[:_LINE].hex()}"
    return safe(text) if full else shortened(safe(text[: 4 * _LINE]), _LINE)


def stored_line(message: Stored, *, full: bool = False) -> str:
    """Write the body of a stored message in one line, or why it cannot be read."""
    if message.unreadable:
        return f"({message.closed})"
    return body_line(message.body, full=full)


def body_document(body: bytes) -> dict[str, str]:
    """Write a body for `--json`: as text, or as base64 if it is not UTF-8."""
    try:
        return {"body": body.decode(), "body_encoding": "utf-8"}
    except UnicodeDecodeError:
        return {"body": base64.b64encode(body).decode(), "body_encoding": "base64"}


def message_document(message: Stored) -> dict[str, Any]:
    """Write a message for `--json`."""
    document: dict[str, Any] = {
        "id": message.id,
        "queue": message.queue,
        "state": message.state,
        "kind": message.kind.value,
        "task": message.task or None,
        "sent_ms": message.sent_ms,
        "due_ms": None,
        "deadline_ms": None,
        "receives": message.receives,
        "nacks": message.nacks,
        "timeouts": message.timeouts,
        "additional_deliveries": message.additional_deliveries,
        "priority": whole(message.flags.get("p")) or 0,
        "expires_ms": whole(message.flags.get("x")),
        "max_receives": whole(message.flags.get("m")),
        "unique": message.flags.get("u"),
        "redrives": whole(message.flags.get("d")) or 0,
        "result_seconds": _seconds(whole(message.flags.get("r"))),
        "receipt": str(message.receipt) if message.receipt else None,
        "closed": message.closed or None,
        "size_bytes": len(message.body),
        **body_document(message.body),
    }
    if message.state in _AT:
        document[_AT[message.state]] = message.at_ms
    return document


def details_document(details: Details) -> dict[str, Any]:
    """Write the remaining times of a message for `--json`, in seconds."""
    return {
        "ttl_seconds": _seconds(details.ttl_ms),
        "delay_seconds": _seconds(details.delay_ms),
        "visibility_seconds": _seconds(details.visibility_ms),
        "at_most_once": details.at_most_once,
        "due_in_seconds": _seconds(details.due_in_ms),
        "requeue_in_seconds": _seconds(details.requeue_in_ms),
    }


def _seconds(milliseconds: int | None) -> float | None:
    return None if milliseconds is None else milliseconds / 1000


def message_table(messages: Sequence[Stored], now_ms: int, *, full: bool) -> Table:
    """Write messages of one state as a table."""
    state = messages[0].state
    at = {"delayed": "DUE", "unacked": "DEADLINE"}.get(state)
    columns = [Column("ID"), Column("SENT"), *([Column(at)] if at else [])]
    columns += [Column("RECEIVES", number=True), Column("FAILURES", number=True)]
    columns += [Column("TASK", wide=True), Column("BODY", wide=True)]
    return Table(
        columns,
        [
            [
                message.id or Cell(message.kind.value, "warn"),
                ago(message.sent_ms, now_ms) if message.sent_ms is not None else "",
                *([ago(message.at_ms, now_ms)] if at and message.at_ms is not None else []),
                str(message.receives),
                str(message.nacks + message.timeouts),
                message.task,
                stored_line(message, full=full),
            ]
            for message in messages
        ],
    )


def message_text(message: Stored, now_ms: int) -> Iterator[str | Block]:
    """Write one message in full, its body last."""
    fields: dict[str, Cell | str] = {
        "id": message.id or "none",
        "queue": message.queue,
        "state": message.state,
    }
    if message.kind in _KINDS:
        fields["kind"] = Cell(_KINDS[message.kind], "warn")
    if message.task:
        fields["task"] = message.task
    if message.sent_ms is not None:
        fields["sent"] = moment_after(message.sent_ms, now_ms)
    if message.at_ms is not None:
        label = {"delayed": "due", "unacked": "visible again"}.get(message.state, "at")
        fields[label] = moment_after(message.at_ms, now_ms)
    fields["receives"] = _receives(message)
    fields |= _flags(message.flags, now_ms)
    if message.receipt:
        fields["receipt"] = str(message.receipt)
    if message.closed:
        fields["unusable"] = Cell(f"it {message.closed}", "warn")
    yield Fields(fields)
    yield Heading(f"BODY ({size(len(message.body))}{', encrypted' if message.unreadable else ''})")
    yield from body_lines(message.body)


def _receives(message: Stored) -> str:
    """Say how often a message was received without success, and how each receive ended."""
    others = max(0, message.receives - message.nacks - message.timeouts)
    ends = [
        (message.nacks, "failed (nacked)"),
        (message.timeouts, "timed out (its process died, or took too long)"),
        (others, "released, buried or interrupted"),
    ]
    parts = [f"{count(number)} {how}" for number, how in ends if number]
    return ": ".join([count(message.receives), *([", ".join(parts)] if parts else [])])


def body_lines(body: bytes) -> list[str]:
    """Write a body in lines: JSON indented, other text as it is, binary data in hexadecimal; at most 4,000 of each."""
    try:
        text = body.decode()
    except UnicodeDecodeError:
        shown = [body[at : at + 16].hex(" ") for at in range(0, min(len(body), _PAGE), 16)]
        return shown if len(body) <= _PAGE else [*shown, f"… {size(len(body) - _PAGE)} more"]
    with contextlib.suppress(ValueError, RecursionError):
        text = json.dumps(json.loads(text), indent=2, ensure_ascii=False)
    cut = text[:_PAGE].split("\n")
    return (
        cut if len(text) <= _PAGE else [*cut, f"… {len(text) - _PAGE:,} more characters (--json)"]
    )


def _flags(flags: dict[str, str], now_ms: int) -> dict[str, Cell | str]:
    fields: dict[str, Cell | str] = {}
    if "p" in flags:
        fields["priority"] = flags["p"]
    if (expiry_ms := whole(flags.get("x"))) is not None:
        fields["expires"] = moment_after(expiry_ms, now_ms)
    if (first_ms := whole(flags.get("f"))) is not None:
        fields["first received"] = moment_after(first_ms, now_ms)
    if "v" in flags:
        own_ms = whole(flags["v"])
        fields["visibility"] = span((own_ms or 0) / 1000) if own_ms else "at most once"
    if keep_ms := whole(flags.get("r")):
        fields["result"] = f"kept for {format_ms(keep_ms)} once it has ended"
    for flag, label in (("m", "max receives"), ("u", "unique key"), ("d", "redrives")):
        if flag in flags:
            fields[label] = flags[flag]
    if "s" in flags:
        fields["signed with"] = flags["s"].partition(".")[0]
    if "e" in flags:
        fields["encrypted with"] = flags["e"].partition(".")[2]
    return fields


def delivery_document(message: Message) -> dict[str, Any]:
    """Write a delivered message for `--json`."""
    return {
        "id": message.id,
        "queue": message.queue,
        "receipt": str(message.receipt),
        "receive_count": message.receive_count,
        "nacks": message.nacks,
        "timeouts": message.timeouts,
        "sent_ms": message.sent_ms,
        "first_received_ms": message.first_received_ms,
        "received_ms": message.received_ms,
        "deadline_ms": message.deadline_ms,
        "size_bytes": len(message.body),
        **body_document(message.body),
    }
