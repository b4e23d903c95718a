"""Options of a write: what to do with the rows, their queue, and how long to wait for room."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import Annotated, Final

from qworker.bulk.options import BulkOptions
from qworker.client.dead.throttle import ThrottleRateKind
from qworker.config.kinds import (
    DAY_MS,
    HOUR_MS,
    ChoiceKind,
    DurationKind,
    IntegerKind,
)
from qworker.config.name_kinds import NameKind
from qworker.durations import Duration
from qworker.errors import InvalidNameError, InvalidOptionError
from qworker.pipeline.options import SparkOptions, TextKind
from qworker.wire.names import check_queue

__all__ = ["ACTIONS", "WriteOptions"]

ACTIONS: Final = ("send", "redrive", "discard")

_WRITE_ID: Final = re.compile(r"[A-Za-z0-9._:+-]{1,200}")
_WRITE_ID_LIMIT: Final = "1 to 200 of A-Z, a-z, 0-9, '.', '_', ':', '+' and '-'"

#: How long ledger and row ids are remembered by default, in ms.
KEPT_MS: Final = DAY_MS
STREAM_KEPT_MS: Final = 30 * 24 * HOUR_MS


def _check_write_id(value: object, name: str) -> str:
    if not isinstance(value, str) or _WRITE_ID.fullmatch(value) is None:
        raise InvalidNameError(name, f"{ascii(value)[:80]} is not a write id", _WRITE_ID_LIMIT)
    return value


@dataclass(frozen=True, slots=True, kw_only=True)
class WriteOptions(SparkOptions):
    """Options of a write, camelCase in Spark: `maxQueueLength`."""

    action: Annotated[str, ChoiceKind("what to do with the rows", choices=ACTIONS)] = "send"
    queue: Annotated[
        str | None, NameKind("queue of rows that name none", rule=check_queue, none="a column")
    ] = None
    idempotence: Annotated[
        str,
        ChoiceKind(
            "what keeps a row from being sent twice; auto: ids if there is an id column",
            choices=("auto", "ids", "ledger", "none"),
        ),
    ] = "auto"
    write_id: Annotated[
        str | None, NameKind("names the write for a re-run", rule=_check_write_id, none="a new one")
    ] = None
    write_id_ttl: Annotated[
        Duration | None,
        DurationKind(
            "how long ledger and row ids are remembered",
            minimum_ms=60_000,
            none="24 h; of a stream's batches 30 d",
        ),
    ] = None
    delay: Annotated[
        Duration | None, DurationKind("delay of rows that set none", none="the queue's")
    ] = None
    ttl: Annotated[
        Duration | None,
        DurationKind("time to live of rows that set none", zero="forever", none="the queue's"),
    ] = None
    priority: Annotated[
        int, IntegerKind("priority of rows that set none; 9 is received first", maximum=9)
    ] = 0
    max_queue_length: Annotated[
        int, IntegerKind("maximum messages stored in a queue", maximum=10**12, zero="no limit")
    ] = 0
    on_full: Annotated[
        str, ChoiceKind("what to do if a queue is full or paused", choices=("fail", "wait"))
    ] = "fail"
    full_wait: Annotated[
        Duration,
        DurationKind(
            "how long to wait for room without any progress", minimum_ms=1000, maximum_ms=DAY_MS
        ),
    ] = "10m"
    partitions: Annotated[
        int,
        IntegerKind("partitions of the input; a re-run must have as many", zero="not checked"),
    ] = 0
    rate: Annotated[
        float, ThrottleRateKind("most dead letters per second, of each task", zero="no limit")
    ] = 0
    report: Annotated[
        str | None, TextKind("file on the driver for the totals, as JSON", none="none is written")
    ] = None
    write_id_ttl_ms: int | None = field(init=False)
    delay_ms: int | None = field(init=False)
    ttl_ms: int | None = field(init=False)
    full_wait_ms: int = field(init=False)

    @property
    def bulk(self) -> BulkOptions:
        """The options of the bulk sender."""
        return BulkOptions(
            namespace=self.namespace,
            queue=self.queue,
            priority=self.priority,
            delay_ms=self.delay_ms,
            ttl_ms=self.ttl_ms,
            max_queue_length=self.max_queue_length,
            full_wait_s=self.full_wait_ms / 1000 if self.on_full == "wait" else 0.0,
            partitions=self.partitions,
        )

    def _check_together(self) -> None:
        if self.rate and self.action == "send":
            raise InvalidOptionError(
                "option rate", "is for dead letters", "limit a send by maxQueueLength and onFull"
            )
