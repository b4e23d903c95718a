"""Jobs in the keys of RQ (rq 1 and 2).

    rq:queues                      SET of `rq:queue:<queue>`
    rq:queue:<queue>               LIST of job ids, the next one at the left
    rq:queue:<queue>:intermediate  LIST of job ids that a worker has taken and not started
    rq:scheduled:<queue>           ZSET job id → s since 1970
    rq:wip:<queue>                 ZSET of started jobs, `<id>` or `<id>:<execution>` → s since 1970
    rq:failed:, rq:deferred:       ZSETs of jobs that do not run now: counted, and left
    rq:job:<id>                    HASH: data (zlib; pickle or JSON of function, instance, args, kwargs), created_at, …
    rq:job:<id>:dependents         SET of jobs that wait for this one

Pickles are read by `pickles.read_plain`, which runs no code of theirs.
"""

from __future__ import annotations

import zlib
from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Any, Final, NamedTuple

from qworker.errors import InvalidBodyError
from qworker.importers.pickles import UnsafePickleError, read_plain
from qworker.importers.source import (
    MAX_BODY,
    Content,
    RefusedMessageError,
    SourceKey,
    SourceMessage,
    SourceQueue,
    State,
)
from qworker.importers.task_names import TaskNames
from qworker.wire.codec import decode

__all__ = ["Rq"]

_QUEUE: Final = "rq:queue:"
_FIELDS: Final = (
    "data",
    "created_at",
    "retries_left",
    "repeats_left",
    "success_callback_name",
    "failure_callback_name",
    "stopped_callback_name",
    "webhooks",
    "group_id",
)
_CALLBACKS: Final = _FIELDS[4:8]
_MAX_RECEIVES: Final = 999_999
#: A started job without an end has an infinite score.
_LAST_S: Final = 1e11


class _Ref(NamedTuple):
    """A reference to a job in a list or registry: its bytes, the job's id, and when the job is due, ms since 1970."""

    raw: bytes
    job: bytes
    due_ms: int = 0

    @property
    def key(self) -> bytes:
        """The key of the job's HASH."""
        return b"rq:job:" + self.job


class Rq:
    """The queues of RQ.

    `in_flight`: also move jobs that a worker has taken; `drop_callbacks`: move jobs with callbacks, without these.
    """

    system = "rq"

    def __init__(
        self, redis: Any, tasks: TaskNames, *, in_flight: bool = False, drop_callbacks: bool = False
    ) -> None:
        self._redis = redis
        self._jobs = _Jobs(redis, tasks, drop_callbacks=drop_callbacks)
        self._in_flight = in_flight

    def queues(self) -> list[str]:
        """Return the names of the queues, also of those with scheduled jobs alone (RQ registers both)."""
        names = self._redis.smembers("rq:queues")
        return sorted(name.decode("utf-8", "replace").removeprefix(_QUEUE) for name in names)

    def queue(self, name: str) -> SourceQueue:
        """Open a queue."""
        taken: list[SourceKey] = [
            _List(self._jobs, f"{_QUEUE}{name}:intermediate", State.IN_FLIGHT),
            _Registry(self._jobs, f"rq:wip:{name}", State.IN_FLIGHT),
        ]
        waiting: list[SourceKey] = [
            _List(self._jobs, f"{_QUEUE}{name}", State.READY),
            _Registry(self._jobs, f"rq:scheduled:{name}", State.DELAYED),
        ]
        left = {
            "failed": int(self._redis.zcard(f"rq:failed:{name}")),
            "waits_for_others": int(self._redis.zcard(f"rq:deferred:{name}")),
        }
        if self._in_flight:
            waiting = taken + waiting
        else:
            left["in_flight"] = sum(key.size() for key in taken)
        return SourceQueue(name, waiting, left={reason: n for reason, n in left.items() if n})

    def consumers(self) -> int | None:
        """Count the workers whose heartbeat has not expired."""
        workers = self._redis.smembers("rq:workers")
        return int(self._redis.exists(*workers)) if workers else 0


class _Jobs:
    """The HASHes of jobs."""

    def __init__(self, redis: Any, tasks: TaskNames, *, drop_callbacks: bool) -> None:
        self.redis, self._tasks, self._drop_callbacks = redis, tasks, drop_callbacks

    def read(self, refs: Sequence[_Ref], state: State) -> list[SourceMessage]:
        """Read jobs."""
        pipe = self.redis.pipeline(transaction=False)
        pipe.time()
        for ref in refs:
            pipe.hmget(ref.key, _FIELDS).pttl(ref.key).exists(ref.key + b":dependents")
        (seconds, microseconds), *replies = pipe.execute()
        now_ms = seconds * 1000 + microseconds // 1000
        return [
            self._message(ref, state, now_ms, replies[3 * at : 3 * at + 3])
            for at, ref in enumerate(refs)
        ]

    def _message(
        self, ref: _Ref, state: State, now_ms: int, replies: Sequence[Any]
    ) -> SourceMessage:
        values, ttl_ms, has_dependents = replies
        fields = dict(zip(_FIELDS, values, strict=True))
        created, name = fields["created_at"] or b"", ref.job.decode("utf-8", "replace")

        def read() -> Content:
            if fields["data"] is None:
                raise RefusedMessageError("no_job", "its job has expired or was deleted")
            if has_dependents:
                raise RefusedMessageError("dependents", "other jobs wait for it")
            if not self._drop_callbacks:
                _refuse_callbacks(fields)
            function, args, kwargs = _call_of(fields["data"])
            retries = _number(fields["retries_left"])
            return Content(
                body=self._tasks.call(function, args, kwargs),
                delay_ms=max(ref.due_ms - now_ms, 0) if state is State.DELAYED else 0,
                ttl_ms=ttl_ms if ttl_ms > 0 else None,
                age_ms=max(now_ms - _ms_of(created, now_ms), 0),
                max_receives=min(retries + 1, _MAX_RECEIVES) if retries else None,
                function=function,
            )

        # Users may choose a job's id and use it again, but then the time of creation differs.
        mark = f"rq:{name}:{created.decode('utf-8', 'replace')}"
        return SourceMessage.of(name, mark, (ref, fields["group_id"]), state, read)


