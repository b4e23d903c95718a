"""The state that a job keeps for its next run, so that each reads only new events: beside the archive.

    LAKE/_audit/state.json        how far each journal was read, and holes that the end of a message may be in
    LAKE/_audit/events-…/         events that the next audit needs
    LAKE/_report/                 the same of the report, and its figures: `qworker.pipeline.report.carried`

An audit needs the events of messages that have not ended, and of those that ended in the last hour of the data: a
second end comes soon, if it comes. So it does of groups of calls, and those that wait come with their calls; which of
these were named is kept, in `state.json`. Other findings are not kept, so each is reported once. `state.json` is
replaced when all is written.
"""

from __future__ import annotations

import json
import os
import re
import secrets
import shutil
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from qworker.errors import ArchiveDamagedError, PipelineError
from qworker.pipeline.jobs.carrying import last_holes, needed_events
from qworker.pipeline.jobs.compositions import WATCHED, CarriedGroups, KeptGroup
from qworker.pipeline.jobs.days import FilesRead
from qworker.pipeline.jobs.epochs import Known
from qworker.pipeline.jobs.files import sync
from qworker.pipeline.jobs.holes import Hole, Shard
from qworker.pipeline.jobs.lake import Lake
from qworker.pipeline.jobs.local import few_rows, table_frame
from qworker.pipeline.jobs.objects import read_written, rows_written, write_rows, written_whole
from qworker.pipeline.jobs.record import Record, Seen
from qworker.pipeline.jobs.store import AnyPath, cannot_read, cannot_write, one_line
from qworker.pipeline.source.schemas import struct_of

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

__all__ = ["Increment", "forget"]

_FORMAT: Final = 1
#: The names of what a run has kept, in `state.json`.
_KEPT: Final = re.compile(r'"((?:events|figures)-[0-9a-f]+)"')
#: After that a run that has left something was killed: it is not running any more.
_KILLED_S: Final = 86_400


