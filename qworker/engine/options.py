"""Options of queues and of single sends."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Annotated, Final, Self

from qworker.config.fields import Options, kinds_of, unknown_option
from qworker.config.kinds import (
    MAX_VISIBILITY_MS,
    MIN_VISIBILITY_MS,
    ChoiceKind,
    DurationKind,
    FlagKind,
    IntegerKind,
    SizeKind,
)
from qworker.durations import Duration
from qworker.engine.option_kinds import GroupKind, KeyKind, MomentKind
from qworker.errors import InvalidOptionError

__all__ = [
    "COMMON_META",
    "DEFAULT_MAXSIZE",
    "LARGEST_MAXSIZE",
    "MAX_RECEIVES",
    "MAX_VISIBILITY_MS",
    "MIN_VISIBILITY_MS",
    "SMALLEST_MAXSIZE",
    "QueueAttributes",
    "SendOptions",
]

#: Bytes of a body: range and default of `maxsize`.
SMALLEST_MAXSIZE: Final = 1024
LARGEST_MAXSIZE: Final = 64 * 2**20
DEFAULT_MAXSIZE: Final = 256 * 2**10
#: Counters in a header have at most six digits.
MAX_RECEIVES: Final = 999_999

_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_MILLISECOND: Final = timedelta(milliseconds=1)


@dataclass(frozen=True, slots=True, kw_only=True)
class QueueAttributes(Options):
    """The settings of a queue, for messages and tasks that do not override them.

    A queue that stores `maxlen` messages (ready, delayed and unacked) refuses more; it never trims.
    """

    visibility: Annotated[
        Duration,
        DurationKind(
            "how long a received message stays invisible until it is settled",
            minimum_ms=MIN_VISIBILITY_MS,
            maximum_ms=MAX_VISIBILITY_MS,
        ),
    ] = "30s"
    delay: Annotated[
        Duration, DurationKind("how long a sent message waits", zero="ready at once")
    ] = "0s"
    ttl: Annotated[
        Duration,
        DurationKind("how long a message lives after it is sent", zero="forever"),
    ] = "0s"
    maxsize: Annotated[
        int, SizeKind("largest body", minimum=SMALLEST_MAXSIZE, maximum=LARGEST_MAXSIZE)
    ] = DEFAULT_MAXSIZE
    maxlen: Annotated[
        int, IntegerKind("maximum number of stored messages", maximum=10**12, zero="no limit")
    ] = 0
    max_receives: Annotated[
        int, IntegerKind("failures after which a message is dead", minimum=1, maximum=MAX_RECEIVES)
    ] = 5
    journal: Annotated[
        str,
        ChoiceKind(
            "which events of messages to record: none, how they ended, or also when they were sent and delivered",
            choices=("off", "outcomes", "all"),
        ),
    ] = "off"
    journal_cap: Annotated[
        int,
        SizeKind(
            "size above which the oldest journal entries are deleted", minimum=2**20, maximum=2**40
        ),
    ] = 64 * 2**20
    visibility_ms: int = field(init=False)
    delay_ms: int = field(init=False)
    ttl_ms: int = field(init=False)

    def meta(self) -> dict[str, str]:
        """Return all attributes as the queue's `meta` hash stores them."""
        return {name: str(getattr(self, name)) for name in _META}

    @classmethod
    def of_meta(cls, meta: Mapping[str, str]) -> Self:
        """Read a `meta` hash: absent attributes take their defaults, other fields are ignored.

        Raises `InvalidOptionError` for an invalid stored value.
        """
        given: dict[str, object] = {}
        for stored, name in _META.items():
            if stored in meta and name == "journal":
                given[name] = meta[stored]
            elif stored in meta:
                number = IntegerKind(f"{name} as stored").parse(meta[stored], stored)
                given[name] = number if stored == name else timedelta(milliseconds=number)
        return cls(**given)  # type: ignore[arg-type]  # checked by their kinds


#: Field of the `meta` hash → attribute.
_META: Final = {
    "visibility_ms": "visibility",
    "delay_ms": "delay",
    "ttl_ms": "ttl",
    "maxsize": "maxsize",
    "maxlen": "maxlen",
    "max_receives": "max_receives",
    "journal": "journal",
    "journal_cap": "journal_cap",
}
#: Fields of the `meta` hash that users set, and that all shards of a queue share.
COMMON_META: Final = frozenset({*_META, "paused", "pause_strict"})


