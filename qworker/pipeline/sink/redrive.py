"""Redrives and discards the dead letters that a DataFrame names."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import TYPE_CHECKING

from qworker.client.dead.throttle import Rate
from qworker.errors import InvalidOptionError
from qworker.pipeline.sink.send import write

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

__all__ = ["RedriveTotals", "discard", "redrive"]


@dataclass(frozen=True, slots=True)
class RedriveTotals:
    """Totals of dead letters: `done`, `gone` (dead no longer), `foreign` (no consumer could read them).

    A task that was tried again counts those of its first attempt as gone.
    """

    rows: int
    done: int
    gone: int
    foreign: int
    queues: Mapping[str, Mapping[str, int]]


def redrive(
    df: DataFrame, *, rate: Rate = 0, options: Mapping[str, object] = MappingProxyType({})
) -> RedriveTotals:
    """Put the dead letters that rows name back to ready, with fresh counts; only those that are still dead.

    Rows have `queue` and `entry_id` or `message_id`, as in the table `dead`; by `message_id` all dead letters of the
    queue are read once per task. Other columns are ignored. `rate`: as in `Queue.redrive`, of one task; 0 is no
    limit. Raises as `send_rows` does.
    """
    return _change(df, "redrive", rate, options)


def discard(
    df: DataFrame, *, rate: Rate = 0, options: Mapping[str, object] = MappingProxyType({})
) -> RedriveTotals:
    """Delete the dead letters that rows name, permanently; otherwise as `redrive`."""
    return _change(df, "discard", rate, options)


def _change(df: DataFrame, action: str, rate: Rate, options: Mapping[str, object]) -> RedriveTotals:
    given = {**{name: str(value) for name, value in options.items()}, "action": action}
    rows = _naming_columns(df)
    if rate:
        given["rate"] = str(rate)
        rows = rows.coalesce(1)
    totals = write(rows, given)
    totals.pop("action")
    return RedriveTotals(**totals)


def _naming_columns(df: DataFrame) -> DataFrame:
    """Select the columns that name dead letters. Raises `InvalidOptionError` if there are none."""
    wanted = [name for name in ("queue", "entry_id", "message_id") if name in df.columns]
    if not {"entry_id", "message_id"} & set(wanted):
        raise InvalidOptionError(
            "column entry_id", "is missing", "select it from the table 'dead', or message_id"
        )
    if "entry_id" in wanted and "message_id" in wanted:
        wanted.remove("message_id")
    return df.select(*wanted)
