"""The days of an archive, and what a job reads of them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import date

from qworker.formats import count, size
from qworker.pipeline.jobs.store import AnyPath

__all__ = ["Day", "FilesRead"]


@dataclass(frozen=True, slots=True)
class Day:
    """One day of one queue, and its Parquet files with their sizes in bytes."""

    queue: str
    day: date
    sizes: dict[AnyPath, int]

    @property
    def files(self) -> list[AnyPath]:
        """The files, by name."""
        return sorted(self.sizes, key=str)


@dataclass(frozen=True, slots=True)
class FilesRead:
    """How many files of an archive a job reads, and their size."""

    files: int = 0
    bytes: int = 0

    @classmethod
    def of(cls, sizes: Mapping[AnyPath, int]) -> FilesRead:
        """Add up files with their sizes."""
        return cls(len(sizes), sum(sizes.values()))

    @property
    def text(self) -> str:
        """Name them in a sentence: " from 3 files of the archive (2 MB)"."""
        if not self.files:
            return ""
        return f" from {count(self.files, 'file')} of the archive ({size(self.bytes)})"
