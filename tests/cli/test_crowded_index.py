"""An index of queues with many entries that are no queues: tools find the queues by their keys instead."""

from __future__ import annotations

import pytest

from qworker.client.namespace.queues import listed
from qworker.client.plan import run_plan
from qworker.errors import BrokenQueueError
from qworker.monitor.namespace import SampledQueues
from qworker.wire.keys import queues_key

MOST = 20


@pytest.fixture(autouse=True)
def most(monkeypatch):
    """Let tools give the index up after a few such entries."""
    for module in ("qworker.client.namespace.queues", "qworker.monitor.namespace"):
        monkeypatch.setattr(f"{module}.MAX_ABSENT", MOST)


def fill(shop, number: int, pattern: str = "foreign{}") -> str:
    """Write entries that are no queues; returns the key of the index."""
    key = queues_key(shop.namespace)
    fields = [word for at in range(number) for word in (pattern.format(at), 1)]
    shop.ask("HSET", key, *fields)
    return key


def index_of(ran) -> list[dict[str, str]]:
    """What the doctor says about the index."""
    return [one for one in ran.json["findings"] if one["check"] == "index"]


@pytest.mark.slow
@pytest.mark.bad_input("data found: nonsense in other tables")
@pytest.mark.parametrize("pattern", ["foreign{}", "NO QUEUE {}"])
def test_queues_are_found_by_their_keys(run, shop, pattern):
    """`queue ls` and `doctor` show the queues, and say what is wrong and what to do; `schedule ls` works."""
    shop.send("emails")
    key = fill(shop, MOST + 1, pattern)

    ran, found = run("queue", "ls", "--json"), index_of(run("doctor", "--json"))

    assert [queue["queue"] for queue in ran.json["queues"]] == ["emails"]
    problem = f"key '{key}' holds a hash with over {MOST} entries without a queue"
    assert ran.err.startswith(f"the index of queues cannot be used ({problem}")
    assert ran.err.endswith("scanning the keys instead\n")
    (finding,) = found
    assert (finding["status"], problem in finding["text"]) == ("warning", True)
    assert "qworker fsck --repair" in finding["fix"]
    assert run("schedule", "ls", "--json").json == {"schedules": []}
    run("fsck", "--repair", "--yes")
    assert index_of(run("doctor", "--json")) == []


def test_as_many_entries_as_allowed_change_nothing(run, shop):
    """Queues that were just removed leave entries behind until a reaper removes those."""
    shop.send("emails")
    fill(shop, MOST)
    ran = run("queue", "ls", "--json")
    assert [queue["queue"] for queue in ran.json["queues"]] == ["emails"]
    assert ran.err == ""
    assert index_of(run("doctor", "--json")) == []


def test_a_dashboard_finds_the_queues_as_well(shop):
    """It says that they are not from the index, until they are again."""
    shop.send("emails")
    key = fill(shop, MOST + 1)
    queues = SampledQueues(shop.client, shop.namespace)
    assert [*queues.list()] == ["emails"]
    assert f"over {MOST} entries" in str(queues.unlisted)
    shop.ask("DEL", key)
    shop.ask("HSET", key, "emails", 1)
    assert [*queues.list()] == ["emails"]
    assert queues.unlisted is None


@pytest.mark.slow
def test_the_rest_of_such_an_index_is_not_read(shop):
    """What it costs a tool is bounded, however many entries there are."""
    fill(shop, 3_000)
    calls = []

    def execute(command):
        calls.append(command)
        return shop.client.execute(command)

    assert run_plan(execute, listed(shop.namespace)) == {}
    whole = len(calls)
    calls.clear()
    with pytest.raises(BrokenQueueError, match="over 500 entries without a queue"):
        run_plan(execute, listed(shop.namespace, most_absent=500))
    assert len(calls) < whole / 2
