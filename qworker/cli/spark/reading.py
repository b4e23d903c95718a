"""The source of a verb of `qworker spark`: an archive, the live journal, or both."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from functools import wraps
from typing import TYPE_CHECKING, Any, Final

import click

from qworker.durations import duration_ms
from qworker.errors import InvalidOptionError

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from qworker.cli.framework.context import Session
    from qworker.pipeline.jobs.days import FilesRead
    from qworker.pipeline.jobs.deleted import Earlier
    from qworker.pipeline.jobs.lake import Lake
    from qworker.pipeline.source.offsets import Offsets

__all__ = [
    "EventSelection",
    "archive_option",
    "instant",
    "keep_option",
    "kept_ms",
    "live_source",
    "reading_options",
    "source_options",
]

_DAY_MS: Final = 86_400_000
_FORMS: Final = (
    "write a time such as '2031-05-04' or '2031-05-04T10:00Z' (UTC by default), "
    "or a duration before now such as '24h'"
)


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
        reading = EventSelection.of(
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
class EventSelection:
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
    ) -> EventSelection:
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
                    "--restart", "requires --incremental", "pass both, or neither"
                )
            return None
        for given, option in (
            (self.queues, "--queues"),
            (self.since, "--since"),
            (self.until, "--until"),
        ):
            if given is not None:
                raise InvalidOptionError(option, "excludes --incremental", "omit one of them")
        if self.lake is None:
            raise InvalidOptionError("--incremental", "needs an archive", "pass --archive DIR")
        return self.lake

    @property
    def text(self) -> str:
        """Name the source of the events."""
        parts = [f"the archive {self.lake.root}"] if self.lake is not None else []
        return " and ".join([*parts, *(["the live journal"] if self.live else [])])

    def source(self, session: Session) -> dict[str, str] | None:
        """Return the options of the data source; None without the live journal. Call it before Spark is started."""
        return live_source(session) if self.live else None

    def events(self, spark: SparkSession, source: dict[str, str] | None) -> DataFrame:
        """Make the DataFrame of the events, each once; Redis is read once, when it is first used."""
        from qworker.pipeline.jobs.reading import read_events

        return read_events(
            spark, lake=self.lake, source=source, queues=self.queues, since=self.since
        )

    def files(self) -> FilesRead:
        """Count the files of the archive that are read."""
        from qworker.pipeline.jobs.days import FilesRead
        from qworker.pipeline.jobs.reading import sizes_of

        if self.lake is None:
            return FilesRead()
        return FilesRead.of(sizes_of(self.lake, self.queues, self.since))

    def earlier(self) -> Earlier:
        """Find which events of the archive are too early to be read."""
        from qworker.pipeline.jobs.reading import earlier_events

        return earlier_events(self.lake, self.since)

    def ends(self) -> Offsets | None:
        """Read how far the rows of the archive must reach; None: unknown, or there is no archive."""
        from qworker.pipeline.jobs.reading import ends_of

        return ends_of(self.lake, self.queues)


def live_source(session: Session) -> dict[str, str]:
    """Return the options of the data source, once the server has answered: Spark takes many seconds to start.

    Raises `ServerError`.
    """
    session.ask("PING")
    return source_options(session)


def source_options(session: Session) -> dict[str, str]:
    """Return the options of the data source that name the server and the namespace."""
    from qworker.pipeline.jobs.reading import server_options

    return server_options(session.server, session.namespace)
