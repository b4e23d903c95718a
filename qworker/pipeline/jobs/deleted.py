"""Which events a retention has deleted, so that the audit tells age from loss. Beside the archive:

    LAKE/_deleted/….json    queue → [shard, epoch, first number, number after the last]

Days are deleted, and numbers tell loss. Where the clock was set back over midnight, a day has numbers between those of
the next one. So the numbers are noted before the days are deleted; an earlier version noted only of which queues days
were deleted.
"""

from __future__ import annotations

import json
import os
import secrets
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from qworker.errors import ArchiveDamagedError
from qworker.pipeline.jobs.files import sync
from qworker.pipeline.jobs.holes import Gap, Hole, Span, before_all
from qworker.pipeline.jobs.store import AnyPath, absent, cannot_read, cannot_write

if TYPE_CHECKING:
    from deltalake import DeltaTable

__all__ = ["NOTHING_EARLIER", "Deleted", "Earlier", "numbers_of"]

#: One epoch of one shard of a queue.
Epoch = tuple[str, int, int]
#: Stretches of numbers, each without its end, in order.
Stretches = tuple[tuple[int, int], ...]
_COLUMNS: Final = ("shard", "epoch", "number", "event", "reason")
_MISSING: Final = ("file gone", "trimmed")


@dataclass(frozen=True, slots=True)
class Deleted:
    """The numbers of deleted events. `files`: where they are noted."""

    numbers: Mapping[Epoch, Stretches] = field(default_factory=dict)
    files: tuple[AnyPath, ...] = ()

    @classmethod
    def of(cls, root: AnyPath) -> Deleted:
        """Read what is noted beside an archive. Raises `PipelineError`."""
        directory = root / "_deleted"
        found: dict[Epoch, Stretches] = {}
        try:
            if isinstance(directory, Path):
                files: list[AnyPath] = [*sorted(directory.glob("*.json"))]
            else:
                files = sorted(directory.under(), key=str)
            texts = [file.read_text() for file in files]
        except OSError as error:
            raise cannot_read(directory, error) from error
        for file, text in zip(files, texts, strict=True):
            try:
                for queue, rows in json.loads(text).items():
                    for shard, epoch, first, stop in rows:
                        key = (queue, int(shard), int(epoch))
                        found[key] = _joined([*found.get(key, ()), (int(first), int(stop))])
            except (AttributeError, TypeError, ValueError) as error:
                raise ArchiveDamagedError(
                    str(file),
                    f"not a note of deleted events ({error}); delete it: then numbers that are missing at the "
                    "beginning of its queues count as deleted",
                ) from error
        return cls(found, tuple(files))

    @property
    def queues(self) -> frozenset[str]:
        """The queues of which events are noted."""
        return frozenset(queue for queue, _, _ in self.numbers)

    def left(self, hole: Hole) -> int | None:
        """How many of the events in a hole were not deleted."""
        if hole.missing is None or hole.why not in _MISSING:
            return hole.missing
        first, stop = hole.after + 1, hole.after + 1 + hole.missing
        deleted = self.numbers.get((hole.queue, hole.shard, hole.epoch), ())
        return hole.missing - sum(max(0, min(stop, s) - max(first, f)) for f, s in deleted)

    def plus(
        self, table: DeltaTable, root: AnyPath, files: Mapping[str, Sequence[AnyPath]]
    ) -> Deleted:
        """Add the events of files that are going to be deleted, by queue, and those that are nowhere between them.

        Of a file that is not whole nothing is known: numbers between those of others are taken for its own.
        """
        found = dict(self.numbers)
        actions = None
        for queue, of_queue in files.items():
            for file in of_queue:
                with suppress(ArchiveDamagedError):
                    for key, stretches in numbers_of(queue, [file]).items():
                        found[key] = _joined([*found.get(key, ()), *stretches])
            going, epochs = {*of_queue}, [key for key in found if key[0] == queue]
            for key in epochs:
                before = list(_between(found[key]))
                if not before:
                    continue
                actions = _actions(table) if actions is None else actions
                reaching = (root / path for path in _reaching(actions, key, before))
                with suppress(ArchiveDamagedError):  # It may have any of them.
                    there = numbers_of(queue, [file for file in reaching if file not in going])
                    found[key] = _joined([*found[key], *_without(before, there.get(key, ()))])
        return replace(self, numbers=found)

    def note(self, root: AnyPath) -> AnyPath:
        """Write them beside the archive; returns where. Raises `PipelineError`."""
        document: dict[str, list[list[int]]] = {}
        for (queue, shard, epoch), stretches in sorted(self.numbers.items()):
            rows = document.setdefault(queue, [])
            rows += [[shard, epoch, first, stop] for first, stop in stretches]
        directory, text = root / "_deleted", json.dumps(document)
        file = directory / f"{secrets.token_hex(8)}.json"
        try:
            if isinstance(file, Path):
                file.parent.mkdir(exist_ok=True)
                new = file.with_suffix(".new")
                new.write_text(text, encoding="utf-8")
                sync(new)
                os.replace(new, file)
                sync(file.parent)
            else:
                file.write_text(text)
        except OSError as error:
            raise cannot_write(file, error, "no day was deleted") from error
        return file

    def forget(self) -> None:
        """Delete the notes that these were read from: a later one has all of them."""
        for file in self.files:
            with suppress(OSError):
                file.unlink()


