"""The state that a job keeps for its next run, so that each reads only new events: beside the archive.

    LAKE/_audit/state.json        how far each journal was read, and holes that the end of a message may be in
    LAKE/_audit/events-…/         events that the next audit needs
    LAKE/_report/                 the same of the report, and its figures: `qworker.pipeline.report.carried`

An audit needs the events of messages that have not ended, and of those that ended in the last hour of the data: a
second end comes soon, if it comes. Findings are not kept, so each is reported once. `state.json` is replaced when all
is written.
"""

from __future__ import annotations

import json
import os
import secrets
import shutil
from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from functools import reduce
from operator import or_
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from qworker.errors import ArchiveDamagedError, PipelineError
from qworker.pipeline.jobs.files import sync
from qworker.pipeline.jobs.lake import FilesRead, Lake
from qworker.pipeline.jobs.objects import read_written, write_rows
from qworker.pipeline.jobs.record import IN_RECORD, Hole, Record, Seen, Shard
from qworker.pipeline.jobs.store import Place, cannot_read, cannot_write, one_line
from qworker.pipeline.source.offsets import Offsets
from qworker.pipeline.source.schemas import struct_of
from qworker.wire.names import split_shard_name

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, SparkSession

__all__ = ["Increment", "forget", "recent", "unfinished"]

_FORMAT: Final = 1
#: How long after its end a message is still watched for another one.
_WATCHED: Final = timedelta(hours=1)


