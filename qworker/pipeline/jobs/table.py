"""The Delta table of an archive: how it is created, and which one is opened."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from qworker.errors import ArchiveDamagedError, InvalidOptionError
from qworker.pipeline.jobs.conditional import check_conditional_puts
from qworker.pipeline.jobs.store import AnyPath, ObjectPath, cannot_read, cannot_write, one_line

if TYPE_CHECKING:
    from deltalake import DeltaTable

__all__ = [
    "PARTITIONS",
    "clear_errors",
    "create_table",
    "namespace_of",
    "open_table",
    "options_of",
    "table_schema",
]

PARTITIONS: Final = ["queue", "day"]
#: The version of the table's columns and metadata; a newer one is refused.
_FORMAT: Final = 1
_FORMAT_KEY: Final = "qworker.format"
_NAMESPACE_KEY: Final = "qworker.namespace"
#: Features of Delta tables by which a row or a column of a file is not what a reader of the file alone takes it for.
_UNREAD: Final = frozenset({"deletionVectors", "columnMapping", "typeWidening"})
_VERSION: Final = re.compile(r"\bversion: (\d+)")


def create_table(root: AnyPath, namespace: str) -> None:
    """Create the table, even if its directory is not empty. Raises `PipelineError`, `InvalidOptionError`."""
    from deltalake import DeltaTable

    with clear_errors(root, "it was not created"):
        if isinstance(root, Path):
            root.mkdir(parents=True, exist_ok=True)
        else:
            check_conditional_puts(root)
        DeltaTable.create(
            str(root),
            table_schema(),
            mode="ignore",
            partition_by=PARTITIONS,
            name="qworker journal",
            configuration={
                _FORMAT_KEY: str(_FORMAT),
                _NAMESPACE_KEY: namespace,
                # The offsets are in the log: see `Lake.clean_log`.
                "delta.enableExpiredLogCleanup": "false",
            },
            raise_if_key_not_exists=False,
            storage_options=options_of(root),
        )


def open_table(root: AnyPath, version: int | None) -> DeltaTable:
    """Open the table. Raises `InvalidOptionError` if it is not ours, `ArchiveDamagedError` if it is not whole."""
    from deltalake import DeltaTable
    from deltalake.exceptions import DeltaError

    try:
        table = DeltaTable(str(root), version=version, storage_options=options_of(root))
    except (DeltaError, OSError, ValueError) as error:
        if isinstance(root, ObjectPath) and isinstance(error, OSError):
            raise cannot_read(root, error) from error
        raise ArchiveDamagedError(
            str(root / "_delta_log"),
            f"not a log of commits that can be read ({_log_problem(error)})",
        ) from error
    form = (table.metadata().configuration or {}).get(_FORMAT_KEY)
    if form is None:
        raise InvalidOptionError(
            "archive",
            f"{str(root)!r} is a Delta table that qworker did not create",
            "name another directory",
        )
    if not form.isdigit() or int(form) > _FORMAT:
        raise InvalidOptionError(
            "archive",
            f"{str(root)!r} has format {form}, and this version knows {_FORMAT}",
            "use the version of qworker that wrote it, or a newer one",
        )
    if foreign := _UNREAD.intersection(table.protocol().reader_features or ()):
        raise InvalidOptionError(
            "archive",
            f"another program has enabled {min(foreign)} on the Delta table {str(root)!r}: its files may hold "
            "deleted rows or other column names, and qworker reads the files as they are",
            "copy an earlier version of the table to a new directory, and archive there",
        )
    return table


def namespace_of(table: DeltaTable) -> str:
    """Read the namespace of the events."""
    return str(table.metadata().configuration[_NAMESPACE_KEY])


def options_of(root: AnyPath) -> dict[str, str] | None:
    """How `deltalake` reaches the store; None for a directory."""
    return None if isinstance(root, Path) else root.options.delta()


@contextmanager
def clear_errors(root: AnyPath, effect: str) -> Iterator[None]:
    """Raise what stops a write as `PipelineError`, except a conflict with another write. `effect`: the state then."""
    from deltalake.exceptions import CommitFailedError, DeltaError

    try:
        yield
    except CommitFailedError:
        raise
    except (DeltaError, OSError) as error:
        raise cannot_write(root, error, effect) from error


def table_schema() -> Any:
    """The columns, as Delta has them."""
    import pyarrow as pa
    from deltalake import Schema

    from qworker.pipeline.source.schemas import arrow_of

    return Schema.from_arrow(arrow_of("journal").append(pa.field("day", pa.date32())))


def _log_problem(error: BaseException) -> str:
    """Say why a log cannot be read, in a line: the error of `deltalake`, shorter where it prints its own structures."""
    text = one_line(error)
    around = _VERSION.findall(str(error))
    if "contiguous commit files" in text and len(around) > 1:
        return f"the commits between {around[0]} and {around[1]} are missing"
    return text
