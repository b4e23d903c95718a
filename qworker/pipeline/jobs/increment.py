"""The state that an audit keeps for the next one, so that each reads only new events: beside the archive, in `_audit`.

    LAKE/_audit/state.json        how far each journal was read, and holes that the end of a message may be in
    LAKE/_audit/events-…/         events that the next audit needs

These are the events of messages that have not ended, and of those that ended in the last hour of the data: a second end
comes soon, if it comes. Findings are not kept, so each is reported once. `state.json` is replaced when all is written.
"""

from __future__ import annotations

import json
import os
import secrets
import shutil
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from functools import reduce
from operator import or_
from pathlib import Path
from typing import TYPE_CHECKING, Final

from qworker.errors import ArchiveDamagedError, PipelineError
from qworker.pipeline.jobs.files import sync
from qworker.pipeline.jobs.lake import FilesRead, Lake
from qworker.pipeline.jobs.objects import read_objects, write_objects, written_objects
from qworker.pipeline.jobs.record import IN_RECORD, Hole, Record, Seen, Shard
from qworker.pipeline.jobs.store import Place, cannot_write, one_line
from qworker.pipeline.source.offsets import Offsets
from qworker.pipeline.source.schemas import struct_of
from qworker.wire.names import split_shard_name

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

__all__ = ["Increment", "forget"]

_FORMAT: Final = 1
#: How long after its end a message is still watched for another one.
_WATCHED: Final = timedelta(hours=1)


@dataclass(frozen=True, slots=True)
class Increment:
    """How far the last audit came. `version`: of the archive; -1: there was none."""

    root: Place
    version: int = -1
    events: str = ""
    at: datetime | None = None
    begins: tuple[tuple[Shard, tuple[int, int]], ...] = ()
    holes: tuple[Hole, ...] = ()

    @classmethod
    def of(cls, lake: Lake) -> Increment:
        """Read what the last audit of an archive has kept. Raises `ArchiveDamagedError` if it cannot be read."""
        root = lake.root / "_audit"
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
            )
        except FileNotFoundError:
            return cls(root)
        except (KeyError, TypeError, ValueError) as error:
            raise ArchiveDamagedError(
                str(file),
                f"not what an audit has kept ({error}); audit with --incremental --restart",
            ) from error

    def sizes(self, lake: Lake) -> dict[Place, int]:
        """List the files that came since, with their bytes; all of an archive that was not audited."""
        if self.at is None:
            return {file: size for day in lake.days() for file, size in day.sizes.items()}
        return lake.appended(self.version)

    def files(self, lake: Lake) -> FilesRead:
        """Count the files that came since."""
        return FilesRead.of(self.sizes(lake))

    def seen(self, spark: SparkSession) -> Seen | None:
        """What `examine` needs of it; None: nothing was audited yet. Raises `ArchiveDamagedError` if it is gone."""
        if self.at is None:
            return None
        path = self.root / self.events
        if not (path / "_SUCCESS").exists():
            raise ArchiveDamagedError(
                str(path),
                "the events that the last audit kept are gone; audit with --incremental --restart",
            )
        events = (
            spark.read.parquet(str(path))
            if isinstance(path, Path)
            else read_objects(spark, written_objects(path), struct_of("journal"))
        )
        return Seen(self.at, dict(self.begins), events, self.holes)

    def keep(self, rows: DataFrame, record: Record, *, version: int, ends: Offsets) -> Increment:
        """Write what the next audit needs. `rows`: lifecycles of `record`, which reaches to `ends` in the archive."""
        from pyspark.sql import functions as F

        spark = rows.sparkSession
        at = datetime.now(UTC)
        reached = {split_shard_name(name): position for name, position in ends.items()}
        begins = dict(self.begins) | {
            shard: (position.epoch, position.event)
            for shard, position in reached.items()
            if position.event is not None
        }
        newest = rows.agg(F.max("last_ts")).collect()[0][0]
        open_ = F.col("state") == "open"
        if newest is not None:
            open_ = open_ | (F.col("last_ts") > F.lit(newest - _WATCHED))
        told = reduce(or_, map(F.col, ("lost", "unsure", "acked_twice", "delivered_late")))
        keys = ["queue", "shard", "message_id"]
        kept = rows.where(open_ & ~told).select(*keys)
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
            events.join(kept, keys, "left_semi")
            .unionByName(spark.createDataFrame(modes, events.schema))
            .coalesce(8)
        )
        holes = _last((*self.holes, *record.holes), at)
        done = Increment(self.root, version, name, at, tuple(begins.items()), holes)
        try:
            if isinstance(self.root, Path):
                self.root.mkdir(exist_ok=True)
                needed.write.parquet(str(self.root / name))
            else:
                write_objects(needed, self.root / name)
            done._write()
        except OSError as error:
            effect = "the next audit begins where this one did"
            raise cannot_write(self.root, error, effect) from error
        done._delete_others()
        return done

    def _delete_others(self) -> None:
        """Delete the events of earlier audits, and of those that were killed."""
        if isinstance(self.root, Path):
            for old in self.root.glob("events-*"):
                if old.name != self.events:
                    shutil.rmtree(old, ignore_errors=True)
            return
        with suppress(OSError):
            for file in [*self.root.under()]:
                if file.parent.name.startswith("events-") and file.parent.name != self.events:
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


def forget(lake: Lake) -> None:
    """Delete what the last audit of an archive has kept: the next one begins anew."""
    kept = lake.root / "_audit"
    try:
        if isinstance(kept, Path):
            shutil.rmtree(kept)
        else:
            kept.remove()
    except FileNotFoundError:
        return
    except OSError as error:
        raise PipelineError(f"{kept} cannot be deleted ({one_line(error)})") from error
