"""The source of a verb of `qworker spark`: an archive, the live journal, or both; and its Spark session."""

from __future__ import annotations

import os
import re
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from functools import wraps
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import unquote

import click

from qworker.cli.framework.terminal import note
from qworker.durations import duration_ms
from qworker.errors import ArchiveDamagedError, InvalidOptionError, PipelineError, QworkerError

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from qworker.cli.framework.context import Session
    from qworker.pipeline.jobs.lake import FilesRead, Lake
    from qworker.pipeline.source.offsets import Offsets

__all__ = [
    "Reading",
    "archive_option",
    "instant",
    "keep_option",
    "kept_ms",
    "reading_options",
    "source_options",
    "spark_options",
    "start_spark",
    "step",
]

_DAY_MS: Final = 86_400_000
_CAUSE: Final = re.compile(r"^((?:\w+\.)*\w+(?:Error|Exception): .+)$", re.MULTILINE)
_FILE: Final = re.compile(r"file:/*(/[^\s,;\"\']+?\.parquet)")
_FORMS: Final = (
    "write a time such as '2031-05-04' or '2031-05-04T10:00Z' (UTC unless said), "
    "or a duration before now such as '24h'"
)


def spark_options(function: Callable[..., Any]) -> Callable[..., Any]:
    """Add --master and --conf; the verb gets `spark`, a function that starts the session."""

    @click.option(
        "--master", default="local[*]", metavar="URL", show_default=True, help="Spark master."
    )
    @click.option("--conf", multiple=True, metavar="NAME=VALUE", help="Spark setting; repeatable.")
    @wraps(function)
    def with_spark(*args: Any, master: str, conf: tuple[str, ...], **kwargs: Any) -> Any:
        settings = dict(map(_setting, conf))
        return function(*args, spark=lambda: start_spark(master, settings), **kwargs)

    return with_spark


