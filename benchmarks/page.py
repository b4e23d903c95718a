"""Write the results of runs into docs/benchmarks.md.

    python -m benchmarks.page [--into NAME] FILE…

Each FILE is what `python -m benchmarks … --json FILE` has written. What stands between the page's markers
`<!-- NAME -->` and `<!-- end of NAME -->` is replaced: by the machine, a chart of rates, a table by size of batch, the
figures beside their goals, and the peers with versions and settings. NAME is `results` unless another is given.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import click

from benchmarks.figures import lines

__all__ = ["by_batch", "chart", "report", "with_report"]

_PAGE = Path(__file__).parent.parent / "docs" / "benchmarks.md"
_WIDTH = 60
#: Load per core above which a machine was busy.
_BUSY = 0.5


def report(results: Iterable[dict[str, Any]]) -> str:
    """Write the results of runs on one machine as one, with the highest load of them.

    A run with another server than the first one's has that in the names of its benchmarks.
    """
    runs = list(results)
    loads = [run["machine"]["load"] for run in runs]
    merged = {
        "results": [row for run in runs for row in _rows(run, runs[0]["versions"]["server"])],
        "machine": {**runs[0]["machine"], "load": max(loads)},
        "versions": runs[0]["versions"],
        "peers": {name: about for run in runs for name, about in run["peers"].items()},
    }
    return "\n".join(_section(merged))


def with_report(page: str, text: str, name: str = "results") -> str:
    """Give the page with the text between the markers of this name. Raises `ValueError` if it has none."""
    begin, end = f"<!-- {name} -->", f"<!-- end of {name} -->"
    head, _, rest = page.partition(begin)
    _, found, tail = rest.partition(end)
    if not found:
        raise ValueError(f"the page has no markers {begin} and {end}")
    return f"{head}{begin}\n\n{text}\n{end}{tail}"


def chart(rows: Iterable[dict[str, Any]]) -> list[str]:
    """Draw the rates of `drain` as bars, the fastest as long as the chart is wide."""
    rates = {
        row["measure"]: row["value"]
        for row in rows
        if row["name"] == "drain" and row["unit"] == "messages/s"
    }
    if not rates:
        return []
    width, most = max(map(len, rates)), max(rates.values())
    bars = [
        f"{name:<{width}}  {'█' * max(1, round(_WIDTH * rate / most))} {rate:,}"
        for name, rate in sorted(rates.items(), key=lambda each: -each[1])
    ]
    return ["`drain`, messages per second:", "", "```text", *bars, "```", ""]


def by_batch(rows: Iterable[dict[str, Any]]) -> list[str]:
    """Write the rows of `batches` as a table with a column per size of a batch."""
    table: dict[tuple[str, str], dict[str, str]] = {}
    for row in rows:
        contender, _, rest = row["measure"].partition(", ")
        size, _, measure = rest.partition(": ")
        cells = table.setdefault((contender, f"{measure}, {row['unit']}"), {})
        cells[size] = f"{row['value']:,} ({row['lowest']:,} – {row['highest']:,})"
    if not table:
        return []
    sizes = list(dict.fromkeys(size for cells in table.values() for size in cells))
    return [
        f"| batches | | {' | '.join(sizes)} |",
        f"| --- | --- |{' ---: |' * len(sizes)}",
        *(
            f"| {' | '.join([*name, *(cells.get(size, '–') for size in sizes)])} |"
            for name, cells in table.items()
        ),
        "",
    ]


def _rows(run: dict[str, Any], usual: str) -> list[dict[str, Any]]:
    server = run["versions"]["server"]
    if server == usual:
        rows: list[dict[str, Any]] = run["results"]
        return rows
    return [{**row, "name": f"{row['name']}, {server}"} for row in run["results"]]


def _section(result: dict[str, Any]) -> Iterator[str]:
    machine, versions = result["machine"], result["versions"]
    yield (
        f"{machine['cores']} cores ({machine['machine']}, {machine['system']}), Python {machine['python']}, "
        f"{', '.join(f'{name} {each}' for name, each in versions.items())}."
    )
    yield ""
    if machine["load"] > _BUSY * machine["cores"]:
        yield (
            f"**Preliminary**: others used the machine when a run began (load average up to {machine['load']}), so "
            "rates and times are worse than they need be, and goals missed here may be met; ratios suffer less."
        )
        yield ""
    yield from chart(result["results"])
    batches = [
        row
        for row in result["results"]
        if row["name"].startswith("batches") and row["value"] is not None
    ]
    yield from by_batch(batches)
    yield from lines([row for row in result["results"] if row not in batches])
    yield ""
    if result["peers"]:
        yield from ["| peer | guarantee | settings | versions |", "| --- | --- | --- | --- |"]
    for name, about in result["peers"].items():
        if "error" in about:
            yield f"| {name} | – | could not be installed | – |"
        else:
            versions = ", ".join(_named(name, about["versions"]))
            yield f"| {name} | {about['guarantee']} | {about['settings']} | {versions} |"
    if result["peers"]:
        yield ""


def _named(peer: str, versions: list[str]) -> Iterator[str]:
    """The packages that say how fast a peer is."""
    for version in versions:
        package, _, number = version.partition("==")
        if package.startswith(peer) or package in ("kombu", "redis", "hiredis", "uvloop", "orjson"):
            yield f"{package} {number}"


@click.command()
@click.argument("files", nargs=-1, required=True, type=click.Path(exists=True, path_type=Path))
@click.option("--into", "name", default="results", show_default=True, help="The markers' name.")
def main(files: tuple[Path, ...], name: str) -> None:
    """Write the results of FILES into docs/benchmarks.md."""
    results = [json.loads(file.read_text("utf-8")) for file in files]
    text = with_report(_PAGE.read_text("utf-8"), report(results), name)
    _PAGE.write_text(text, "utf-8")


if __name__ == "__main__":
    main()
