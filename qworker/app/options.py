"""Options of a task: what `@app.task(…)` takes."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Annotated, Any, Final, TypedDict

from qworker.app.control import Retry
from qworker.app.retry import RetryPolicy
from qworker.config.fields import Options, kinds_of, unknown_option
from qworker.config.kinds import HOUR_MS, DurationKind, FlagKind, Kind
from qworker.config.name_kinds import NameKind
from qworker.durations import Duration
from qworker.engine.options import SendOptions
from qworker.errors import InvalidOptionError, shown
from qworker.wire.groups import flag_of, is_group
from qworker.wire.names import check_queue
from qworker.wire.result import MAX_KEEP_MS

__all__ = ["TaskOptions", "TaskOptionsDict", "check_option_names"]

_SEND: Final = kinds_of(SendOptions)
_GROUP: Final = _SEND["group"]
_RETRY: Final = Retry.exponential("1s", cap="10m")
_RETRY_TEXT: Final = 'Retry.exponential("1s", cap="10m")'
_MAX_BATCH: Final = 1000
#: Bytes of a key of limits: it and the name of a group are together the name of one.
_MAX_KEY: Final = 128
#: The group of messages with a key of limits and no group of their own.
_ALL: Final = "all"


class TaskOptionsDict(TypedDict, total=False):
    """`TaskOptions` for type checkers and editors, without `batch` and `max_wait`: they change the type of the task."""

    queue: str
    retry: RetryPolicy | None
    max_receives: int | None
    time_limit: Duration | None
    ttl: Duration | None
    priority: int
    at_most_once: bool
    result: Duration | None
    group: str | Callable[..., str | None] | None
    limit_key: str | Callable[..., str | None] | None
    ordered: bool


class RetryKind(Kind):
    """A retry policy; None is the default one."""

    __slots__ = ()

    @property
    def limit(self) -> str:
        """Show how to make one."""
        return "write Retry.exponential('1s'), Retry.fixed(…), Retry.intervals(…) or Retry.none()"

    def show(self, value: object) -> str:
        """Write the default policy as code, others as their fields."""
        return _RETRY_TEXT if value == _RETRY else str(value)

    def check(self, value: object, field: str) -> RetryPolicy:
        """Return the policy; raise `InvalidOptionError` for anything else."""
        if value is None:
            return _RETRY
        if not isinstance(value, RetryPolicy):
            raise self._refused(value, field, "is not a retry policy")
        return value


class GroupsKind(Kind):
    """The group of each message: a name, or a function of the call's arguments that returns one."""

    __slots__ = ()

    @property
    def limit(self) -> str:
        """How to write one."""
        return "write a name such as 'crm', or a function such as lambda order: f'crm/{order}'"

    def _checked(self, value: object, field: str) -> str | Callable[..., str | None]:
        if callable(value):
            return value
        return _GROUP.check(value, field)  # type: ignore[no-any-return]


class LimitKeysKind(Kind):
    """The key whose limits hold for each message: a name, or a function of the call's arguments that returns one."""

    __slots__ = ()

    @property
    def limit(self) -> str:
        """How to write one."""
        return (
            "write a name without / and *, such as 'stripe', or a function such as "
            f"lambda order: f'shop-{{order}}'; at most {_MAX_KEY} bytes"
        )

    def _checked(self, value: object, field: str) -> str | Callable[..., str | None]:
        if callable(value):
            return value
        if not isinstance(value, str) or "/" in value or not is_group(value):
            raise self._refused(value, field, "is not a key of limits")
        if len(value.encode()) > _MAX_KEY:
            raise self._refused(value, field, "is too long")
        return value