def archive_option(*, required: bool) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Add --archive, as `archive`: give it to `Lake`; or None."""
    return click.option(
        "--archive",
        required=required,
        metavar="DIR|URL",
        help="Directory of the archive, or s3://BUCKET/PATH.",
    )


def keep_option(function: Callable[..., Any]) -> Callable[..., Any]:
    """Add --keep, as `keep`: give it to `kept_ms`."""
    return click.option(
        "--keep",
        metavar="DURATION",
        help="Delete days of the archive that ended longer ago, such as 90d. [default: keep all]",
    )(function)


def kept_ms(keep: str | None) -> int | None:
    """Read --keep; None: days are kept forever."""
    return None if keep is None else duration_ms(keep, "--keep", minimum_ms=_DAY_MS)


def reading_options(function: Callable[..., Any]) -> Callable[..., Any]:
    """Add --archive, --live, --queues, --since, --until; the verb gets them as `reading`."""

    @archive_option(required=False)
    @click.option(
        "--live/--no-live",
        default=None,
        help="Also read the journal in Redis. [default: only without --archive]",
    )
    @click.option(
        "--queues",
        metavar="NAMES",
        help="Queues: names or patterns, separated by commas. [default: all]",
    )
    @click.option(
        "--since",
        metavar="TIME",
        help="Start of the window: '2031-05-04T10:00Z', or '24h' before now.",
    )
    @click.option("--until", metavar="TIME", help="End of the window, exclusive.")
    @wraps(function)
    def with_reading(
        *args: Any,
        archive: str | None,
        live: bool | None,
        queues: str | None,
        since: str | None,
        until: str | None,
        **kwargs: Any,
    ) -> Any:
        now = datetime.now(UTC)
        reading = Reading.of(
            archive,
            archive is None if live is None else live,
            queues,
            None if since is None else instant(since, "--since", now),
            None if until is None else instant(until, "--until", now),
        )
        return function(*args, reading=reading, **kwargs)

    return with_reading


def instant(text: str, field: str, now: datetime) -> datetime:
    """Parse a time, or a duration before `now`. Raises `InvalidOptionError`."""
    try:
        moment = datetime.fromisoformat(text)
    except ValueError:
        try:
            return now - timedelta(milliseconds=duration_ms(text, field))
        except InvalidOptionError:
            raise InvalidOptionError(field, f"{text!r} is not a time", _FORMS) from None
    return moment if moment.tzinfo is not None else moment.replace(tzinfo=UTC)


@dataclass(frozen=True, slots=True)
class Reading:
    """Which events to read, from where."""

    lake: Lake | None
    live: bool
    queues: str | None
    since: datetime | None
    until: datetime | None

    @classmethod
    def of(
        cls,
        archive: str | None,
        live: bool,
        queues: str | None,
        since: datetime | None,
        until: datetime | None,
    ) -> Reading:
        """Check the options together. Raises `InvalidOptionError`."""
        from qworker.pipeline.jobs.lake import Lake

        if archive is None and not live:
            raise InvalidOptionError("--no-live", "leaves nothing to read", "pass --archive")
        if since is not None and until is not None and since >= until:
            raise InvalidOptionError("--until", "is not after --since", "swap the two")
        lake = None if archive is None else Lake(archive)
        if lake is not None and not lake.exists():
            raise InvalidOptionError(
                "--archive",
                f"{str(archive)!r} is not an archive",
                f"create one: qworker spark archive --out {archive}",
            )
        pinned = None if lake is None else lake.pinned()
        return cls(pinned, live, queues, since, until)

    def whole(self, *, incremental: bool, restart: bool) -> Lake | None:
        """Return the archive of an incremental run, which is of all its queues and times; None: the run is not one.

        Raises `InvalidOptionError`.
        """
        if not incremental:
            if restart:
                raise InvalidOptionError(
                    "--restart", "is for --incremental", "pass both, or neither"
                )
            return None
        for given, option in (
            (self.queues, "--queues"),
            (self.since, "--since"),
            (self.until, "--until"),
        ):
            if given is not None:
                raise InvalidOptionError(
                    option, "is not for --incremental", "leave one of them out"
                )
        if self.lake is None:
            raise InvalidOptionError("--incremental", "needs an archive", "pass --archive DIR")
        return self.lake

    @property
    def words(self) -> str:
        """Name the source of the events."""
        parts = [f"the archive {self.lake.root}"] if self.lake is not None else []
        return " and ".join([*parts, *(["the live journal"] if self.live else [])])

    def source(self, session: Session) -> dict[str, str] | None:
        """Return the options of the data source; None without the live journal. Call it before Spark is started."""
        return source_options(session) if self.live else None

    def events(self, spark: SparkSession, source: dict[str, str] | None) -> DataFrame:
        """Make the DataFrame of the events, each once; Redis is read once, when it is first used."""
        from qworker.pipeline.jobs.reading import read_events

        return read_events(
            spark, lake=self.lake, source=source, queues=self.queues, since=self.since
        )

    def files(self) -> FilesRead:
        """Count the files of the archive that are read."""
        from qworker.pipeline.jobs.lake import FilesRead
        from qworker.pipeline.jobs.reading import sizes_of

        if self.lake is None:
            return FilesRead()
        return FilesRead.of(sizes_of(self.lake, self.queues, self.since))

    def earlier(self) -> frozenset[str]:
        """Name the queues of which the archive has events that are too early to be read."""
        from qworker.pipeline.jobs.reading import earlier_queues

        return earlier_queues(self.lake, self.since)

    def ends(self) -> Offsets | None:
        """Read how far the rows of the archive must reach; None: unknown, or there is no archive."""
        from qworker.pipeline.jobs.reading import ends_of

        return ends_of(self.lake, self.queues)


def source_options(session: Session) -> dict[str, str]:
    """Return the options of the data source that name the server and the namespace."""
    from qworker.pipeline.jobs.reading import server_options

    return server_options(session.server, session.namespace)


def start_spark(master: str, settings: dict[str, str]) -> SparkSession:
    """Start the session. Raises `SparkMissingError`, `JavaMissingError`."""
    from qworker.pipeline.session import open_session

    # Spark creates this directory for tables, even if there are none: not in the current directory.
    warehouse = Path(tempfile.gettempdir(), f"qworker-spark-{os.getuid()}").as_uri()
    with step("starting Spark"):
        spark = open_session(
            app="qworker",
            master=master,
            settings={"spark.sql.warehouse.dir": warehouse, **settings},
        )
    from qworker.pipeline.failures import silence

    silence(spark)
    from pyspark.logger import PySparkLogger

    # It writes errors of SQL to stderr as JSON; we print them as one line.
    PySparkLogger.getLogger("SQLQueryContextLogger").setLevel("CRITICAL")
    return spark


@contextmanager
def step(text: str, spark: SparkSession | None = None) -> Iterator[Callable[[str], None]]:
    """Show a step that takes long: on a terminal a line that moves and goes away, else lines on stderr.

    `spark`: the session that does it; the line has a bar of its tasks.
    """
    with _in_one_line():
        if not sys.stderr.isatty():
            note(f"{text} …")
            yield lambda more: note(f"{text}: {more} …")
            return
        if spark is not None:
            from qworker.cli.spark.tasks import watched

            with watched(spark, text) as report:
                yield report
            return
        from qworker.cli.framework.terminal import console

        with console(stderr=True).status(f"{text} …") as status:
            yield lambda more: status.update(f"{text}: {more} …")


@contextmanager
def _in_one_line() -> Iterator[None]:
    """Raise our own errors as they are, out of those of Spark, and other errors of Spark as `PipelineError`."""
    from qworker.pipeline.failures import clear_errors

    try:
        with clear_errors():
            yield
    except QworkerError:
        raise
    except Exception as error:
        if not type(error).__module__.startswith(("pyspark.", "py4j.")):
            raise
        if damaged := _damaged(str(error)):
            raise damaged from error
        # The last error of a Python traceback within Spark's text is the cause.
        causes = _CAUSE.findall(str(error))
        text = causes[-1] if causes else str(error).strip().split("\n", 1)[0]
        raise PipelineError(f"Spark failed: {text}") from error


def _damaged(text: str) -> ArchiveDamagedError | None:
    """Find the file of an archive that Spark could not read."""
    for name in dict.fromkeys(_FILE.findall(text)):
        path = Path(unquote(name))
        if not path.exists():
            return ArchiveDamagedError(str(path), "the file has gone while it was read")
        import pyarrow.parquet as pq
        from pyarrow import ArrowException

        try:
            with pq.ParquetFile(path) as file:
                for _ in file.iter_batches(columns=["number", "event", "ts"]):
                    pass
        except (ArrowException, OSError):
            size = path.stat().st_size
            return ArchiveDamagedError(
                str(path),
                f"not a whole Parquet file (it is truncated or overwritten; {size:,} bytes)",
            )
    return None


def _setting(text: str) -> tuple[str, str]:
    name, equals, value = text.partition("=")
    if not equals or not name:
        raise InvalidOptionError("--conf", f"{text!r} is not a setting", "write NAME=VALUE")
    return name.strip(), value.strip()