@dataclass(frozen=True, slots=True)
class Earlier:
    """Events that a read does not see. `queues`: of these there are earlier ones; `deleted`: because of their age."""

    queues: frozenset[str] = frozenset()
    deleted: Deleted = Deleted()

    def left(self, holes: Iterable[Hole], spans: Sequence[Span]) -> Iterator[Hole]:
        """Yield the holes of one shard without what is missing because it is earlier."""
        for hole in holes:
            if hole.queue in self.queues and before_all(hole, spans):
                continue
            missing = self.deleted.left(hole)
            if missing is None or missing:
                yield replace(hole, missing=missing)


NOTHING_EARLIER: Final = Earlier()


def numbers_of(queue: str, files: Iterable[AnyPath]) -> dict[Epoch, Stretches]:
    """Read the numbers of the events in files of a queue, and of gaps; files that are gone have none."""
    import pyarrow.parquet as pq

    files = list(files)
    found: dict[Epoch, list[tuple[int, int]]] = {}
    for file in sorted({*files} - absent(files), key=str):
        try:
            with pq.ParquetFile(str(file) if isinstance(file, Path) else file.open_read()) as rows:
                for group in range(rows.metadata.num_row_groups):
                    in_footer = _of_footer(rows.metadata.row_group(group))
                    for shard, epoch, first, stop in (
                        _of_rows(rows.read_row_group(group, columns=list(_COLUMNS)))
                        if in_footer is None
                        else [in_footer]
                    ):
                        found.setdefault((queue, shard, epoch), []).append((first, stop))
        except (OSError, ValueError) as error:
            raise ArchiveDamagedError(
                str(file), f"not a whole Parquet file ({error}); restore it, or delete it"
            ) from error
    return {key: _joined(stretches) for key, stretches in found.items()}


def _of_footer(group: Any) -> tuple[int, int, int, int] | None:
    """The numbers of a row group whose bounds say all: as many rows as numbers, of one epoch."""
    bounds: dict[str, tuple[int, int]] = {}
    for column in map(group.column, range(group.num_columns)):
        if column.path_in_schema in ("shard", "epoch", "number"):
            known = column.statistics
            if known is None or not known.has_min_max or known.null_count:
                return None
            bounds[column.path_in_schema] = (known.min, known.max)
    (shard, other_shard), (epoch, other_epoch) = bounds["shard"], bounds["epoch"]
    first, last = bounds["number"]
    if (shard, epoch, last - first + 1) != (other_shard, other_epoch, group.num_rows):
        return None
    return shard, epoch, first, last + 1


def _of_rows(table: Any) -> Iterator[tuple[int, int, int, int]]:
    import pyarrow.compute as pc

    whole = table.filter(pc.is_valid(table.column("number")))
    for pair in whole.group_by(["shard", "epoch"]).aggregate([]).to_pylist():
        shard, epoch = pair["shard"], pair["epoch"]
        of_epoch = whole.filter(
            pc.and_(pc.equal(whole.column("shard"), shard), pc.equal(whole.column("epoch"), epoch))
        )
        numbers = of_epoch.column("number").unique().sort().to_pylist()
        first = 0
        for at in range(1, len(numbers) + 1):
            if at == len(numbers) or numbers[at] > numbers[at - 1] + 1:
                yield shard, epoch, numbers[first], numbers[at - 1] + 1
                first = at
        gaps = of_epoch.filter(pc.equal(of_epoch.column("event"), "gap"))
        for number, reason in zip(
            gaps.column("number").to_pylist(), gaps.column("reason").to_pylist(), strict=True
        ):
            gap = Gap(epoch, number, Gap.count_in(reason or ""), None, reason or "")
            if gap.why != "rolled back":
                yield shard, epoch, number, number + max(1, gap.events or 1)


def _joined(stretches: Iterable[tuple[int, int]]) -> Stretches:
    """Sort stretches, and join those that touch."""
    found: list[tuple[int, int]] = []
    for first, stop in sorted(stretches):
        if found and first <= found[-1][1]:
            found[-1] = (found[-1][0], max(found[-1][1], stop))
        else:
            found.append((first, stop))
    return tuple(found)


def _between(stretches: Stretches) -> Iterator[tuple[int, int]]:
    """Yield what is before and between stretches."""
    begun = 0
    for first, stop in stretches:
        if begun < first:
            yield begun, first
        begun = stop


def _without(stretches: Iterable[tuple[int, int]], others: Stretches) -> Iterator[tuple[int, int]]:
    """Yield the numbers of stretches that others do not have."""
    for begun, stop in stretches:
        first = begun
        for other, until in others:
            if until <= first or other >= stop:
                continue
            if first < other:
                yield first, other
            first = max(first, until)
        if first < stop:
            yield first, stop


def _actions(table: DeltaTable) -> list[dict[str, Any]]:
    """The files of a table with their statistics, as its log has them."""
    import pyarrow as pa

    return list(pa.table(table.get_add_actions(flatten=True)).to_pylist())


def _reaching(
    actions: Iterable[dict[str, Any]], key: Epoch, stretches: Sequence[tuple[int, int]]
) -> Iterator[str]:
    """Yield the files that may have any of these numbers, by their statistics."""
    for action in actions:
        if action["partition.queue"] != key[0]:
            continue
        low, high = action.get("min.number"), action.get("max.number")
        least, most = action.get("min.epoch"), action.get("max.epoch")
        if least is not None and most is not None and not least <= key[2] <= most:
            continue
        if (
            low is None
            or high is None
            or any(low < stop and first <= high for first, stop in stretches)
        ):
            yield action["path"]
