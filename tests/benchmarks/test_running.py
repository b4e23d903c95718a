"""Benchmarks run, tiny and without peers: what they find does not matter here."""

from __future__ import annotations

import json
import os
import subprocess
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from click.testing import CliRunner

from benchmarks import network, slow
from benchmarks.__main__ import main
from benchmarks.catalog import BENCHMARKS
from benchmarks.figures import lines
from benchmarks.peers.catalog import PEERS
from benchmarks.stand import PAD, Plan, Stand
from tests.consumer.forkserver import Order, WarmProcess, can_fork, fork_server
from tests.servers import binary_of

pytestmark = pytest.mark.slow


@pytest.fixture(autouse=True)
def _warm_starts(monkeypatch: pytest.MonkeyPatch) -> None:
    """Fork what writes to a file, which are workers and daemons, from a process that has imported already."""
    if can_fork():
        warm = SimpleNamespace(**{**vars(subprocess), "Popen": _start})
        monkeypatch.setattr("benchmarks.stand.subprocess", warm)


def _start(words: list[str], **options: Any) -> WarmProcess | subprocess.Popen[str]:
    if options["stdout"] == subprocess.PIPE:
        return subprocess.Popen(words, **options)
    module, *arguments = words[words.index("-m") + 1 :]
    order = Order(module, arguments, os.getcwd(), options["env"])
    return fork_server().start(order, options["stdout"])


def _rows(name: str, messages: int) -> dict[str, dict[str, object]]:
    figures = BENCHMARKS[name].measure(Plan(messages, 1, (), lambda line: None))
    rows = [figure.row() for figure in figures]
    assert all(row["name"] == name for row in rows)
    assert len(lines(rows)) == 2 + len(rows)
    return {str(row["measure"]): row for row in rows}


def test_cost_counts_round_trips_of_a_whole_life() -> None:
    rows = _rows("cost", 2000)
    assert 0.02 <= rows["qworker: round trips"]["value"] < 0.1
    beside, alone = (rows[f"qworker{of}: commands"]["value"] for of in (", beside a tombstone", ""))
    assert alone < beside < alone + 0.1
    assert rows["LPUSH + RPOP, pipelines of 100: commands"]["value"] == pytest.approx(2, abs=0.1)


@pytest.mark.nightly("test_cost_counts_round_trips_of_a_whole_life")
def test_lone_sends_and_receives_each_message_by_a_call_of_its_own() -> None:
    rows = _rows("lone", 500)
    assert rows["qworker: commands"]["goal"] == "≤ 18"
    assert 2 <= rows["qworker: round trips"]["value"] < 3
    assert rows["LPUSH + RPOPLPUSH + LREM, one a trip: round trips"]["value"] == pytest.approx(
        3, abs=0.1
    )
    assert rows["server CPU to three bare commands"]["goal"] == "≤ 1.6"


@pytest.mark.nightly("test_cost_counts_round_trips_of_a_whole_life")
def test_a_message_is_cheaper_in_larger_batches(monkeypatch: pytest.MonkeyPatch) -> None:
    sizes = (1, 10)
    monkeypatch.setattr("benchmarks.batches._SIZES", sizes)
    rows = _rows("batches", 300)
    trips = [rows[f"qworker, {size} at a time: round trips"]["value"] for size in sizes]
    assert trips == sorted(trips, reverse=True)


def test_only_a_server_with_snapshots_loses_sends_when_it_is_killed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """It is killed while senders wait for its replies: with an append-only file no confirmed send is lost."""
    monkeypatch.setattr("benchmarks.crash._BALLAST", 15 * 2**19)  # of 8 MiB: the disk is soon full
    rows = _rows("crash", 100)
    assert rows["snapshots: lost"]["value"] == rows["snapshots: confirmed"]["value"] > 0
    for name in ("everysec", "always"):
        assert rows[f"{name}: confirmed"]["value"] > 0
        assert rows[f"{name}: lost"]["met"]


@pytest.mark.needs("starlette", "jinja2", "uvicorn")
def test_the_first_page_of_the_dashboard_is_small(monkeypatch: pytest.MonkeyPatch) -> None:
    """With its style sheet, scripts and icon."""
    monkeypatch.setattr("benchmarks.dashboard._LOOKS_S", 0.2)
    monkeypatch.setattr("benchmarks.dashboard._SETTLES_S", 0.2)
    rows = _rows("dashboard", 20)
    page = rows["20 queues: the first page with its files, over the wire"]
    assert 10 < page["value"] < 60
    assert page["goal"] == "≤ 60"
    assert rows["20 queues: CPU of the dashboard per page"]["value"] > 0


def test_drain_is_compared_with_redis_without_acks() -> None:
    rows = _rows("drain --async", 300)
    assert rows["qworker"]["value"] > 0
    assert rows["to redis-py LPOP 100, msgspec, no acks"]["unit"] == "×"


def test_sending_is_compared_with_a_bare_push() -> None:
    assert _rows("send", 500)["one at a time to redis-py RPUSH"]["goal"] == "≥ 0.75"


@pytest.mark.nightly("test_drain_is_compared_with_redis_without_acks")
def test_runs_tells_what_a_step_and_a_sleeping_run_take() -> None:
    rows = _rows("runs", 40)
    assert rows["qworker, run: a step"]["value"] > 0
    assert rows["server CPU of recording a step, to an ack"]["goal"] == "≤ 1.6"
    assert 100 < rows["a sleeping run of two steps"]["value"] < 2000


