"""`qworker spark sql`: ask the history and the state."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import click

from qworker.cli.screen import Column, note, print_json, print_line, print_table
from qworker.cli.session import Session
from qworker.cli.spark_reading import archive_option, source_options, spark_options, step
from qworker.cli.verbs import Verb, json_option

__all__ = ["command"]

_EXAMPLES = """\b
Examples:
  qworker spark sql "select queue, ready, oldest_ready_age_ms from queues order by ready desc"
  qworker spark sql "select reason, count(*) from dead group by reason"
  qworker spark sql --archive lake "select day, count(*) from archive group by day order by day"
  qworker spark sql --csv "select * from journal where event = 'dead'" > dead.csv
"""


@click.command(cls=Verb, epilog=_EXAMPLES)
@click.argument("sql")
@archive_option(required=False)
@click.option(
    "--live/--no-live", default=True, help="Register the views of the server. [default: yes]"
)
@click.option(
    "--limit", "-n", type=click.IntRange(1), default=1000, show_default=True, help="Rows at most."
)
@click.option("--csv", "as_csv", is_flag=True, help="Print comma-separated values.")
@json_option
@spark_options
@click.pass_obj
def command(
    session: Session,
    sql: str,
    archive: Path | None,
    live: bool,
    limit: int,
    as_csv: bool,
    as_json: bool,
    spark: Callable[[], Any],
) -> None:
    """Run a query of Spark SQL over the views journal, queues, messages, dead and, with --archive, archive."""
    from qworker.pipeline.jobs.lake import Lake
    from qworker.pipeline.jobs.views import query, register_views

    if as_csv and as_json:
        raise click.UsageError("--csv and --json exclude each other")
    lake = None if archive is None else Lake(archive)
    source = source_options(session) if live else None
    running = spark()
    with step("running"):
        register_views(running, source=source, lake=lake)
        result = query(running, sql, limit=limit)
    if as_json:
        print_json(result.document())
    elif as_csv:
        click.echo(result.csv(), nl=False)
    elif not result.rows:
        print_line("no rows")
    else:
        columns = [
            Column(name, number=_is_number([row[at] for row in result.rows]), wide=True)
            for at, name in enumerate(result.columns)
        ]
        print_table(columns, [[_text(value) for value in row] for row in result.rows])
    if result.more:
        note(f"there are more than {limit:,} rows: raise --limit, or aggregate")


def _is_number(values: list[Any]) -> bool:
    return all(isinstance(value, int | float) or value is None for value in values)


def _text(value: Any) -> str:
    import json

    if isinstance(value, dict | list):
        return json.dumps(value)
    return "" if value is None else str(value)
