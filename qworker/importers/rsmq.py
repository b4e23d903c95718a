"""Messages in the keys of RSMQ (smrchy/rsmq).

    rsmq:QUEUES      SET of queue names
    rsmq:<queue>     ZSET message id → ms since 1970 from which it is visible
    rsmq:<queue>:Q   HASH: vt, delay, maxsize, totals; <id> body, <id>:rc deliveries, <id>:fr first delivery ms

A message that is not visible yet is delayed, or in flight if it was delivered before: both are moved as delayed, until
the time at which RSMQ would deliver them. An id begins with the time of sending, in µs, base 36.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Final

import msgspec

from qworker.importers.source import (
    MAX_BODY,
    Content,
    RefusedMessageError,
    SourceMessage,
    SourceQueue,
    State,
)
from qworker.wire.codec import encode_call

__all__ = ["Rsmq", "as_call", "as_it_is"]

_TIME_LENGTH: Final = 10
#: Bounds of our attributes, in the units of `meta`.
_VISIBILITY_MS: Final = (1000, 12 * 3_600_000)
_MAXSIZE: Final = (1024, MAX_BODY)
_MAX_RECEIVES: Final = 999_999

#: RSMQ's body → ours.
Body = Callable[[bytes], bytes]


def as_it_is(body: bytes) -> bytes:
    """Take the body byte for byte."""
    return body


def as_call(task: str, *, text: bool = False) -> Body:
    """Make each body a call of `task` with one argument.

    A JSON object or array is passed as such unless `text`; everything else is passed as text: RSMQ's bodies are texts,
    and "007" must not become 7.
    """

    def call(body: bytes) -> bytes:
        if not text and body[:1] in (b"{", b"["):
            try:
                return encode_call(task, [msgspec.json.decode(body)], {})
            except msgspec.DecodeError:
                pass
        try:
            return encode_call(task, [body.decode()], {})
        except UnicodeDecodeError as error:
            raise RefusedMessageError("not_text", "the body is not UTF-8") from error

    return call


class Rsmq:
    """RSMQ's queues under a prefix; `bodies` returns how the bodies of a queue are converted."""

    system = "rsmq"

    def __init__(self, redis: Any, bodies: Callable[[str], Body], prefix: str = "rsmq") -> None:
        self._redis = redis
        self._bodies = bodies
        self._prefix = prefix

    def queues(self) -> list[str]:
        """Return the names of the queues."""
        names = self._redis.smembers(f"{self._prefix}:QUEUES")
        return sorted(name.decode("utf-8", "replace") for name in names)

    def queue(self, name: str) -> SourceQueue:
        """Open a queue, with its attributes within the bounds of ours."""
        key = f"{self._prefix}:{name}"
        values = self._redis.hmget(f"{key}:Q", "vt", "delay", "maxsize")
        return SourceQueue(
            name,
            [_Messages(self._redis, key, name, self._bodies(name))],
            _attributes(*map(_number, values)),
        )

    def consumers(self) -> int | None:
        """RSMQ does not record its consumers."""
        return None


class _Messages:
    """The sorted set of one queue."""

    priority = 0

    def __init__(self, redis: Any, key: str, name: str, body: Body) -> None:
        self._redis, self._key, self._name, self._body = redis, key, name, body

    def size(self) -> int:
        """Count the messages."""
        return int(self._redis.zcard(self._key))

    def read(self, start: int, count: int) -> list[SourceMessage]:
        """Read messages in the order in which they become visible."""
        pairs = self._redis.zrange(self._key, start, start + count - 1, withscores=True)
        if not pairs:
            return []
        fields = [field for raw, _ in pairs for field in (raw, raw + b":rc", raw + b":fr")]
        pipe = self._redis.pipeline(transaction=False)
        pipe.hmget(f"{self._key}:Q", fields).time()
        values, (seconds, microseconds) = pipe.execute()
        now_ms = seconds * 1000 + microseconds // 1000
        return [
            self._message(raw, int(score), values[3 * at : 3 * at + 3], now_ms)
            for at, (raw, score) in enumerate(pairs)
        ]

    def remove_originals(self, messages: Sequence[SourceMessage]) -> int:
        """Delete messages as RSMQ's deleteMessage does."""
        pipe = self._redis.pipeline(transaction=True)
        for message in messages:
            raw = message.handle
            pipe.zrem(self._key, raw)
            pipe.hdel(f"{self._key}:Q", raw, raw + b":rc", raw + b":fr")
        return sum(pipe.execute()[::2])

    def _message(
        self, raw: bytes, visible_ms: int, values: Sequence[bytes | None], now_ms: int
    ) -> SourceMessage:
        name, (body, received, first) = raw.decode("utf-8", "replace"), values
        receives = min(_number(received) or 0, _MAX_RECEIVES)
        state = State.READY
        if visible_ms > now_ms:
            state = State.IN_FLIGHT if receives else State.DELAYED

        def read() -> Content:
            if body is None:
                raise RefusedMessageError("no_body", "its body is missing")
            return Content(
                body=self._body(body),
                delay_ms=max(visible_ms - now_ms, 0),
                age_ms=max(now_ms - _sent_ms(name, now_ms), 0),
                receives=receives,
                first_received_ms=_number(first),
            )

        return SourceMessage.of(name, f"rsmq:{self._name}:{name}", raw, state, read)


def _sent_ms(message_id: str, otherwise: int) -> int:
    try:
        return int(message_id[:_TIME_LENGTH], 36) // 1000
    except ValueError:
        return otherwise


def _attributes(vt: int | None, delay: int | None, maxsize: int | None) -> dict[str, str]:
    """Convert RSMQ's attributes (s, s, characters; -1 for no limit) to ours (ms, ms, bytes)."""
    attributes = {}
    if vt is not None:
        attributes["visibility_ms"] = str(_within(vt * 1000, *_VISIBILITY_MS))
    if delay:
        attributes["delay_ms"] = str(delay * 1000)
    if maxsize is not None:
        limit = _MAXSIZE[1] if maxsize < 0 else maxsize
        attributes["maxsize"] = str(_within(limit, *_MAXSIZE))
    return attributes


def _within(number: int, least: int, most: int) -> int:
    return max(least, min(number, most))


def _number(text: bytes | None) -> int | None:
    try:
        return None if text is None else int(text)
    except ValueError:
        return None