@pytest.mark.nightly("test_drain_is_compared_with_redis_without_acks")
def test_slow_handlers_are_told_with_what_they_cost_the_server(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    threads, coroutines, processes = slow._CASES[:3]
    fewer = (replace(threads, procs=1), coroutines, replace(processes, procs=2))
    monkeypatch.setattr("benchmarks.slow._CASES", fewer)
    rows = _rows("slow", 100)
    assert rows["qworker, 64 coroutines of 20 ms"]["goal"] == "≥ 95"
    assert rows["qworker, 8 processes of 20 ms: server CPU"]["value"] > 0


def test_idle_measures_every_message() -> None:
    assert _rows("idle", 10)["qworker: p50"]["value"] > 0


@pytest.mark.nightly("test_idle_measures_every_message")
def test_a_lone_message_takes_a_round_trip_more_from_a_distant_server(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("benchmarks.network._DISTANCES", {5: network._DISTANCES[5]})
    monkeypatch.setattr("benchmarks.network._SENT", 50)
    monkeypatch.setattr("benchmarks.network._PACED", 10)
    rows = _rows("network", 200)
    row = rows["start of a lone message, 5 ms away, beyond its local time"]
    assert (row["unit"], row["goal"]) == ("round trips", "≤ 1.5")
    assert rows["drain, 5 ms away to its own rate"]["goal"] == "≥ 0.6"
    # It is away for the worker, too: nothing starts sooner than a round trip.
    row = rows["qworker, 5 ms away: idle"]
    assert row["unit"] == "ms"
    assert row["value"] >= 5
    assert Stand.rtt_ms == 0


@pytest.mark.nightly("test_drain_is_compared_with_redis_without_acks")
def test_groups_are_compared_with_messages_without() -> None:
    assert _rows("groups", 300)["a group each"]["value"] > 0


@pytest.mark.nightly("test_drain_is_compared_with_redis_without_acks")
def test_expired_leases_are_all_given_back() -> None:
    assert _rows("expire", 300)["messages given back"]["value"] > 0


@pytest.mark.nightly("test_idle_measures_every_message")
def test_many_queues_are_compared_with_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("benchmarks.many._QUEUES", (1, 200))
    rows = _rows("many", 3)
    assert rows["200 queues: p99"]["goal"] == "≤ 25"
    assert rows["worker, 200 queues to 1 queue"]["goal"] == "≤ 1.2"


def test_memory_knows_the_three_states() -> None:
    rows = _rows("memory", 2000)
    assert rows["ready"]["value"] > len(PAD)
    assert rows["delayed"]["value"] > rows["ready"]["value"]
    assert "unacked" in rows


def test_length_goes_up_by_tens(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("benchmarks.length._WORKED", 1000)
    assert "server CPU at 10,000 to 1,000 messages" in _rows("length", 10_000)


@pytest.mark.nightly("test_cost_counts_round_trips_of_a_whole_life")
def test_scrapes_are_measured_of_a_daemon_and_a_worker() -> None:
    rows = _rows("scrape", 100)
    assert rows["daemon, 100 queues: first scrape"]["goal"] == "≤ 2"
    assert rows["daemon, 100 queues: size"]["value"] > 0.1
    assert rows["worker, 20 tasks and queues: size"]["value"] > 0.08


@pytest.mark.nightly("test_length_goes_up_by_tens")
def test_pauses_are_listed_per_script_of_each_verb(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of the small messages and of the large bodies, with the goal of each, and reads without a script."""
    monkeypatch.setattr("benchmarks.pauses._LARGE", {"1 MiB": 2**20})
    monkeypatch.setattr("benchmarks.pauses_verbs._PASSES", 1)
    monkeypatch.setattr("benchmarks.pauses_verbs._SAMPLES", 5)
    rows = _rows("pauses", 100)
    assert rows["100 small, delete: delete: max"]["goal"] == "≤ 20"
    assert rows["1 MiB, redrive: redrive: p99"]["goal"] == "≤ 5"
    assert 0 < rows["1 MiB, show: LRANGE: p50"]["value"] < rows["1 MiB, send: send: p50"]["value"]
    assert rows["1 MiB, floor: script that copies one: p50"]["goal"] is None
    assert rows["1 MiB, reap: reap: to the copy"]["unit"] == "×"


def test_the_command_line_writes_results_with_machine_and_versions(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Stand, "binary", None)
    file = tmp_path / "results.json"
    words = ["memory", "--messages", "500", "--rounds", "1", "--markdown", "--json", str(file)]
    words += ["--server", binary_of("redis")]
    done = CliRunner().invoke(main, words, catch_exceptions=False)
    assert done.exit_code == 0
    written = json.loads(file.read_text())
    assert {"results", "machine", "rtt_ms", "versions", "peers"} == set(written)
    assert {"name", "measure", "value", "unit", "goal", "met"} <= set(written["results"][0])
    assert written["versions"]["server"].startswith("redis 7.")
    assert "| memory | ready |" in done.stdout


@pytest.mark.parametrize(
    "words",
    [["nothing"], ["cost", "--peers", "nobody"], [], ["cost", "--server", __file__]],
    ids=["unknown benchmark", "unknown peer", "no name", "no server"],
)
def test_a_wrong_argument_is_refused(words: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Stand, "binary", None)
    assert CliRunner().invoke(main, words).exit_code == 2


def test_every_peer_has_a_driver() -> None:
    drivers = Path(__file__).parents[2] / "benchmarks" / "peers"
    assert [name for name in PEERS if not (drivers / f"{name}.py").exists()] == []
    assert all("==" in pin for peer in PEERS.values() for pin in peer.requires)