class _JobIds:
    """A key that holds job ids."""

    priority = 0

    def __init__(self, jobs: _Jobs, key: str, state: State) -> None:
        self._jobs, self._redis, self._key, self._state = jobs, jobs.redis, key, state

    def remove_originals(self, messages: Sequence[SourceMessage]) -> int:
        """Remove ids, then the jobs of those that were still there: the others belong to the worker that took them.

        If it is interrupted between the two, jobs without an id are left, which RQ never reads.
        """
        pipe = self._redis.pipeline(transaction=True)
        for message in messages:
            self._remove(pipe, message.handle[0].raw)
        counts = pipe.execute()
        removed = [message for message, count in zip(messages, counts, strict=True) if count]
        for message in removed:
            ref, group = message.handle
            pipe.delete(ref.key, ref.key + b":dependencies", b"rq:executions:" + ref.job)
            if group:
                pipe.srem(b"rq:group:" + group, ref.job)
        pipe.execute()
        return len(removed)

    def _remove(self, pipe: Any, raw: bytes) -> None:
        raise NotImplementedError


class _List(_JobIds):
    """A list of job ids."""

    def size(self) -> int:
        """Count the ids."""
        return int(self._redis.llen(self._key))

    def read(self, start: int, count: int) -> list[SourceMessage]:
        """Read jobs from the left."""
        ids = self._redis.lrange(self._key, start, start + count - 1)
        return self._jobs.read([_Ref(raw, raw) for raw in ids], self._state) if ids else []

    def _remove(self, pipe: Any, raw: bytes) -> None:
        pipe.lrem(self._key, 1, raw)


class _Registry(_JobIds):
    """A sorted set of job ids; those of started jobs are followed by a colon and the execution."""

    def size(self) -> int:
        """Count the ids."""
        return int(self._redis.zcard(self._key))

    def read(self, start: int, count: int) -> list[SourceMessage]:
        """Read jobs, the earliest first."""
        pairs = self._redis.zrange(self._key, start, start + count - 1, withscores=True)
        refs = [_Ref(raw, self._job(raw), int(min(score, _LAST_S) * 1000)) for raw, score in pairs]
        return self._jobs.read(refs, self._state) if refs else []

    def _job(self, raw: bytes) -> bytes:
        return raw.rpartition(b":")[0] or raw if self._state is State.IN_FLIGHT else raw

    def _remove(self, pipe: Any, raw: bytes) -> None:
        pipe.zrem(self._key, raw)


def _refuse_callbacks(fields: dict[str, bytes | None]) -> None:
    for name in _CALLBACKS:
        if (fields[name] or b"[]") != b"[]":
            raise RefusedMessageError("callbacks", f"it has a {name.removesuffix('_name')}")
    if _number(fields["repeats_left"]):
        raise RefusedMessageError("repeats", "it repeats")


def _call_of(data: bytes) -> tuple[str, Sequence[object], dict[str, object]]:
    """Read function, args and kwargs. Raises `RefusedMessageError`."""
    function, instance, args, kwargs = _parts(_inflated(data))
    if instance is not None:
        raise RefusedMessageError("method", f"{function} is a method of an object")
    if not (
        isinstance(function, str)
        and isinstance(args, list | tuple)
        and isinstance(kwargs, dict)
        and all(isinstance(name, str) for name in kwargs)
    ):
        raise RefusedMessageError("unreadable", "its data is not a call")
    return function, args, kwargs


def _inflated(data: bytes) -> bytes:
    inflater = zlib.decompressobj()
    try:
        plain = inflater.decompress(data, MAX_BODY)
    except zlib.error:
        return data  # RQ before 1.0 did not compress.
    if not inflater.eof:
        raise RefusedMessageError("too_large", f"its data is more than {MAX_BODY} bytes")
    return plain


def _parts(plain: bytes) -> Sequence[Any]:
    try:
        parts = decode(plain) if plain[:1] == b"[" else read_plain(plain)
    except UnsafePickleError as error:
        raise RefusedMessageError("not_plain", f"its data {error}") from error
    except InvalidBodyError as error:
        raise RefusedMessageError("unreadable", f"its data {error.problem}") from error
    if not isinstance(parts, list | tuple) or len(parts) != 4:
        raise RefusedMessageError("unreadable", "its data is not a call")
    return parts


def _ms_of(written: bytes, otherwise: int) -> int:
    try:
        moment = datetime.fromisoformat(written.decode())
    except ValueError:
        return otherwise
    aware = moment if moment.tzinfo else moment.replace(tzinfo=UTC)
    return int(aware.timestamp() * 1000)


def _number(text: bytes | None) -> int:
    try:
        return int(text or 0)
    except ValueError:
        return 0
