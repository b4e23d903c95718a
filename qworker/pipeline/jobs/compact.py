"""Compacts the many small files of a day into a few large ones, without Spark, and deletes days and files of the past.

A commit replaces them, so readers see either; the old files stay for `KEPT_H`, for readers that still use them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta
from typing import Final

from qworker.errors import PipelineError
from qworker.pipeline.jobs.days import Day
from qworker.pipeline.jobs.files import FEW_VALUES, GROWING, ROWS
from qworker.pipeline.jobs.lake import Lake
from qworker.pipeline.jobs.store import one_line

__all__ = ["KEPT_H", "Compacted", "compact", "expire", "plan", "vacuum"]

#: Approximate size of compacted files; several tasks share larger ones less evenly.
_FILE_BYTES: Final = 256 * 2**20
#: How long files stay that are not in the lake any more, or not yet: a read and a batch must end within.
KEPT_H: Final = 168


@dataclass(frozen=True, slots=True)
class Compacted:
    """Totals: days rewritten, files before and after."""

    days: int = 0
    files_before: int = 0
    files_after: int = 0


def plan(lake: Lake, *, before: date | None = None) -> list[Day]:
    """Choose the days with two small files or more, before `before` if given."""
    return [
        day
        for day in lake.days()
        if (before is None or day.day < before)
        and sum(size < _FILE_BYTES for size in day.sizes.values()) > 1
    ]


def compact(
    lake: Lake,
    days: Iterable[Day],
    *,
    on_day: Callable[[Day], None] = lambda day: None,
) -> Compacted:
    """Rewrite each day into as few files as `_FILE_BYTES` allows; an archiver may run beside it.

    Raises `PipelineError` if a day cannot be rewritten; it and later ones stay as they were.
    """
    from deltalake import ColumnProperties, WriterProperties
    from deltalake.exceptions import DeltaError

    columns = {name: ColumnProperties(dictionary_enabled=True) for name in FEW_VALUES}
    columns |= {
        name: ColumnProperties(dictionary_enabled=False, encoding="DELTA_BINARY_PACKED")
        for name in GROWING
    }
    writer = WriterProperties(
        compression="ZSTD",
        compression_level=1,
        max_row_group_size=ROWS,
        default_column_properties=ColumnProperties(dictionary_enabled=False),
        column_properties=columns,
    )
    total = Compacted()
    for day in days:
        try:
            done = lake.table().optimize.compact(
                [("queue", "=", day.queue), ("day", "=", day.day.isoformat())],
                target_size=_FILE_BYTES,
                writer_properties=writer,
            )
        except (DeltaError, OSError) as error:
            raise PipelineError(
                f"{day.queue} {day.day} cannot be compacted ({one_line(error)}); the archive {lake.root} has not "
                "changed: qworker spark audit names the missing events"
            ) from error
        total = Compacted(
            total.days + 1,
            total.files_before + done["numFilesRemoved"],
            total.files_after + done["numFilesAdded"],
        )
        on_day(day)
    return total


def expire(lake: Lake, keep_ms: int) -> int:
    """Delete the days that ended more than `keep_ms` ago from the lake; returns their number, of all queues."""
    return lake.expire((datetime.now(UTC) - timedelta(milliseconds=keep_ms)).date())


def vacuum(lake: Lake, *, kept_h: int = KEPT_H) -> int:
    """Delete files that have not been in the lake for `kept_h` hours, and old commits; returns the number of files."""
    lake.clean_log()
    return lake.vacuum(kept_h)
