"""The command line of the benchmarks."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import click

from benchmarks.drain import drain as measure_drain


@click.group()
def main() -> None:
    """Measure qworker beside the raw floor, in one run; figures are medians, ratios are what counts."""


@main.command()
@click.option(
    "--json",
    "path",
    type=click.Path(dir_okay=False, path_type=Path),
    help="Also write the result here.",
)
@click.option("--messages", default=200_000, show_default=True, type=click.IntRange(1000))
@click.option("--rounds", default=3, show_default=True, type=click.IntRange(1))
@click.option("--procs", default=1, show_default=True, type=click.IntRange(1))
@click.option("--async", "is_async", is_flag=True, help="With an async handler.")
def drain(path: Path | None, messages: int, rounds: int, procs: int, is_async: bool) -> None:
    """One consumer, a handler that does nothing, at least once, metrics on; ratio to LPOP without acks."""
    result = measure_drain(
        messages, rounds, procs, is_async=is_async, say=lambda line: click.echo(line, err=True)
    )
    text = json.dumps(result, indent=2)
    if path is not None:
        path.write_text(text + "\n")
    click.echo(text)


if __name__ == "__main__":
    sys.exit(main())
