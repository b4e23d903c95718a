"""Another program has put another type into a key of the data model: tools name the key, its type and what to do."""

from __future__ import annotations

import inspect

import pytest

from qworker.wire import keys as wire
from tests.cli.conftest import table

NAMESPACE_KEYS = [key.removeprefix("ns:") for key in wire.namespace_types("ns")]
PARTS = [key.rpartition("}:")[2] for key in wire.QueueKeys("ns", "q").all()]
pytestmark = pytest.mark.bad_input("data found: key of another type")


def break_key(shop, key: str) -> str:
    """Put another type there; returns that type."""
    shop.ask("DEL", key)
    shop.ask("SET", key, "not ours")
    return "string"


def problems(ran, key: str) -> list[dict[str, str]]:
    """What the doctor says about a key, without what is ok."""
    return [one for one in ran.json["findings"] if key in one["text"] and one["status"] != "ok"]


def test_the_table_has_every_key_of_a_namespace():
    """All functions that name one, but for those of a single request."""
    named = {
        function("ns")
        for name, function in vars(wire).items()
        if name.endswith("_key") and [*inspect.signature(function).parameters] == ["namespace"]
    }
    assert named == set(wire.namespace_types("ns"))
    assert set(wire.QueueKeys("ns", "q").types()) == set(wire.QueueKeys("ns", "q").all())


@pytest.mark.slow
def test_doctor_names_each_key_of_the_namespace(run, shop):
    """Once, with what to do; sends and receives go on, and `queue ls` shows the queue."""
    shop.send("emails")
    for name in NAMESPACE_KEYS:
        key = f"{shop.namespace}:{name}"
        break_key(shop, key)
        found = problems(run("doctor", "--json"), f"'{key}'")
        assert len(found) == 1, (name, found)
        assert found[0]["fix"]
        shop.send("emails")
        assert len(shop.queue("emails").receive(1)) == 1
        ran = run("queue", "ls", "--json")
        assert [queue["queue"] for queue in ran.json["queues"]] == ["emails"], ran
        shop.ask("DEL", key)
        shop.ask("HSET", wire.queues_key(shop.namespace), "emails", 1)


@pytest.mark.slow
def test_doctor_and_ls_name_each_key_of_a_queue(run, shop):
    """Also keys that the queue does not use now. The other queue is served."""
    shop.send("other")
    for number, part in enumerate(PARTS):
        name = f"q{number}"
        shop.send(name)
        key = f"{shop.namespace}:{{{name}}}:{part}"
        kind = break_key(shop, key)
        found = problems(run("doctor", "--json"), key)
        assert [one["check"] for one in found][:1] == [f"queue.{name}"], (part, found)
        assert f"holds a {kind}" in found[0]["text"]
        assert f"qworker fsck {name} --repair" in found[0]["fix"]
        ran = run("queue", "ls")
        states = {row["QUEUE"]: row["STATE"] for row in table(ran.lines)}
        assert (states["other"], states[name]) == ("ok", "broken"), part
        assert f"{name} is broken: key '{key}' holds a {kind}" in ran.err
        run("fsck", name, "--repair", "--yes")
        assert problems(run("doctor", "--json"), key) == [], part
