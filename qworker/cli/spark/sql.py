"""`qworker spark sql`: query history and state."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import TYPE_CHECKING, Any

import click

from qworker.cli.framework.commands import VerbCommand, json_option
from qworker.cli.framework.context import Session
from qworker.cli.framework.output import Block, Line, Output, Raw, Table, wants_json
from qworker.cli.framework.parameters import NumberRange
from qworker.cli.framework.terminal import Column, note
from qworker.cli.spark.reading import archive_option, live_source
from qworker.cli.spark.running import spark_options, step

if TYPE_CHECKING:
    from qworker.pipeline.views import Result

__all__ = ["command"]

_EXAMPLES = """\b
Examples:
  qworker spark sql "select queue, ready from queues order by ready desc"
  qworker spark sql "select reason, count(*) from dead group by reason"
  qworker spark sql --archive lake \\
      "select day, count(*) from archive group by day order by day"
  qworker spark sql --csv "select * from journal where event = 'dead'"
"""


@click.command(cls=VerbCommand, epilog=_EXAMPLES)
@click.argument("sql")
@archive_option(required=False)
@click.option(
    "--live/--no-live", default=True, help="Register the views of the server. [default: yes]"
)
@click.option(
    "--limit",
    "-n",
    type=NumberRange(1),
    default=1000,
    show_default=True,
    help="Maximum number of rows.",
)
@click.option("--csv", "as_csv", is_flag=True, help="Print comma-separated values.")
@json_option
@spark_options
@click.pass_obj
def command(
    session: Session,
    sql: str,
    archive: str | None,
    live: bool,
    limit: int,
    as_csv: bool,
    spark: Callable[[], Any],
) -> Iterator[Output]:
    """Run a Spark SQL query over the views journal, queues, messages, dead and, with --archive, archive."""
    from qworker.pipeline.jobs.lake import Lake
    from qworker.pipeline.views import query, register_views

    if as_csv and wants_json():
        raise click.UsageError("--csv and --json exclude each other")
    lake = None if archive is None else Lake(archive)
    source = live_source(session) if live else None
    running = spark()
    with step("running", running):
        register_views(running, source=source, lake=lake)
        result = query(running, sql, limit=limit)
    yield Output(result.document, Raw(result.csv()) if as_csv else _table(result))
    if result.more:
        note(f"more than {limit:,} rows: raise --limit, or aggregate")


def _table(result: Result) -> Block:
    if not result.rows:
        return Line("no rows")
    columns = [
        Column(name, number=_is_number(values), wide=True)
        for name, values in zip(result.columns, zip(*result.rows, strict=True), strict=True)
    ]
    return Table(columns, [[_text(value) for value in row] for row in result.rows])


def _is_number(values: Iterable[Any]) -> bool:
    return all(isinstance(value, int | float) or value is None for value in values)


def _text(value: Any) -> str:
    import json

    if isinstance(value, dict | list):
        return json.dumps(value)
    return "" if value is None else str(value)
