"""Redriving and discarding dead letters that a DataFrame names."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import TYPE_CHECKING

from qworker.errors import InvalidOptionError
from qworker.pipeline.writing.send import write

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

__all__ = ["LetterTotals", "change_letters", "discard", "named", "redrive"]


@dataclass(frozen=True, slots=True)
class LetterTotals:
    """What became of dead letters: `done`, `gone` (no longer dead by then), `foreign` (nothing a consumer could take).

    A task that was tried again counts what its first attempt did as gone.
    """

    rows: int
    done: int
    gone: int
    foreign: int
    queues: Mapping[str, Mapping[str, int]]


def redrive(
    df: DataFrame, *, rate: int = 0, options: Mapping[str, object] = MappingProxyType({})
) -> LetterTotals:
    """Put the dead letters that rows name back to ready, with fresh counts; only those that are still dead.

    Rows have `queue` and `entry_id` or `message_id`, as in the table `dead`; by `message_id` all dead letters of the
    queue are read once per task. Other columns are left aside. `rate`: letters per second at most, by one task; 0 is no
    limit. Raises as `send_rows` does.
    """
    return change_letters(df, "redrive", rate, options)


def discard(
    df: DataFrame, *, rate: int = 0, options: Mapping[str, object] = MappingProxyType({})
) -> LetterTotals:
    """Delete the dead letters that rows name, for ever; all else as in `redrive`."""
    return change_letters(df, "discard", rate, options)


def change_letters(
    df: DataFrame, action: str, rate: int, options: Mapping[str, object]
) -> LetterTotals:
    """Do `action` with the dead letters that rows name."""
    given = {**{name: str(value) for name, value in options.items()}, "action": action}
    letters = named(df)
    if rate:
        given["rate"] = str(rate)
        letters = letters.coalesce(1)
    found = write(letters, given)
    found.pop("action")
    return LetterTotals(**found)


def named(df: DataFrame) -> DataFrame:
    """Take the columns that name dead letters. Raises `InvalidOptionError` where there are none."""
    wanted = [name for name in ("queue", "entry_id", "message_id") if name in df.columns]
    if not {"entry_id", "message_id"} & set(wanted):
        raise InvalidOptionError(
            "column entry_id", "is missing", "select it from the table 'dead', or message_id"
        )
    if "entry_id" in wanted and "message_id" in wanted:
        wanted.remove("message_id")
    return df.select(*wanted)
