"""`qworker doctor` on groups."""

from __future__ import annotations

import pytest

from qworker.client.manage.limits import Limit, limit_of
from qworker.health.shared_limits import check_shared_limits


def groups_of(ran) -> dict[str, dict[str, str]]:
    """The findings about groups, by check."""
    found = {one["check"]: one for one in ran.json["findings"]}
    return {name: one for name, one in found.items() if name.startswith("groups")}


def test_a_slot_whose_delivery_is_gone_is_found(run, shop):
    """Its group waits for nothing; the repair that the fix names ends it."""
    queue = shop.queue("crm")
    queue.send_many([b"1", b"2", b"3"], group="acme", ordered=True)
    (message,) = queue.receive(1)
    assert groups_of(run("doctor", "--json")) == {}
    keys = shop.keys("crm")
    shop.ask("DEL", keys.unacked, keys.lease(message.receipt.lease_id))
    found = groups_of(run("doctor", "--json"))["groups.gone"]
    assert found["status"] == "problem"
    assert found["text"].endswith(": acme (ordered) of crm 1")
    assert "qworker fsck crm --repair" in found["fix"]
    run("fsck", "crm", "--repair", "--yes")
    assert groups_of(run("doctor", "--json")) == {}
    assert len(queue.receive(1)) == 1


def test_slots_of_a_batch_whose_lease_is_gone_are_found(run, shop):
    """They share a field; slots of a batch in flight are not named."""
    queue = shop.queue("crm")
    for _ in range(2):
        for group in ("acme", "shop"):
            queue.send(b"1", group=group, ordered=True)
    messages = queue.receive(5)
    assert len(messages) == 2
    assert groups_of(run("doctor", "--json")) == {}
    keys = shop.keys("crm")
    shop.ask("DEL", keys.unacked, keys.lease(messages[0].receipt.lease_id))
    found = groups_of(run("doctor", "--json"))["groups.gone"]
    assert found["text"].endswith(": acme (ordered) of crm 1, shop (ordered) of crm 1")
    run("fsck", "crm", "--repair", "--yes")
    assert groups_of(run("doctor", "--json")) == {}
    assert len(queue.receive(5)) == 2


def test_a_group_that_refuses_sends_is_a_problem(run, shop):
    """By its own limit or by one for each group; a group below it is not named."""
    queue = shop.queue("crm")
    queue.set_limit("*", max_waiting=2)
    queue.set_limit("big", max_waiting=9)
    for group in ("full", "big", "o'hara/x"):
        queue.send_many([b"1", b"2"], group=group)
    queue.send(b"1", group="small")
    found = groups_of(run("doctor", "--json"))["groups.full"]
    assert found["status"] == "problem"
    assert found["text"].endswith(": full of crm 2, o'hara/x of crm 2")
    assert found["fix"] == "add workers, or qworker limit set crm full --max-waiting N"


def test_a_queue_with_almost_as_many_groups_as_there_are_numbers_is_named(run, shop, monkeypatch):
    """Messages of further groups would be stored without their group."""
    for name, groups in (("crm", 60), ("mails", 40)):
        for number in range(groups):
            shop.queue(name).send(b"1", group=f"g{number}")
    assert groups_of(run("doctor", "--json")) == {}
    monkeypatch.setattr("qworker.health.groups._NUMBERS", 64)
    found = groups_of(run("doctor", "--json"))["groups.many"]
    assert found["status"] == "warning"
    assert found["text"].startswith(
        "of at most 64 groups with waiting messages these queues have: crm 6"
    )
    assert "mails" not in found["text"]
    assert found["fix"].endswith("qworker queue shards crm N")


def test_a_handler_that_holds_a_group_for_minutes_is_named(run, shop):
    """Also the one that takes the last slot of a parent; not one of a group that waits for its turn."""
    queue = shop.queue("crm")
    queue.set_limit("shops/", concurrency=1)
    queue.send_many([b"1", b"2"], group="shops/7")
    queue.send(b"3", group="free")
    messages = queue.receive(2)
    queue.send(b"4", group="free")
    running = [
        {"task": "sync_shop", "id": str(message.receipt), "seconds": 725.0} for message in messages
    ]
    shop.add_worker("web-1", children=[{"pid": 7, "running": running}])
    found = groups_of(run("doctor", "--json"))["groups.held"]
    assert found["status"] == "warning"
    assert found["text"].endswith(": shops/7 of crm for sync_shop in web-1, 12m05s")
    assert found["fix"].startswith("qworker worker stack web-1 ")
    running = [{**each, "seconds": 12.0} for each in running]
    shop.add_worker("web-1", children=[{"pid": 7, "running": running}])
    assert groups_of(run("doctor", "--json")) == {}


