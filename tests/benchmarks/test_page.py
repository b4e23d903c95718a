"""The page of results is written from what runs have written, and from nothing else."""

from __future__ import annotations

from pathlib import Path

import pytest

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


def test_costs_by_size_of_batch_are_a_table_of_their_own() -> None:
    rows = [
        measured("batches", f"{each}: server CPU", [value], "µs/message").row()
        for each, value in {
            "qworker, 1 at a time": 50.0,
            "qworker, 10 at a time": 8.0,
            "rq, no such setting": 400.0,
        }.items()
    ]
    text = report([{**_result(0.1), "results": rows}])
    assert "| batches | | 1 at a time | 10 at a time | no such setting |" in text
    assert "| qworker | server CPU, µs/message | 50.0 (50.0 – 50.0) | 8.0 (8.0 – 8.0) | – |" in text
    assert "| rq | server CPU, µs/message | – | – | 400.0 (400.0 – 400.0) |" in text


def test_only_text_between_the_markers_is_replaced() -> None:
    page = Path(__file__).parents[2].joinpath("docs/benchmarks.md").read_text("utf-8")
    once = with_report(page, "figures")
    assert "\n<!-- results -->\n\nfigures\n<!-- end of results -->" in once
    assert with_report(once, "figures") == once
    assert once.partition("<!-- results -->")[0] == page.partition("<!-- results -->")[0]
    with pytest.raises(ValueError, match="no markers <!-- nothing -->"):
        with_report(page, "figures", "nothing")
