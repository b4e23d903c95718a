"""Reads Celery's messages (protocol 2), which kombu writes as JSON.

A message is JSON: headers (task, id, eta, expires, retries, …), properties, and a body in base64, which is JSON again:
`[args, kwargs, embed]` (https://docs.celeryq.dev/en/stable/internals/protocol.html). Bodies in pickle are never read.
"""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any, Final

import msgspec

from qworker.importers.source import Content, RefusedMessageError, SourceMessage, State
from qworker.importers.task_names import TaskNames

__all__ = ["MessageReader", "decoded"]

_MAX_RECEIVES: Final = 999_999


class MessageReader:
    """Reads messages; `drop_callbacks`: also those with callbacks, without these."""

    def __init__(self, tasks: TaskNames, *, drop_callbacks: bool) -> None:
        self._tasks, self._drop_callbacks = tasks, drop_callbacks

    def message(
        self, raw: bytes, handle: Any, queue: str, state: State, now_ms: int, *, wrapped: bool
    ) -> SourceMessage:
        """Read a message; `wrapped`: `raw` is a value of `unacked`."""
        message = _message(raw, wrapped=wrapped)
        headers, properties = _object(message, "headers"), _object(message, "properties")
        # A redelivery changes `redelivered`, which is therefore not part of a message's identity.
        identity = (
            headers.get("id"),
            properties.get("delivery_tag"),
            message and message.get("body"),
        )
        mark = hashlib.sha256(msgspec.json.encode(identity) if message else raw).hexdigest()[:32]
        name = str(headers.get("id") or mark)

        def read() -> Content:
            if message is None:
                raise RefusedMessageError("unreadable", "it is not a message of Celery")
            return self._read(message, headers, properties, now_ms)

        return SourceMessage.of(name, f"celery:{queue}:{mark}", handle, state, read)

    def _read(
        self,
        message: Mapping[str, Any],
        headers: Mapping[str, Any],
        properties: Mapping[str, Any],
        now_ms: int,
    ) -> Content:
        function = headers.get("task")
        if not isinstance(function, str):
            raise RefusedMessageError("unreadable", "it names no task, as protocol 2 would")
        kind = message.get("content-type")
        if kind != "application/json":
            raise RefusedMessageError("content_type", f"its body is {ascii(kind)[:80]}")
        if headers.get("compression"):
            raise RefusedMessageError("compressed", f"with {ascii(headers['compression'])[:80]}")
        args, kwargs, embed = _parts(message, properties)
        if not self._drop_callbacks:
            _refuse_callbacks(embed, headers)
        eta_ms, expires_ms = _moment_ms(headers, "eta"), _moment_ms(headers, "expires")
        retries = headers.get("retries")
        return Content(
            body=self._tasks.call(function, args, kwargs),
            delay_ms=max((eta_ms or 0) - now_ms, 0),
            # An expired one is moved nevertheless: our queue counts and drops it.
            ttl_ms=None if expires_ms is None else max(expires_ms - now_ms, 1),
            receives=min(retries, _MAX_RECEIVES) if isinstance(retries, int) and retries > 0 else 0,
            function=function,
        )


def _parts(
    message: Mapping[str, Any], properties: Mapping[str, Any]
) -> tuple[list[Any], dict[str, Any], dict[str, Any]]:
    body = message.get("body")
    try:
        if properties.get("body_encoding") == "base64":
            body = base64.b64decode(str(body), validate=True)
        parts = msgspec.json.decode(body if isinstance(body, str | bytes) else b"")
    except (ValueError, msgspec.DecodeError) as error:
        raise RefusedMessageError(
            "unreadable", f"its body cannot be read ({error})"[:200]
        ) from error
    match parts:
        case [list() as args, dict() as kwargs, dict() as embed]:
            return _plain(args), _plain(kwargs), embed
    raise RefusedMessageError("unreadable", "its body is not [args, kwargs, embed]")


def _refuse_callbacks(embed: Mapping[str, Any], headers: Mapping[str, Any]) -> None:
    for name in ("callbacks", "errbacks", "chain", "chord"):
        if embed.get(name):
            raise RefusedMessageError(name, f"it has a {name.removesuffix('s')} to call after it")
    if headers.get("stamps"):
        raise RefusedMessageError("stamps", "it has stamps, which qworker does not support")


def _plain(value: Any, depth: int = 0) -> Any:
    """Remove kombu's marks of types, `{"__type__": …, "__value__": …}`: our tasks' own types restore the values."""
    if depth > 100:
        raise RefusedMessageError("arguments", "they are nested too deeply")
    if isinstance(value, list):
        return [_plain(item, depth + 1) for item in value]
    if not isinstance(value, dict):
        return value
    if value.keys() != {"__type__", "__value__"}:
        return {name: _plain(item, depth + 1) for name, item in value.items()}
    match value["__type__"], value["__value__"]:
        case (("datetime" | "date" | "time" | "decimal" | "base64"), str(text)):
            return text
        case "bytes", str(text):
            return text.encode()
        case "uuid", {"hex": str(text)}:
            return f"{text[:8]}-{text[8:12]}-{text[12:16]}-{text[16:20]}-{text[20:]}"
    raise RefusedMessageError("arguments", f"they hold the type {ascii(value['__type__'])[:80]}")


def _moment_ms(headers: Mapping[str, Any], name: str) -> int | None:
    written = headers.get(name)
    if written is None:
        return None
    try:
        moment = datetime.fromisoformat(written)
    except (TypeError, ValueError) as error:
        raise RefusedMessageError("unreadable", f"its {name} is {ascii(written)[:80]}") from error
    aware = moment if moment.tzinfo else moment.replace(tzinfo=UTC)
    return int(aware.timestamp() * 1000)


def decoded(raw: bytes) -> Any:
    """Decode JSON; None if it is not JSON."""
    try:
        return msgspec.json.decode(raw)
    except msgspec.DecodeError:
        return None


def _message(raw: bytes, *, wrapped: bool) -> dict[str, Any] | None:
    message = decoded(raw)
    if wrapped:
        message = message[0] if isinstance(message, list) and message else None
    return message if isinstance(message, dict) else None


def _object(message: Mapping[str, Any] | None, name: str) -> Mapping[str, Any]:
    value = message.get(name) if message else None
    return value if isinstance(value, dict) else {}
