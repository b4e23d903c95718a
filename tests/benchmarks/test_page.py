"""The page of results is written from what runs have written, and from nothing else."""

from __future__ import annotations

from pathlib import Path

from benchmarks.figures import at_least, measured
from benchmarks.page import report, with_report


def _result(load: float) -> dict[str, object]:
    rates = {"qworker": 1000.0, "rq": 100.0}
    return {
        "results": [
            measured("drain", name, [rate], "messages/s", at_least(500)).row()
            for name, rate in rates.items()
        ],
        "machine": {
            "cores": 2,
            "machine": "x86_64",
            "system": "Linux",
            "python": "3",
            "load": load,
        },
        "versions": {"server": "valkey 9"},
        "peers": {
            "rq": {"versions": ["rq==2.12.0", "six==1"], "settings": "quiet", "guarantee": "acks"},
            "arq": {"error": "no network"},
        },
    }


def test_a_report_shows_figures_goals_and_peers() -> None:
    text = report([_result(0.1)])
    assert "| drain | rq | 100.0 | 100.0 – 100.0 | messages/s | ≥ 500 | **no** |" in text
    assert "| rq | acks | quiet | rq 2.12.0 |" in text
    assert "| arq | – | could not be installed | – |" in text
    bars = [line for line in text.splitlines() if "█" in line]
    assert [line.count("█") for line in bars] == [60, 6]


def test_figures_of_a_busy_machine_are_called_preliminary() -> None:
    assert "Preliminary" in report([_result(4.0)])
    assert "Preliminary" not in report([_result(0.1)])


def test_another_server_is_named_beside_its_figures() -> None:
    other = {**_result(0.1), "versions": {"server": "redis 7 (jemalloc)"}}
    text = report([_result(0.1), other])
    assert "server valkey 9." in text
    assert "| drain | rq |" in text
    assert "| drain, redis 7 (jemalloc) | rq |" in text
    assert len([line for line in text.splitlines() if "█" in line]) == 2


def test_only_what_stands_between_the_markers_is_replaced() -> None:
    page = Path(__file__).parents[2].joinpath("docs/benchmarks.md").read_text("utf-8")
    once = with_report(page, "figures")
    assert "\n<!-- results -->\n\nfigures\n<!-- end of results -->" in once
    assert with_report(once, "figures") == once
    assert once.partition("<!-- results -->")[0] == page.partition("<!-- results -->")[0]