@dataclass(frozen=True, slots=True)
class Increment:
    """How far the last run came. `version`: of the archive; -1: there was none."""

    root: Place
    version: int = -1
    events: str = ""
    at: datetime | None = None
    begins: tuple[tuple[Shard, tuple[int, int]], ...] = ()
    holes: tuple[Hole, ...] = ()
    #: The time of the last event of each shard.
    lasts: tuple[tuple[Shard, datetime], ...] = ()
    #: What else the job has kept.
    more: Mapping[str, Any] = field(default_factory=dict)

    @classmethod
    def of(cls, lake: Lake, job: str = "audit") -> Increment:
        """Read what the last run of a job has kept. Raises `ArchiveDamagedError` if it cannot be read."""
        root = lake.root / f"_{job}"
        file = root / "state.json"
        try:
            document = json.loads(file.read_text())
            if document["format"] != _FORMAT:
                raise ValueError(
                    f"its format is {document['format']}, and this version knows {_FORMAT}"
                )
            return cls(
                root,
                document["version"],
                document["events"],
                datetime.fromisoformat(document["at"]),
                tuple(
                    ((queue, shard), (epoch, number))
                    for queue, shard, epoch, number in document["begins"]
                ),
                tuple(
                    Hole(queue, shard, epoch, after, None, None, datetime.fromisoformat(until), why)
                    for queue, shard, epoch, after, until, why in document["holes"]
                ),
                tuple(
                    ((queue, shard), datetime.fromisoformat(last))
                    for queue, shard, last in document.get("lasts", ())
                ),
                document.get("more", {}),
            )
        except FileNotFoundError:
            return cls(root)
        except (KeyError, TypeError, ValueError) as error:
            raise ArchiveDamagedError(
                str(file),
                f"not what {'an' if job == 'audit' else 'a'} {job} has kept ({error}); {job} with --incremental "
                "--restart",
            ) from error
        except OSError as error:
            raise cannot_read(file, error) from error

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

    def sizes(self, lake: Lake) -> dict[Place, int]:
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
        if not (path / "_SUCCESS").exists():
            raise ArchiveDamagedError(
                str(path),
                f"the events that the last {self.job} kept are gone; {self.job} with --incremental --restart",
            )

    def seen(self, spark: SparkSession) -> Seen | None:
        """What `examine` needs of it; None: nothing was read yet. Raises `ArchiveDamagedError` if it is gone."""
        if self.at is None:
            return None
        self.check_events()
        path = self.root / self.events
        try:
            events = read_written(spark, path, struct_of("journal"))
        except OSError as error:
            raise cannot_read(path, error) from error
        return Seen(self.at, dict(self.begins), events, self.holes, dict(self.lasts))

    def keep(
        self,
        kept: DataFrame,
        record: Record,
        *,
        version: int,
        ends: Offsets,
        more: Mapping[str, Any] | None = None,
    ) -> Increment:
        """Write what the next run needs, with the events of the messages `kept`: queue, shard, message_id.

        `record` reaches to `ends` in the archive. Raises `PipelineError` if it cannot be written; then the next run
        begins where this one did.
        """
        from pyspark.sql import functions as F

        spark = kept.sparkSession
        at = datetime.now(UTC)
        reached = {split_shard_name(name): position for name, position in ends.items()}
        begins = dict(self.begins) | {
            shard: (position.epoch, position.event)
            for shard, position in reached.items()
            if position.event is not None
        }
        keys = ["queue", "shard", "message_id"]
        # What follows the archive in the live journal comes again, with the archive.
        stored = spark.createDataFrame(
            [(*shard, *begin) for shard, begin in begins.items()],
            "queue STRING, shard INT, begun_epoch BIGINT, begun_number BIGINT",
        )
        before = F.struct("epoch", "number") < F.struct("begun_epoch", "begun_number")
        events = (
            record.events.where("event not in ('gap', 'mode')")
            .join(F.broadcast(stored), ["queue", "shard"])
            .where(before)
            .drop("begun_epoch", "begun_number")
        )
        columns = events.columns
        modes = [
            tuple(getattr(row, name) if name in row else None for name in columns)
            for row in record.off
            if (row.epoch, row.number) < dict(begins).get((row.queue, row.shard), (0, 0))
        ]
        name = f"events-{secrets.token_hex(8)}"
        needed = (
            events.join(kept.select(*keys), keys, "left_semi")
            .unionByName(spark.createDataFrame(modes, events.schema))
            .coalesce(8)
        )
        holes = _last((*self.holes, *record.holes), at)
        lasts = dict(self.lasts) | dict(record.lasts)
        done = Increment(
            self.root,
            version,
            name,
            at,
            tuple(begins.items()),
            holes,
            tuple(lasts.items()),
            more or {},
        )
        write_rows(needed, self.root / name)
        try:
            done._write()
        except OSError as error:
            raise cannot_write(
                self.root / "state.json", error, f"the next {self.job} begins where this one did"
            ) from error
        done._delete_others()
        return done

    def _delete_others(self) -> None:
        """Delete what earlier runs have kept, and those that were killed."""
        mine = {self.events, self.more.get("figures")}
        if isinstance(self.root, Path):
            for old in (*self.root.glob("events-*"), *self.root.glob("figures-*")):
                if old.name not in mine:
                    shutil.rmtree(old, ignore_errors=True)
            return
        with suppress(OSError):
            for file in [*self.root.under()]:
                name = file.parent.name
                if name.startswith(("events-", "figures-")) and name not in mine:
                    file.unlink()

    def _write(self) -> None:
        assert self.at is not None
        document = {
            "format": _FORMAT,
            "version": self.version,
            "events": self.events,
            "at": self.at.isoformat(),
            "begins": [[*shard, *begin] for shard, begin in self.begins],
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


def _last(holes: Iterable[Hole], at: datetime) -> tuple[Hole, ...]:
    """The last position and the last time of the holes of each shard; what has no end yet ends at `at`."""
    found: dict[Shard, Hole] = {}
    for hole in holes:
        if hole.why in IN_RECORD:
            continue
        shard, until = (hole.queue, hole.shard), hole.until or at
        known = found.get(shard)
        epoch, after = hole.epoch, hole.after
        if known is not None and known.until is not None:
            epoch, after = max((known.epoch, known.after), (epoch, after))
            until = max(known.until, until)
        found[shard] = Hole(*shard, epoch, after, None, None, until, hole.why)
    return tuple(found.values())


def recent(rows: DataFrame) -> Column:
    """Whether a message had an event in the last hour of these lifecycles."""
    from pyspark.sql import functions as F

    newest = rows.agg(F.max("last_ts")).collect()[0][0]
    return F.lit(False) if newest is None else F.col("last_ts") > F.lit(newest - _WATCHED)


def unfinished(rows: DataFrame) -> DataFrame:
    """The messages of lifecycles that an audit has judged and the next one needs: queue, shard, message_id."""
    from pyspark.sql import functions as F

    told = reduce(or_, map(F.col, ("lost", "unsure", "acked_twice", "delivered_late")))
    needed = ((F.col("state") == "open") | recent(rows)) & ~told
    return rows.where(needed).select("queue", "shard", "message_id")


def forget(lake: Lake, job: str = "audit") -> None:
    """Delete what the last run of a job on an archive has kept: the next one begins anew."""
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
