"""Requests of operators to a running worker, and its answers, as JSON documents.

The worker reads requests from the LIST `ns:control:<worker>` every two seconds, and answers in the LIST
`ns:answer:<request id>`. Both keys expire, so requests to a worker that is gone leave nothing behind.
"""

from __future__ import annotations

from typing import Any, Final

import msgspec

from qworker.errors import InvalidOptionError

__all__ = [
    "KEPT_MS",
    "MAX_PROCESSES",
    "Answer",
    "ControlRequest",
    "check_processes",
    "read_answer",
    "read_request",
    "write",
]

#: When a request or an answer expires that is not read.
KEPT_MS: Final = 30_000
#: Processes of a worker.
MAX_PROCESSES: Final = 1024
_UNREADABLE: Final = (msgspec.MsgspecError, UnicodeDecodeError, RecursionError)


class ControlRequest(msgspec.Struct, frozen=True):
    """One request. `id` names the key of the answers; `sent_ms` is the server's time."""

    id: str
    verb: str
    sent_ms: int
    arguments: dict[str, Any] = {}


class Answer(msgspec.Struct, frozen=True):
    """A worker's answer to a request. `done` False: it was refused or failed, and `text` says why."""

    worker: str
    done: bool
    text: str = ""
    data: dict[str, Any] = {}


def write(document: ControlRequest | Answer) -> bytes:
    """Write a document as it is stored."""
    return msgspec.json.encode(document)


def read_request(written: bytes) -> ControlRequest | None:
    """Read a request; None for anything else."""
    try:
        return msgspec.json.decode(written, type=ControlRequest)
    except _UNREADABLE:
        return None


def read_answer(written: bytes) -> Answer | None:
    """Read an answer; None for anything else."""
    try:
        return msgspec.json.decode(written, type=Answer)
    except _UNREADABLE:
        return None


def check_processes(wanted: object, field: str) -> int:
    """Return a number of processes that a worker may have. Raises `InvalidOptionError`."""
    if type(wanted) is not int or not 1 <= wanted <= MAX_PROCESSES:
        raise InvalidOptionError(
            field,
            f"{ascii(wanted)[:40]} is not possible",
            f"a number from 1 to {MAX_PROCESSES}; to end a worker: qworker worker drain",
        )
    return wanted