@pytest.mark.parametrize(("rate", "is_slow"), [("1/1h", True), ("2/1h", False)])
def test_a_rate_below_the_sends_is_named(run, shop, rate, is_slow):
    """If what waits takes over an hour to start; the groups of a parent count together."""
    queue = shop.queue("crm")
    queue.set_limit("acme/", rate=rate)
    queue.send_many([b"1", b"2"], group="acme/ann")
    queue.send(b"3", group="acme/bob")
    assert len(queue.receive(3)) == 1
    found = groups_of(run("doctor", "--json"))
    if not is_slow:
        assert found == {}
        return
    assert found["groups.rate"]["status"] == "warning"
    assert found["groups.rate"]["text"].endswith(": acme/ of crm 2, which takes 2h00m")
    assert found["groups.rate"]["fix"] == (
        "qworker limit set crm acme/ --rate N/s; "
        "or send less: qworker limit set crm 'acme/*' --max-waiting N refuses more"
    )


@pytest.mark.bad_input("data found: a key of groups of another type")
@pytest.mark.parametrize("part", ["turns", "limits"])
@pytest.mark.parametrize("waits", [True, False])
def test_a_broken_key_of_groups_is_a_finding(run, shop, part, waits):
    """Also if nothing waits: sends are refused. The repair that the fix names lets messages run again."""
    queue = shop.queue("crm")
    queue.send_many([b"1", b"2"], group="acme")
    if not waits:
        assert len(queue.receive(2)) == 2
    key = getattr(shop.keys("crm"), part)
    shop.ask("SET", key, "x")
    found = run("doctor", "--json").json["findings"]
    (broken,) = [one for one in found if key in one["text"]]
    assert broken["status"] == "problem"
    assert "qworker fsck crm --repair" in broken["fix"]
    run("fsck", "crm", "--repair", "--yes")
    assert groups_of(run("doctor", "--json")) == {}
    queue.send(b"3", group="acme")
    assert len(queue.receive(3)) == (3 if waits else 1)


def test_each_shard_is_looked_at(run, shop):
    """A group lives in one of them."""
    queue = shop.queue("crm")
    queue.divide(2)
    queue.set_limit("*", max_waiting=1)
    names = [f"g{number}" for number in range(8)]
    for name in names:
        queue.send(b"1", group=name)
    text = groups_of(run("doctor", "--json"))["groups.full"]["text"]
    assert text.endswith("and 3 more")


def test_limits_of_a_kind_hold_where_a_group_has_none(shop):
    """One by one, and a burst with its rate."""
    known = {
        "*": Limit(concurrency=1, weight=2.0),
        "acme/*": Limit(rate="1/s", burst=3),
        "acme/ann": Limit(rate="9/s", max_waiting=7),
        "*/": Limit(concurrency=50),
    }
    assert limit_of(known, "=acme/ann") == Limit(
        concurrency=1, rate="9/s", weight=2.0, max_waiting=7
    )
    assert limit_of(known, "acme/bob") == Limit(concurrency=1, rate="1/s", burst=3, weight=2.0)
    assert limit_of(known, "acme/") == Limit(concurrency=50)
    assert limit_of({}, "acme") == Limit()
    assert Limit(rate="5/10m").per_s == pytest.approx(5 / 600)


def test_queues_whose_groups_do_not_wait_are_not_read(run, shop):
    """A key that no reader of groups could read is not noticed there."""
    shop.queue("plain").send(b"1")
    queue = shop.queue("idle")
    queue.send(b"1", group="acme")
    queue.ack(queue.receive(1)[0])
    for name in ("plain", "idle"):
        shop.ask("DEL", shop.keys(name).limits)
        shop.ask("SET", shop.keys(name).limits, "x")
    assert groups_of(run("doctor", "--json")) == {}


def test_limits_over_several_queues_that_cannot_be_read(run, shop):
    """A key of another type is named; the queues keep their shares."""
    for name in ("crm", "billing"):
        shop.queue(name).create()
    shop.queue("crm").set_limit("stripe/", with_queues=["billing"], concurrency=2)
    shop.ask("SET", f"{shop.namespace}:limits", "other")
    (found,) = [
        one for one in run("doctor", "--json").json["findings"] if one["check"] == "limits.unread"
    ]
    assert found["status"] == "problem"
    assert f"{shop.namespace}:limits" in found["fix"]
    shop.queue("crm").send_many([b"1", b"2", b"3"], group="stripe/a")
    assert len(shop.queue("crm").receive(10)) == 1


def test_what_is_kept_for_a_queue_that_is_away(shop):
    """It is said how much of the limit the others cannot have."""
    for name in ("crm", "billing"):
        shop.queue(name).create()
    shop.queue("crm").set_limit("stripe/", with_queues=["billing"], concurrency=3, rate="60/m")

    class Away:
        namespace, client = shop.namespace, shop.queue("crm").client

    (found,) = check_shared_limits(Away(), {"billing"})
    assert found.text.endswith("stripe/ 2 of 3 slots and 50 % of 60/m") or found.text.endswith(
        "stripe/ 1 of 3 slots and 50 % of 60/m"
    )
    assert [*check_shared_limits(Away(), {"mails"})] == []
