"""The command line of the benchmarks."""

from __future__ import annotations

import json
import sys
from importlib.metadata import version
from pathlib import Path
from typing import Any

import click

from benchmarks.catalog import BENCHMARKS
from benchmarks.figures import lines
from benchmarks.peers.catalog import PEERS
from benchmarks.peers.environment import installed
from benchmarks.rounds import ContenderError, environment
from benchmarks.stand import Plan, Stand
from qworker.errors import StoreError


def _names(context: click.Context, parameter: click.Parameter, value: str) -> tuple[str, ...]:
    names = tuple(PEERS) if value == "all" else tuple(filter(None, value.split(",")))
    for name in names:
        if name not in PEERS:
            raise click.BadParameter(f"{name!r} is none of {', '.join(PEERS)}")
    return names


def _say(line: str) -> None:
    click.echo(line, err=True)


def _listed() -> str:
    return "\n".join(f"  {name:<18} {each.about}" for name, each in BENCHMARKS.items())


@click.command(epilog=f"\b\nBenchmarks:\n{_listed()}")
@click.argument("names", nargs=-1, required=True, metavar="NAME…|all")
@click.option(
    "--json",
    "path",
    type=click.Path(dir_okay=False, path_type=Path),
    help="Write the results here.",
)
@click.option("--peers", callback=_names, default="", help=f"Some of {','.join(PEERS)}, or all.")
@click.option(
    "--messages", type=click.IntRange(0), default=0, help="0: as many as the benchmark takes."
)
@click.option(
    "--rounds", type=click.IntRange(0), default=0, help="0: as many as the benchmark takes."
)
@click.option("--quick", is_flag=True, help="A tenth of that and one round: to see that it works.")
@click.option("--procs", type=click.IntRange(1), default=1, help="Of drain: processes.")
@click.option("--async", "is_async", is_flag=True, help="Of drain: a coroutine as the handler.")
@click.option(
    "--server",
    type=click.Path(exists=True, dir_okay=False),
    help="A valkey-server or redis-server to measure with.  [default: the one of `qworker run`]",
)
@click.option(
    "--rtt",
    "rtt_ms",
    type=click.FloatRange(0),
    default=0.0,
    metavar="MS",
    help="Distance of the server in milliseconds, behind a relay, for all contenders.  [default: 0]",
)
@click.option(
    "--markdown", is_flag=True, help="Print a table of Markdown, as docs/benchmarks.md has it."
)
def main(
    names: tuple[str, ...],
    path: Path | None,
    peers: tuple[str, ...],
    messages: int,
    rounds: int,
    quick: bool,
    procs: int,
    is_async: bool,
    server: str | None,
    rtt_ms: float,
    markdown: bool,
) -> None:
    """Measure qworker beside the raw floor and peers, in one run; figures are medians, ratios are what counts."""
    chosen = (
        list(BENCHMARKS)
        if names == ("all",)
        else [_variant(name, procs, is_async) for name in names]
    )
    for name in chosen:
        if name not in BENCHMARKS:
            raise click.BadParameter(f"{name!r} is none of {', '.join(BENCHMARKS)}")
    plan = Plan(messages, rounds, peers, _say)
    Stand.binary, Stand.rtt_ms = server, rtt_ms
    try:
        with Stand() as stand:
            measured_with = stand.about()
    except StoreError as error:
        raise click.BadParameter(str(error), param_hint="--server") from error
    result: dict[str, Any] = {
        "results": [],
        "machine": environment(),
        "rtt_ms": rtt_ms,
        "versions": {"server": measured_with, **_versions()},
        "peers": {name: _about(name) for name in peers},
    }
    for name in chosen:
        _say(f"-- {name}: {BENCHMARKS[name].about}")
        result["results"] += [
            figure.row() for figure in BENCHMARKS[name].measure(plan, quick=quick)
        ]
        if path is not None:  # after each, so that a run that is ended early leaves what it has
            path.write_text(json.dumps(result, indent=2, ensure_ascii=False) + "\n")
    click.echo(
        "\n".join(lines(result["results"]))
        if markdown
        else json.dumps(result, indent=2, ensure_ascii=False)
    )


def _variant(name: str, procs: int, is_async: bool) -> str:
    if name != "drain":
        return name
    return " ".join(filter(None, [name, "--async" * is_async, f"--procs {procs}" * (procs > 1)]))


def _versions() -> dict[str, str]:
    return {name: version(name) for name in ("qworker-redis", "redis", "hiredis", "msgspec")}


def _about(name: str) -> dict[str, object]:
    try:
        return installed(PEERS[name], _say)
    except ContenderError as error:
        return {"error": str(error)}


if __name__ == "__main__":
    sys.exit(main())
