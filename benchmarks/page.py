"""Write the results of runs into docs/benchmarks.md.

    python -m benchmarks.page FILE…

Each FILE is what `python -m benchmarks … --json FILE` has written. What stands between the page's two markers is
replaced: by the machine, a chart of rates, the figures beside their goals, and the peers with versions and settings.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from benchmarks.figures import lines

__all__ = ["chart", "report", "with_report"]

_PAGE = Path(__file__).parent.parent / "docs" / "benchmarks.md"
_BEGIN, _END = "<!-- results -->", "<!-- end of results -->"
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


def with_report(page: str, text: str) -> str:
    """Give the page with the text between its markers."""
    head, _, rest = page.partition(_BEGIN)
    _, _, tail = rest.partition(_END)
    return f"{head}{_BEGIN}\n\n{text}\n{_END}{tail}"


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
    yield from lines(result["results"])
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
    for each in versions:
        package, _, number = each.partition("==")
        if package.startswith(peer) or package in ("kombu", "redis", "hiredis", "uvloop", "orjson"):
            yield f"{package} {number}"


def main(files: list[str]) -> int:
    """Write the page."""
    page = _PAGE.read_text("utf-8")
    results = [json.loads(Path(file).read_text("utf-8")) for file in files]
    _PAGE.write_text(with_report(page, report(results)), "utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
