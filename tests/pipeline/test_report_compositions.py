"""Runs and groups of calls in a report: their figures and their cards."""

from __future__ import annotations

from typing import Any

import pytest

from qworker.pipeline.report import Scope, make_document, render
from tests.pipeline.forging import Journal, at, frame
from tests.pipeline.random_days import group, step


def journals() -> list[Journal]:
    """Runs of two workflows, and groups of two queues, within ten minutes."""
    orders, video = Journal("orders"), Journal("video")
    orders.write("a", "sent@0 delivered@10", task="order")
    step(orders, "a", "charge", 20)
    orders.write("a", "released@30:sleep", task="order")
    # It was due at 1020; a wait has no due time, and its `promoted` the time of the send.
    due = {"attempt": 0, "sent_ts": at(0), "ready_ts": at(1020), "task": "order"}
    orders.add(event="promoted", message_id="a", ts=at(1030), **due)
    orders.write("a", "delivered@1040", task="order")
    step(orders, "a", "!go", 1050)
    step(orders, "a", "ship", 1055)
    orders.write("a", "released@1060:signal promoted@3060 delivered@3070 acked@4000", task="order")
    orders.write("b", "sent@100 delivered@110", task="order")
    step(orders, "b", "charge", 120)
    orders.write("b", "dead@130:max_receives", task="order")
    orders.write("c", "sent@200 delivered@210 released@220:signal", task="order")
    orders.write("d", "sent@300 delivered@310 released@320:gather cancelled@900", task="ingest")
    orders.write(
        "plain", "sent@0 delivered@10 released@20 delivered@30 acked@40", task="send_email"
    )
    group(orders, "d.1f", 315, 900, outcome="cancelled", follows="d")
    group(video, "v1", 0, 2000)
    group(video, "v2", 10, 20, outcome="failed", size=5)
    group(video, "v3", 50)
    group(video, "v4", 590_000)
    video.write("last", "sent@600000")
    return [orders.sort(), video.sort()]


@pytest.fixture(scope="module")
def document(spark: Any) -> dict[str, Any]:
    return make_document(frame(spark, *journals()), Scope("shop", "an archive"))


def test_runs_are_counted_by_workflow_and_state(document):
    """A plain message that was given back is none; a wait that is over is no step."""
    rows = {row["task"]: row for row in document["runs"]["workflows"]}
    assert set(rows) == {"order", "ingest"}
    order = rows["order"]
    states = ("runs", "completed", "dead", "open", "cancelled", "otherwise", "steps")
    assert [order[name] for name in states] == [3, 1, 1, 1, 0, 0, 3]
    assert order["p50_ms"] == order["p99_ms"] == 4000
    assert [rows["ingest"][name] for name in ("runs", "cancelled", "p50_ms")] == [1, 1, None]


def test_waits_are_counted_until_the_run_is_ready_again(document):
    """By what was waited for; a wait that goes on is not counted yet."""
    waits = {(row["task"], row["reason"]): row for row in document["runs"]["waits"]}
    assert {key: (row["waits"], row["p50_ms"]) for key, row in waits.items()} == {
        ("order", "sleep"): (1, 990),
        ("order", "signal"): (1, 2000),
        ("ingest", "gather"): (1, 0),
    }


def test_the_longest_open_ones_are_named_with_their_age(document):
    """And are late if they are open for longer than the others took."""
    (run,) = document["runs"]["open"]
    assert (run["id"], run["queue"], run["waits_for"], run["steps"]) == ("c", "orders", "signal", 0)
    assert (run["age_ms"], run["late"]) == (600_000 - 200, True)
    assert [
        (row["id"], row["calls"], row["age_ms"], row["late"]) for row in document["groups"]["open"]
    ] == [("v3", 3, 599_950, True), ("v4", 3, 10_000, True)]


def test_groups_are_counted_by_queue_and_outcome(document):
    """With their sizes, and the time until their decision."""
    rows = {row["queue"]: row for row in document["groups"]["queues"]}
    states = ("groups", "ok", "failed", "cancelled", "otherwise", "open", "calls", "largest")
    assert [rows["video"][name] for name in states] == [4, 1, 1, 0, 0, 2, 14, 5]
    assert (rows["video"]["p50_ms"], rows["video"]["p99_ms"]) == (10, 2000)
    assert [rows["orders"][name] for name in states] == [1, 0, 0, 1, 0, 0, 3, 3]


def test_the_page_has_cards_of_runs_and_groups(document):
    """Only if there are any."""
    page = render(document)
    for words in ("Runs by workflow", "What runs wait for", "Longest open groups of calls", "v3"):
        assert words in page
    for name in ("runs", "groups"):
        assert page.count(f'data-figure="{name}"') == 1
    empty = {
        **document,
        "runs": {"workflows": [], "waits": [], "open": []},
        "groups": {"queues": [], "open": []},
    }
    assert "Runs by workflow" not in render(empty)
