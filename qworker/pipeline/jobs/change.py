"""A change of the archive: prepared aside, committed by one rename, and then carried to its end by whoever comes next.

    1  write      OUT/_work/<batch>/queue=…/day=…/batch=<batch>/…
    2  commit     OUT/_work/<batch>/commit                 what goes where, and how far the journals are archived then
    3  place      each prepared batch goes into its day by one rename; a compacted day changes places with the old one
    4  clear      the offsets are noted, OUT/_work/<batch> goes

Killed before 2, nothing has happened: the next writer throws away what was prepared. Killed later, the next writer
finishes. Tasks of a killed driver, should they live a little longer, write into a directory that nobody commits.
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
        #: Where it is prepared: a directory laid out as that of the archive.
        self.directory = lake.work / self.batch
        self._lake = lake

    def commit(
        self,
        files: Iterable[Path],
        *,
        replacing: bool = False,
        offsets: dict[str, Any] | None = None,
    ) -> None:
        """Make it so: these files, below `directory`, and no others that may lie there.

        `replacing`: the days that they belong to then have nothing else. Durable when this returns.
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
    """Finish what a killed writer had committed, and throw away what it had not; returns how many it finished.

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
    """Bring a committed change to its place and clear away what it replaces. Does nothing twice."""
    document = json.loads((work / "commit").read_text(encoding="utf-8"))
    batch = f"batch={work.name}"
    # In order: a reader who sees a batch of one day sees those of the days before it.
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
    """Let two directories change places. Where the system cannot, a reader may see the day missing, never twice."""
    if day.exists() and not _exchange(staged, day):
        day.rename(old)
    if not day.exists():
        staged.rename(day)


def _exchange(one: Path, other: Path) -> bool:
    """Let two directories change places in one step; False where the system cannot, and nothing was changed."""
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
