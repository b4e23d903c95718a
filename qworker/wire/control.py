"""What operators ask of a running worker, and what it answers: one JSON document each way.

A request stands in the LIST `ns:control:<worker>`, which the worker reads every two seconds; its answers in the
LIST `ns:answer:<request id>`. Both keys expire, so a request to a worker that has gone leaves nothing behind.
"""

from __future__ import annotations

from typing import Any, Final

import msgspec

__all__ = ["KEPT_MS", "Answer", "Request", "read_answer", "read_request", "write"]

#: How long a request or an answer is kept that nobody takes. A request is no order for later: it is void by then.
KEPT_MS: Final = 30_000
_UNREADABLE: Final = (msgspec.MsgspecError, UnicodeDecodeError, RecursionError)


class Request(msgspec.Struct, frozen=True):
    """One request. `id` names the key of the answers; `sent_ms` is the server's time."""

    id: str
    verb: str
    sent_ms: int
    arguments: dict[str, Any] = {}


class Answer(msgspec.Struct, frozen=True):
    """What a worker says to a request. `done` False: it was refused or failed, and `text` says why."""

    worker: str
    done: bool
    text: str = ""
    data: dict[str, Any] = {}


def write(document: Request | Answer) -> bytes:
    """Write a document as it stands in its key."""
    return msgspec.json.encode(document)


def read_request(written: bytes) -> Request | None:
    """Read a request; None for what is none."""
    try:
        return msgspec.json.decode(written, type=Request)
    except _UNREADABLE:
        return None


def read_answer(written: bytes) -> Answer | None:
    """Read an answer; None for what is none."""
    try:
        return msgspec.json.decode(written, type=Answer)
    except _UNREADABLE:
        return None
