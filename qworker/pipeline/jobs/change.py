"""A change of the archive: prepared aside, committed by one rename, and finished by this writer or the next one.

    1  write      OUT/_work/<batch>/queue=…/day=…/batch=<batch>/…
    2  commit     OUT/_work/<batch>/commit                 which days it adds to or replaces, and the offsets after it
    3  move       each prepared batch goes into its day by one rename; a compacted day is exchanged with the old one
    4  clean up   the offsets are written, OUT/_work/<batch> is deleted

Killed before 2, nothing has happened: the next writer deletes the prepared files. Killed later, the next writer
finishes. If tasks outlive a killed driver, they write into a directory that is never committed.
"""

from __future__ import annotations

import ctypes
import json
import os
import secrets
import shutil
import sys
from collections.abc import Iterable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final

from qworker.pipeline.jobs.lake import Lake, sync

__all__ = ["Change", "recover"]

_AT_FDCWD: Final = -100
_EXCHANGE: Final = 2


class Change:
    """New batches for some days, all with the name `batch`: unique, and ordered by time."""

    def __init__(self, lake: Lake) -> None:
        self.batch = f"{datetime.now(UTC):%Y%m%dT%H%M%S}-{secrets.token_hex(4)}"
        #: Where it is prepared, in the layout of the archive.
        self.directory = lake.work / self.batch
        self._lake = lake

    def discard(self) -> None:
        """Delete what was prepared."""
        shutil.rmtree(self.directory, ignore_errors=True)

    def commit(
        self,
        files: Iterable[Path],
        *,
        replacing: bool = False,
        offsets: dict[str, Any] | None = None,
    ) -> None:
        """Add these files, which are below `directory`, to the archive; others there are deleted.

        `replacing`: their days then hold only these. Durable when this returns.
        """
        wanted = set(files)
        self.directory.mkdir(parents=True, exist_ok=True)
        for file in self.directory.rglob("*.parquet"):
            if file not in wanted:
                file.unlink()  # An attempt of a task that failed, or came second.
        days = {file.parents[1] for file in wanted}
        for directory in {file.parent for file in wanted}:
            sync(directory)
        document = {
            "days": sorted(str(day.relative_to(self.directory)) for day in days),
            "replacing": replacing,
            "offsets": offsets,
        }
        draft = self.directory / "commit.draft"
        draft.write_text(json.dumps(document), encoding="utf-8")
        sync(draft)
        draft.rename(self.directory / "commit")
        sync(self.directory)
        _finish(self._lake, self.directory)


def recover(lake: Lake) -> int:
    """Finish the changes that a killed writer had committed, and delete the others; returns how many were finished.

    The caller holds `lake.writing()`.
    """
    finished = 0
    for work in sorted(lake.work.glob("*")):
        if (work / "commit").exists():
            _finish(lake, work)
            finished += 1
        else:
            shutil.rmtree(work)
    return finished


def _finish(lake: Lake, work: Path) -> None:
    """Move a committed change into the archive and delete the files it replaces. May be repeated."""
    document = json.loads((work / "commit").read_text(encoding="utf-8"))
    batch = f"batch={work.name}"
    # In order: a reader that sees the batch of one day sees those of earlier days.
    for relative in document["days"]:
        day, staged = lake.root / relative, work / relative
        if (day / batch).is_dir():
            continue
        if document["replacing"]:
            _replace(day, staged, work / "old")
        else:
            day.mkdir(parents=True, exist_ok=True)
            (staged / batch).rename(day / batch)
            sync(day)
        sync(day.parent)
    if document["offsets"] is not None:
        lake.note_offsets(document["offsets"])
    shutil.rmtree(work)


def _replace(day: Path, staged: Path, old: Path) -> None:
    """Replace a day. If the system cannot exchange directories, a reader may miss the day, but never sees it twice."""
    if day.exists() and not _exchange(staged, day):
        day.rename(old)
    if not day.exists():
        staged.rename(day)


def _exchange(one: Path, other: Path) -> bool:
    """Exchange two directories in one step; False, with nothing changed, if the system cannot."""
    if not sys.platform.startswith("linux"):
        return False
    try:
        call = ctypes.CDLL(None, use_errno=True).renameat2
    except AttributeError:
        return False
    done: int = call(
        _AT_FDCWD, os.fsencode(one), _AT_FDCWD, os.fsencode(other), ctypes.c_uint(_EXCHANGE)
    )
    return done == 0
