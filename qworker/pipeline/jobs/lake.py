"""The lake: an archive as a Delta table in a directory or an object store (`qworker.pipeline.jobs.store`).

Each commit adds files and says where the journals continue.

    LAKE/queue=emails/day=2031-05-04/part-….parquet    events; day: of ts, in UTC
    LAKE/_delta_log/                                   commits: which files belong to the table, and the offsets

A file that no commit names is not in the lake. Readers see one version, whole, and keep it while
others write. Each commit of an archiver has an application transaction, so that of two archivers one fails.
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterator, Sequence
from contextlib import suppress
from datetime import UTC, date, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from qworker.errors import InvalidOptionError, PipelineError
from qworker.pipeline.jobs.days import Day
from qworker.pipeline.jobs.deleted import Deleted
from qworker.pipeline.jobs.files import EventFile, sync
from qworker.pipeline.jobs.log import OFFSETS_KEY, Log
from qworker.pipeline.jobs.store import AnyPath, ObjectPath, absent, one_line, path_of
from qworker.pipeline.jobs.table import (
    PARTITIONS,
    clear_errors,
    create_table,
    namespace_of,
    open_table,
    table_schema,
)
from qworker.wire.names import split_shard_name

if TYPE_CHECKING:
    from deltalake import DeltaTable
    from deltalake.transaction import AddAction, RemoveAction

__all__ = ["Lake"]

_APP: Final = "qworker.archiver"
#: With the name of a queue: its days before this one, as an ordinal, were deleted because of their age.
_KEPT_FROM: Final = "qworker.kept_from."
#: Commits are deleted after 30 days (Delta's default), unless the newest offsets are nearly as old.
_OFFSETS_S: Final = 20 * 86_400


class Lake:
    """The place of an archive, which need not exist yet: a directory, or `s3://BUCKET/PATH`.

    `version`: read this one; None: the newest at each call.
    """

    def __init__(self, root: Path | str | ObjectPath, *, version: int | None = None) -> None:
        """Raises `InvalidOptionError` for another kind of URL, or a file."""
        self.root: AnyPath = path_of(root)
        self.version = version

    @property
    def in_store(self) -> bool:
        """Whether it is in an object store: Spark reads its files through Python then."""
        return isinstance(self.root, ObjectPath)

    def exists(self) -> bool:
        """Whether there is an archive; it may be empty. Raises `InvalidOptionError` if it is not ours."""
        if Log(self.root).exists():
            return bool(self.offsets() is not None or self.files())
        if isinstance(self.root, Path) and (
            next(self.root.glob("queue=*/day=*/batch=*/*.parquet"), None) is not None
        ):
            raise InvalidOptionError(
                "archive",
                f"{str(self.root)!r} has the layout of an earlier version",
                f"convert it: qworker spark convert --archive {self.root}",
            )
        return False

    def create(self, namespace: str) -> None:
        """Create the table unless it is there. Raises `InvalidOptionError` if it holds another namespace."""
        if not Log(self.root).exists():
            self.exists()
            create_table(self.root, namespace)
        self.check_namespace(namespace)

    def check_namespace(self, namespace: str) -> None:
        """Raise `InvalidOptionError` if the lake holds the events of another namespace."""
        other = namespace_of(self.table())
        if other != namespace:
            raise InvalidOptionError(
                "archive",
                f"{str(self.root)!r} holds namespace {other!r}, not {namespace!r}",
                "name another directory, or pass --namespace",
            )

    def table(self) -> DeltaTable:
        """Open the table. Raises `InvalidOptionError` if it is not ours, `ArchiveDamagedError` if it is not whole."""
        return open_table(self.root, self.version)

    def pinned(self) -> Lake:
        """The lake as it is now, without later commits."""
        return Lake(self.root, version=self.table().version())

    def days(self) -> Iterator[Day]:
        """Yield the days of all queues, in order."""
        import pyarrow as pa

        if not Log(self.root).exists():
            return
        found: dict[tuple[str, date], dict[AnyPath, int]] = {}
        columns = ["path", "size_bytes", "partition.queue", "partition.day"]
        actions = pa.table(self.table().get_add_actions(flatten=True))
        for path, length, queue, day in zip(
            *(actions[name].to_pylist() for name in columns), strict=True
        ):
            found.setdefault((queue, day), {})[self.root / path] = length
        for (queue, day), sizes in sorted(found.items()):
            yield Day(queue, day, sizes)

    def files(self) -> list[AnyPath]:
        """List the Parquet files of the lake, for `read_parquet` of DuckDB and others."""
        return [file for day in self.days() for file in day.files]

    def appended(self, after: int, job: str = "audit") -> dict[AnyPath, int]:
        """List the files that archivers have added in the commits after this version, compacted meanwhile or not.

        Returns their bytes, in the order of the commits. `job`: names what read that version.
        Raises `PipelineError` if they are not all there any more, or the archive is of an earlier version.
        """
        found: dict[AnyPath, int] = {}
        now, newest = {*self.files()}, self.table().version()
        if newest < after:
            raise PipelineError(
                f"{self.root} is at version {newest}, but was at {after} at the last {job}: it was restored or "
                f"recreated; {job} all of it with --incremental --restart"
            )
        for version in range(after + 1, newest + 1):
            try:
                found |= Log(self.root).added(version)
            except FileNotFoundError:
                raise self._too_old(after, job) from None
        # A file of the lake that is missing is damage, which the numbers tell; others were deleted by a vacuum.
        if absent([*found]) - now:
            raise self._too_old(after, job)
        return found

    def _too_old(self, version: int, job: str) -> PipelineError:
        return PipelineError(
            f"files added to {self.root} since the last {job} (version {version}) have been deleted: {job} at least "
            f"once a week; now {job} all of it with --incremental --restart"
        )

    def table_id(self) -> str:
        """The id that the table got when it was created."""
        return str(self.table().metadata().id)

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
        """Read where to continue in the journals, as `qworker.pipeline.source.offsets`; None: no commit says it."""
        found = self._noted_offsets()
        return None if found is None else found[1]

    def _noted_offsets(self) -> tuple[float, dict[str, Any] | None] | None:
        log = Log(self.root)
        return log.offsets(self.table().version()) if log.exists() else None

    def last(self) -> int:
        """The number of the last commit of an archiver, 0 for none: give it to `commit`."""
        return self.table().transaction_version(_APP) or 0

    def commit(
        self, files: Sequence[EventFile], *, after: int, offsets: dict[str, Any] | None = None
    ) -> int:
        """Add files and note where to continue, both or neither; returns the number of this commit. Durable.

        Raises `PipelineError` if `after` is not the last commit of an archiver, or nothing could be written.
        """
        from deltalake.exceptions import CommitFailedError
        from deltalake.transaction import AddAction, CommitProperties, Transaction

        if isinstance(self.root, Path):
            for directory in {Path(file.path).parent for file in files}:
                sync(directory)
        table = self.table()
        if (table.transaction_version(_APP) or 0) != after:
            raise self._other()
        now_ms = int(time.time() * 1000)
        adds: list[AddAction | RemoveAction] = [
            AddAction(
                file.path.removeprefix(f"{self.root}/"),
                file.bytes,
                {"queue": file.queue, "day": file.day},
                now_ms,
                True,
                file.stats,
            )
            for file in files
        ]
        noted = {} if offsets is None else {OFFSETS_KEY: json.dumps(offsets)}
        properties = CommitProperties(
            custom_metadata=noted, app_transactions=[Transaction(_APP, after + 1)]
        )
        try:
            with clear_errors(self.root, "nothing was committed"):
                table.create_write_transaction(
                    adds, "append", table_schema(), PARTITIONS, commit_properties=properties
                )
        except CommitFailedError:
            raise self._other() from None
        if isinstance(self.root, Path):
            begun = table.version()
            table.update_incremental()
            Log(self.root).sync(begun + 1, table.version())
        return after + 1

    def expire(self, before: date) -> int:
        """Delete the days before this one from the table, in one commit; returns how many there were, of all queues.

        The table remembers for which queues it did, and their numbers are noted. A vacuum deletes the files.
        """
        from deltalake.exceptions import CommitFailedError
        from deltalake.transaction import CommitProperties, Transaction

        days = [day for day in self.days() if day.day < before]
        queues = sorted({day.queue for day in days})
        if not queues:
            return 0
        names = ", ".join(f"'{queue}'" for queue in queues)
        noted = [Transaction(_KEPT_FROM + queue, before.toordinal()) for queue in queues]
        files = {
            queue: [file for day in days if day.queue == queue for file in day.files]
            for queue in queues
        }
        known = Deleted.of(self.root)
        note = known.plus(self.table(), self.root, files).note(self.root)
        deleted = False
        try:
            with clear_errors(self.root, "no day was deleted"):
                self.table().delete(
                    f"day < '{before.isoformat()}' and queue in ({names})",
                    commit_properties=CommitProperties(app_transactions=noted),
                )
            deleted = True
        except CommitFailedError as error:
            raise PipelineError(
                f"another process has deleted days of {self.root} or compacted them meanwhile ({one_line(error)}); "
                "no day was deleted: run it again"
            ) from error
        finally:
            if not deleted:
                with suppress(OSError):
                    note.unlink()
        known.forget()
        return len(days)

    def expired_queues(self) -> frozenset[str]:
        """Name the queues of which days were deleted because of their age. `Deleted` has the numbers."""
        queues = {day.queue for day in self.days()}
        queues.update(split_shard_name(name)[0] for name in self.offsets() or ())
        if not queues:
            return frozenset()
        table = self.table()
        return frozenset(
            queue for queue in queues if table.transaction_version(_KEPT_FROM + queue) is not None
        )

    def clean_log(self) -> None:
        """Delete commits of more than a month ago, which a checkpoint replaces; the newest offsets stay."""
        noted = self._noted_offsets()
        if noted is None or time.time() - noted[0] < _OFFSETS_S:
            with clear_errors(self.root, "its log has not changed"):
                self.table().cleanup_metadata()

    def vacuum(self, kept_h: int) -> int:
        """Delete files that have not been in the table for some hours; returns their number."""
        with clear_errors(self.root, "no commit was lost, and files that no reader needs stay"):
            deleted = self.table().vacuum(
                kept_h, dry_run=False, enforce_retention_duration=False, full=True
            )
        return len(deleted)

    def _other(self) -> PipelineError:
        return PipelineError(
            f"another archiver has written into {self.root} since this one read where to continue; nothing was "
            "committed: stop one of them"
        )