@dataclass(frozen=True, slots=True)
class Increment:
    """How far the last run came. `version`: of the archive; -1: there was none."""

    root: AnyPath
    version: int = -1
    events: str = ""
    at: datetime | None = None
    #: How far the epochs of each shard were read, in their order.
    begins: Mapping[Shard, Known] = field(default_factory=dict)
    holes: tuple[Hole, ...] = ()
    #: The time of the last event of each shard.
    lasts: tuple[tuple[Shard, datetime], ...] = ()
    #: What else the job has kept.
    more: Mapping[str, Any] = field(default_factory=dict)
    #: `state.json` as it was when this run began; None: there was none.
    found: str | None = None

    @classmethod
    def of(cls, lake: Lake, job: str = "audit") -> Increment:
        """Read what the last run of a job has kept. Raises `ArchiveDamagedError` if it cannot be read."""
        nothing = cls.empty(lake, job)
        root, file = nothing.root, nothing.root / "state.json"
        if nothing.found is None:
            return nothing
        try:
            document = json.loads(nothing.found)
            if document["format"] != _FORMAT:
                raise ValueError(
                    f"its format is {document['format']}, and this version knows {_FORMAT}"
                )
            begins: dict[Shard, Known] = {}
            for queue, shard, epoch, number in document["begins"]:
                begins[queue, shard] = (*begins.get((queue, shard), ()), (epoch, number))
            return cls(
                root,
                document["version"],
                document["events"],
                datetime.fromisoformat(document["at"]),
                begins,
                tuple(
                    Hole(queue, shard, epoch, after, None, None, datetime.fromisoformat(until), why)
                    for queue, shard, epoch, after, until, why in document["holes"]
                ),
                tuple(
                    ((queue, shard), datetime.fromisoformat(last))
                    for queue, shard, last in document.get("lasts", ())
                ),
                document.get("more", {}),
                nothing.found,
            )
        except (KeyError, TypeError, ValueError) as error:
            raise ArchiveDamagedError(
                str(file),
                f"not the saved state of {'an' if job == 'audit' else 'a'} {job} ({error}); {job} with --incremental "
                "--restart",
            ) from error

    @classmethod
    def empty(cls, lake: Lake, job: str) -> Increment:
        """Begin with nothing, in place of what the last run of a job has kept."""
        root = lake.root / f"_{job}"
        return cls(root, found=_text(root / "state.json"))

    @property
    def job(self) -> str:
        """The name of the job: `audit` or `report`."""
        return self.root.name.removeprefix("_")

    def check_writable(self) -> None:
        """Raise `PipelineError` if nothing can be kept here: before the work rather than after it."""
        root, probe = self.root, self.root / f"probe-{secrets.token_hex(8)}"
        try:
            if isinstance(root, Path) and isinstance(probe, Path):
                root.mkdir(exist_ok=True)
                probe.write_text("", encoding="utf-8")
            else:
                probe.write_text("")
            probe.unlink()
        except OSError as error:
            raise cannot_write(self.root, error, "nothing was read") from error

    def sizes(self, lake: Lake) -> dict[AnyPath, int]:
        """List the files that came since, with their bytes; all of an archive that was not read."""
        if self.at is None:
            return {file: size for day in lake.days() for file, size in day.sizes.items()}
        return lake.appended(self.version, self.job)

    def files(self, lake: Lake) -> FilesRead:
        """Count the files that came since."""
        return FilesRead.of(self.sizes(lake))

    def check_events(self) -> None:
        """Raise `ArchiveDamagedError` if the events that were kept are gone."""
        path = self.root / self.events
        if not written_whole(path):
            raise ArchiveDamagedError(
                str(path),
                f"the events that the last {self.job} saved are missing; {self.job} with --incremental --restart",
            )

    def seen(self, spark: SparkSession) -> Seen | None:
        """The part that `examine` needs; None: nothing was read yet. Raises `ArchiveDamagedError` if it is gone."""
        if self.at is None:
            return None
        self.check_events()
        path = self.root / self.events
        schema = struct_of("journal")
        try:
            few = rows_written(path, schema, few_rows(spark))
            events = read_written(spark, path, schema) if few is None else table_frame(spark, few)
        except OSError as error:
            raise cannot_read(path, error) from error
        lasts = dict(self.lasts)
        if "groups" in self.more:
            groups = CarriedGroups.of(self.more["groups"])
        else:
            # An earlier version carried no groups: those that were begun before are not known.
            begun = {shard: lasts.get(shard, self.at) for shard in self.begins}
            groups = CarriedGroups(begun, until=max(lasts.values(), default=self.at) - WATCHED)
        number = None if few is None else few.num_rows
        return Seen(self.at, self.begins, events, self.holes, lasts, groups, number)

    def keep(
        self,
        kept: DataFrame,
        record: Record,
        *,
        version: int,
        groups: Sequence[KeptGroup] = (),
        more: Mapping[str, Any] | None = None,
    ) -> Increment:
        """Write the state for the next run, with the events of the lives `kept` (queue, shard, message_id, life), and
        those of `groups`.

        Raises `PipelineError` if it cannot be written; then the next run
        begins where this one did.
        """
        at, name = datetime.now(UTC), f"events-{secrets.token_hex(8)}"
        needed = needed_events(record, kept, groups)
        holes = last_holes((*self.holes, *record.holes, *record.unsure), at)
        lasts = dict(self.lasts) | dict(record.lasts)
        done = Increment(
            self.root,
            version,
            name,
            at,
            dict(self.begins) | dict(record.begins),
            holes,
            tuple(lasts.items()),
            more or {},
        )
        self._check_alone()
        try:
            write_rows(needed, self.root / name)
        finally:
            self._check_alone()  # Else events that this run carries were deleted under it.
        try:
            done._write()
        except OSError as error:
            raise cannot_write(
                self.root / "state.json", error, f"the next {self.job} begins where this one did"
            ) from error
        done._delete_others(self)
        return done

    def _check_alone(self) -> None:
        """Raise `PipelineError` if another run has kept its own since this one began."""
        if _text(self.root / "state.json") != self.found:
            raise PipelineError(
                f"another incremental {self.job} of {self.root.parent} has ended since this one began; nothing of this "
                "one was kept: run one at a time"
            )

    def _delete_others(self, last: Increment) -> None:
        """Delete what the last run has kept, and what others left that were killed more than a day ago."""
        mine, old = {self.events, self.more.get("figures")}, {*_KEPT.findall(last.found or "")}
        before = time.time() - _KILLED_S
        with suppress(OSError):
            if isinstance(self.root, Path):
                for kept in (*self.root.glob("events-*"), *self.root.glob("figures-*")):
                    if kept.name not in mine and (
                        kept.name in old or kept.stat().st_mtime < before
                    ):
                        shutil.rmtree(kept, ignore_errors=True)
                return
            for file in [*self.root.under()]:
                name = file.parent.name
                if not name.startswith(("events-", "figures-")) or name in mine:
                    continue
                if name in old or file.mtime() < before:
                    file.unlink()

    def _write(self) -> None:
        assert self.at is not None
        document = {
            "format": _FORMAT,
            "version": self.version,
            "events": self.events,
            "at": self.at.isoformat(),
            "begins": [[*shard, *begin] for shard, known in self.begins.items() for begin in known],
            "holes": [
                [hole.queue, hole.shard, hole.epoch, hole.after, hole.until.isoformat(), hole.why]
                for hole in self.holes
                if hole.until is not None
            ],
            "lasts": [[*shard, last.isoformat()] for shard, last in self.lasts],
            "more": dict(self.more),
        }
        file = self.root / "state.json"
        if not isinstance(file, Path):
            file.write_text(json.dumps(document))
            return
        new = file.with_suffix(".new")
        new.write_text(json.dumps(document), encoding="utf-8")
        sync(new)
        os.replace(new, file)
        sync(file.parent)


def _text(file: AnyPath) -> str | None:
    """Read a file; None without one. Raises `PipelineError`."""
    try:
        return file.read_text()
    except FileNotFoundError:
        return None
    except OSError as error:
        raise cannot_read(file, error) from error


def forget(lake: Lake, job: str = "audit") -> None:
    """Delete what the last run of a job on an archive has kept: the next one begins with nothing."""
    kept = lake.root / f"_{job}"
    try:
        if isinstance(kept, Path):
            shutil.rmtree(kept)
        else:
            kept.remove()
    except FileNotFoundError:
        return
    except OSError as error:
        raise PipelineError(f"{kept} cannot be deleted ({one_line(error)})") from error