class BatchKind(Kind):
    """The size of a batch."""

    __slots__ = ()

    @property
    def limit(self) -> str:
        """The range."""
        return f"a number from 1 to {_MAX_BATCH}, or None for a handler of one message at a time"

    def _checked(self, value: object, field: str) -> int:
        if type(value) is not int or not 1 <= value <= _MAX_BATCH:
            raise self._refused(value, field, "is out of range")
        return value


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskOptions(Options):
    """How the messages of a task are sent and run."""

    queue: Annotated[str, NameKind("queue that calls are sent to", rule=check_queue)] = "default"
    retry: Annotated[RetryPolicy, RetryKind("wait after a failure")] = _RETRY
    max_receives: Annotated[int | None, _SEND["max_receives"]] = None
    time_limit: Annotated[
        Duration | None,
        DurationKind(
            "how long a handler may run", minimum_ms=10, maximum_ms=12 * HOUR_MS, none="no limit"
        ),
    ] = "15m"
    ttl: Annotated[Duration | None, _SEND["ttl"]] = None
    priority: Annotated[int, _SEND["priority"]] = 0
    batch: Annotated[
        int | None,
        BatchKind(
            "maximum number of messages per call; the handler takes a list",
            none="one message, without a list",
        ),
    ] = None
    max_wait: Annotated[
        Duration, DurationKind("how long an incomplete batch waits for more", maximum_ms=60_000)
    ] = "0s"
    at_most_once: Annotated[bool, FlagKind("ack before the handler starts; never run it twice")] = (
        False
    )
    result: Annotated[
        Duration | None,
        DurationKind(
            "how long the result of a message is kept",
            minimum_ms=1000,
            maximum_ms=MAX_KEEP_MS,
            none="results are not kept",
        ),
    ] = None
    group: Annotated[
        str | Callable[..., str | None] | None,
        GroupsKind(
            "group of each message, by name or by a function of the call's arguments",
            none="no group",
        ),
    ] = None
    limit_key: Annotated[
        str | Callable[..., str | None] | None,
        LimitKeysKind(
            "key whose limits hold for the message, by name or by a function of the call's arguments",
            none="no key",
        ),
    ] = None
    ordered: Annotated[bool, _SEND["ordered"]] = False
    time_limit_ms: int | None = field(init=False)
    ttl_ms: int | None = field(init=False)
    max_wait_ms: int = field(init=False)
    result_ms: int | None = field(init=False)

    def group_of(
        self, task: str, args: Sequence[Any], kwargs: Mapping[str, Any], sent: SendOptions
    ) -> str:
        """Return the stored name of the group of a call; '' for none. Raises `InvalidOptionError` for a wrong one.

        A group that is `sent` with goes before that of the task. A key of limits is its parent.
        """
        field = f"group of task {task}"
        group, ordered = sent.group, sent.ordered
        if group is None:
            group, ordered = _value(self.group, args, kwargs), self.ordered
            group = None if group is None else _GROUP.check(group, field)
        key = _value(self.limit_key, args, kwargs)
        if key is not None:
            key = _KEY.check(key, f"limit_key of task {task}")
            if group is not None and "/" in group:
                raise InvalidOptionError(
                    field,
                    f"{shown(group)} has a parent, and limit_key is the parent",
                    "leave out the part before the slash, or the limit_key",
                )
            group = _GROUP.check(f"{key}/{group or _ALL}", field)
        if ordered and self.at_most_once:
            raise _without_order()
        return "" if group is None else flag_of(group, ordered)

    def _check_together(self) -> None:
        if self.ordered and self.at_most_once:
            raise _without_order()
        if self.ordered and self.group is None:
            raise InvalidOptionError("ordered", "is set without group", "name the group too")
        if self.priority and (self.group is not None or self.limit_key is not None):
            raise InvalidOptionError(
                "priority",
                f"is set together with {'limit_key' if self.group is None else 'group'}",
                "groups take turns by their weights; leave one of them out",
            )
        if self.max_wait_ms and self.batch is None:
            raise InvalidOptionError("max_wait", "is set without batch", "it is for batch handlers")
        if self.result is not None and self.batch is not None:
            raise InvalidOptionError(
                "result",
                "is set together with batch",
                "the handler of a batch returns one value for many messages; leave one of them out",
            )
        if self.result is not None and self.at_most_once:
            raise InvalidOptionError(
                "result",
                "is set together with at_most_once",
                "a result is kept by the ack, which comes before the handler there; leave one of them out",
            )


_KEY: Final = kinds_of(TaskOptions)["limit_key"]


def _without_order() -> InvalidOptionError:
    return InvalidOptionError(
        "ordered",
        "is set together with at_most_once",
        "its messages leave their group before they run; send with visibility=0 instead of at_most_once",
    )


def _value(given: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
    return given(*args, **kwargs) if callable(given) else given


#: Names of other frameworks.
_ELSEWHERE: Final = {
    **dict.fromkeys(
        ("max_retries", "retries", "max_attempts", "attempts", "tries"), "max_receives"
    ),
    **dict.fromkeys(("timeout", "soft_time_limit", "job_timeout", "max_time"), "time_limit"),
    **dict.fromkeys(("expires", "expire", "expires_in", "max_age"), "ttl"),
    **dict.fromkeys(("backoff", "min_backoff", "retry_backoff", "autoretry_for"), "retry"),
    **dict.fromkeys(("batch_size", "max_batch"), "batch"),
    **dict.fromkeys(("result_ttl", "result_expires", "keep_result", "store_results"), "result"),
    **dict.fromkeys(("acks_late", "ack_late"), "at_most_once"),
    **dict.fromkeys(("queue_name", "routing_key"), "queue"),
    **dict.fromkeys(
        ("limit", "limits", "rate_limit", "rate", "concurrency", "concurrency_limit"), "limit_key"
    ),
    **dict.fromkeys(("concurrency_key", "partition_key", "throttle", "limiter"), "limit_key"),
}


def check_option_names(given: Mapping[str, object]) -> None:
    """Raise `InvalidOptionError` for an option that tasks do not have, suggesting the one that is meant."""
    known = kinds_of(TaskOptions)
    for name in given:
        if name in known:
            continue
        option = f"task option {shown(name)[1:-1]}"
        if name in _ELSEWHERE:
            raise InvalidOptionError(option, "is unknown", f"did you mean {_ELSEWHERE[name]}?")
        if name in _SEND:
            raise InvalidOptionError(
                option, "is an option of a single send", f"write task.options({name}=…).send(…)"
            )
        raise unknown_option(option, name, ("name", *known))