@dataclass(frozen=True, slots=True, kw_only=True)
class SendOptions(Options):
    """Options of one send; None takes the task's or the queue's value.

    Give `delay` or `eta`, not both. With an eta in the past the message is ready at once.
    """

    delay: Annotated[
        Duration | None,
        DurationKind("how long the message waits", zero="ready at once", none="the queue's"),
    ] = None
    eta: Annotated[datetime | None, MomentKind("when it becomes ready", none="see delay")] = None
    ttl: Annotated[
        Duration | None,
        DurationKind("how long the message lives", zero="forever", none="the queue's"),
    ] = None
    priority: Annotated[int, IntegerKind("9 is received first", maximum=9, zero="the lowest")] = 0
    unique: Annotated[
        str | None,
        KeyKind("key that keeps out other messages with the same key", none="no key"),
    ] = None
    unique_until: Annotated[
        str,
        ChoiceKind("how long a message holds its unique key", choices=("done", "started")),
    ] = "done"
    unique_for: Annotated[
        Duration | None,
        DurationKind(
            "how long the unique key keeps others out, even after the message has ended",
            minimum_ms=1,
            none="until done or started",
        ),
    ] = None
    debounce: Annotated[
        Duration | None,
        DurationKind(
            "delay during which a later message with this unique key replaces the message and restarts the delay",
            minimum_ms=1,
            none="messages are not replaced",
        ),
    ] = None
    debounce_max: Annotated[
        Duration | None,
        DurationKind(
            "longest wait after the first message, however many replace it",
            minimum_ms=1,
            none="no limit: a steady stream of messages delivers none",
        ),
    ] = None
    group: Annotated[
        str | None,
        GroupKind("group of the message: groups take turns, and can have limits", none="no group"),
    ] = None
    ordered: Annotated[
        bool, FlagKind("run messages of the group one at a time, in order, retries included")
    ] = False
    max_receives: Annotated[
        int | None,
        IntegerKind(
            "failures after which it is dead", minimum=1, maximum=MAX_RECEIVES, none="the queue's"
        ),
    ] = None
    visibility: Annotated[
        Duration | None,
        DurationKind(
            "how long it stays invisible to others once received",
            minimum_ms=MIN_VISIBILITY_MS,
            maximum_ms=MAX_VISIBILITY_MS,
            zero="at most once: a failed or lost message is dead",
            none="the receiver's or the queue's",
        ),
    ] = None
    maxlen: Annotated[
        int | None,
        IntegerKind(
            "refuse the send if the queue would store more messages",
            minimum=1,
            maximum=10**12,
            none="the queue's",
        ),
    ] = None
    replicas: Annotated[
        int, IntegerKind("replicas that must have stored it", maximum=100, zero="none")
    ] = 0
    within: Annotated[
        Duration,
        DurationKind("how long to wait for replicas or disks", minimum_ms=1, maximum_ms=2000),
    ] = "1s"
    fsync: Annotated[
        bool,
        FlagKind("wait until it is on the server's disk, and on those of the replicas"),
    ] = False
    delay_ms: int | None = field(init=False)
    ttl_ms: int | None = field(init=False)
    visibility_ms: int | None = field(init=False)
    within_ms: int = field(init=False)
    unique_for_ms: int | None = field(init=False)
    debounce_ms: int | None = field(init=False)
    debounce_max_ms: int | None = field(init=False)

    @classmethod
    def of(cls, options: SendOptions | None, given: Mapping[str, object]) -> SendOptions:
        """Copy options with changes given by name. Raises `InvalidOptionError` for an unknown one."""
        if not given:
            return options or _DEFAULTS
        for name in given:
            if name not in kinds_of(cls):
                raise unknown_option(ascii(name)[1:-1], name, kinds_of(cls))
        changes = dict(given)
        # A delay replaces an eta, and an eta a delay.
        if changes.get("delay") is not None:
            changes.setdefault("eta", None)
        elif changes.get("eta") is not None:
            changes.setdefault("delay", None)
        return dataclasses.replace(options or _DEFAULTS, **changes)  # type: ignore[arg-type]

    @property
    def eta_ms(self) -> int | None:
        """The eta in ms since 1970, rounded up; None without one, 0 before 1970."""
        return None if self.eta is None else max(-((_EPOCH - self.eta) // _MILLISECOND), 0)

    def _check_together(self) -> None:
        if self.delay is not None and self.eta is not None:
            raise InvalidOptionError("eta", "is given together with a delay", "give one of the two")
        if self.ordered and self.group is None:
            raise InvalidOptionError("ordered", "is set without group", "name the group too")
        if self.group is not None and self.priority:
            raise InvalidOptionError(
                "priority",
                "is set together with group",
                "groups take turns by their weights; leave one of them out",
            )
        if self.unique is None:
            for name, default in _OF_UNIQUE.items():
                if getattr(self, name) != default:
                    raise InvalidOptionError(name, "is set without unique", "name the key too")
        if self.unique_for is not None and self.unique_until != "done":
            raise InvalidOptionError(
                "unique_for", "is set together with unique_until", "give one of the two"
            )
        if self.debounce is None:
            if self.debounce_max is not None:
                raise InvalidOptionError("debounce_max", "is set without debounce", "give both")
            return
        if self.unique_for is not None or self.unique_until != "done":
            name = "unique_until" if self.unique_for is None else "unique_for"
            limit = "with debounce the key is held until the message starts; leave the other out"
            raise InvalidOptionError(name, "is set together with debounce", limit)
        if self.delay is not None or self.eta is not None:
            name = "eta" if self.delay is None else "delay"
            raise InvalidOptionError(
                name, "is set together with debounce", "debounce is the delay; leave the other out"
            )
        if (self.debounce_max_ms or self.debounce_ms or 0) < (self.debounce_ms or 0):
            raise InvalidOptionError(
                "debounce_max",
                f"{self.debounce_max} is shorter than debounce",
                "give at least that",
            )


#: Options of a unique key, and their values without one.
_OF_UNIQUE: Final[Mapping[str, object]] = {
    "unique_until": "done",
    "unique_for": None,
    "debounce": None,
    "debounce_max": None,
}
_DEFAULTS: Final = SendOptions()
