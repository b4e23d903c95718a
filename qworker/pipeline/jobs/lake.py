"""The directory of an archive: its layout, and its one writer.

    OUT/queue=emails/day=2031-05-04/batch=20310504T101512-3f9a1c07/part-….parquet    events; day: of ts, in UTC
    OUT/_offsets.json     where to continue in the journals after the archived events
    OUT/_work/            changes being prepared: see `qworker.pipeline.jobs.change`
    OUT/_lock             held by the one writer

Readers read `OUT/queue=*/day=*/*/*.parquet`.
"""

from __future__ import annotations

import fcntl
import json
import os
import re
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta
from pathlib import Path
from typing import Any, Final

from qworker.errors import InvalidOptionError, PipelineError

__all__ = ["Day", "Lake", "sync"]

_URL: Final = re.compile(r"[a-z][a-z0-9+.-]+:/", re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class Day:
    """One day of one queue: its directory, and the names of its batches."""

    path: Path
    queue: str
    day: date
    batches: tuple[str, ...]

    def files(self) -> list[Path]:
        """List the Parquet files, in the order of their batches."""
        return [
            file
            for batch in self.batches
            for file in sorted((self.path / f"batch={batch}").glob("*.parquet"))
        ]


class Lake:
    """The directory of an archive, which need not exist yet."""

    def __init__(self, root: Path | str) -> None:
        """Raises `InvalidOptionError` for a URL or a file: all hosts must see a directory."""
        text = str(root)
        # Path() replaces two slashes by one.
        if _URL.match(text):
            raise InvalidOptionError(
                "archive",
                f"{text!r} is a URL",
                "name a directory; mount the storage where driver and executors see it",
            )
        self.root = Path(root).absolute()
        if self.root.exists() and not self.root.is_dir():
            raise InvalidOptionError("archive", f"{text!r} is a file", "name a directory")

    @property
    def pattern(self) -> str:
        """The pattern of all files, for `read_parquet` of DuckDB and others."""
        return f"{self.root}/queue=*/day=*/*/*.parquet"

    @property
    def work(self) -> Path:
        """Where changes are prepared."""
        return self.root / "_work"

    def exists(self) -> bool:
        """Whether there is an archive; it may be empty."""
        return self.offsets() is not None or next(self.days(), None) is not None

    def days(self) -> Iterator[Day]:
        """Yield the days of all queues, in order."""
        for path in sorted(self.root.glob("queue=*/day=*")):
            with suppress(ValueError):
                batches = sorted(batch.name[6:] for batch in path.glob("batch=*") if batch.is_dir())
                day = date.fromisoformat(path.name[4:])
                yield Day(path, path.parent.name[6:], day, tuple(batches))

    def since(self, moment: datetime) -> dict[str, tuple[date, date | None]]:
        """Return what to read of each queue for messages sent from a time on: the first of its days, and one before.

        The day before leaves room for a clock that was set back. The other one is the queue's last day before that,
        None without one: it shows where the numbers of events continue, and in which mode the journal was.
        """
        first = (moment.astimezone(UTC) - timedelta(days=1)).date()
        before: dict[str, date | None] = {}
        for day in self.days():
            last = before.get(day.queue)
            before[day.queue] = day.day if day.day < first else last
        return {queue: (first, last) for queue, last in before.items()}

    def offsets(self) -> dict[str, Any] | None:
        """Read where to continue in the journals, as `qworker.pipeline.source.offsets`; None: not written yet."""
        try:
            document = json.loads((self.root / "_offsets.json").read_text(encoding="utf-8"))
        except (FileNotFoundError, ValueError):
            return None
        return document if isinstance(document, dict) else None

    def note_offsets(self, offsets: dict[str, Any]) -> None:
        """Write, durably, where to continue in the journals."""
        draft = self.root / "_offsets.draft"
        draft.write_text(json.dumps(offsets, indent=1), encoding="utf-8")
        sync(draft)
        draft.rename(self.root / "_offsets.json")
        sync(self.root)

    @contextmanager
    def writing(self) -> Iterator[None]:
        """Be the one writer until the block or this process ends. Raises `PipelineError` if there is another."""
        self.root.mkdir(parents=True, exist_ok=True)
        with (self.root / "_lock").open("a+") as file:
            file.seek(0)
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                raise PipelineError(
                    f"process {file.read() or 'unknown'} is writing into the archive {self.root}; wait for it or "
                    "stop it"
                ) from None
            file.truncate()
            file.write(str(os.getpid()))
            file.flush()
            yield


def sync(path: Path) -> None:
    """Flush a file or directory to the disk."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
