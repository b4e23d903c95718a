"""Groups of calls: who is next, limits, order, and what a wrong name or option says."""

from __future__ import annotations

import asyncio
import time
from typing import Any

import pytest

from qworker import QWorker, RateLimited, chain, every
from qworker.client.manage.limit_load import limit_loads
from qworker.client.manage.limits import waits_for
from qworker.durations import duration_ms
from qworker.engine.raw import raw
from qworker.engine.receive import settle_receive
from qworker.engine.send import NewMessage, send
from qworker.engine.settle import Outcomes, settle
from qworker.errors import BrokenQueueError, GroupFullError, InvalidOptionError
from qworker.testing import advance, drain
from qworker.wire.envelope import Envelope, tail
from qworker.wire.schedule import StoredSchedule


def received(app: QWorker, queue: str, lease: str, count: int = 100) -> list[str]:
    """The bodies of a receive from the first shard."""
    batch = app.client.execute(settle_receive(app.queue(queue).keys, lease, count))
    found = [Envelope.parse(item) for item in batch.items]
    return [envelope.body.decode() for envelope in found if envelope is not None]


def test_calls_take_turns_by_the_group_of_their_arguments(app: QWorker) -> None:
    """Of sync and async sends, single and many; a group of the send goes before that of the task."""
    seen: list[str] = []

    @app.task(queue="mail", group=lambda tenant, number: f"crm/{tenant}")
    def push(tenant: str, number: int) -> None:
        seen.append(f"{tenant}{number}")

    push.send_many([push.call("a", number) for number in range(3)])
    push.send("b", 0)
    push.options(group="other").send("c", 0)

    async def send() -> None:
        await push.asend("b", 1)
        await app.aclose()

    asyncio.run(send())
    assert app.queue("mail").inspect().grouped == 6
    assert {group.name for group in app.queue("mail").groups()} == {
        "crm/a",
        "crm/b",
        "other",
        "crm/",
    }
    assert drain(app).handled == 6
    assert sorted(seen) == ["a0", "a1", "a2", "b0", "b1", "c0"]
    assert seen[:3] == ["a0", "c0", "b0"]
    assert app.queue("mail").groups() == []


def test_tasks_share_the_limits_of_a_key(app: QWorker) -> None:
    """By name and by a function of the arguments; with groups of the task, of a send, and without."""

    @app.task(queue="billing", limit_key="stripe")
    def charge(order: int) -> None: ...

    @app.task(queue="billing", limit_key="stripe", group=lambda tenant: tenant, ordered=True)
    def refund(tenant: str) -> None: ...

    @app.task(queue="mail", limit_key=lambda to: None if to == "none" else "stripe")
    def mail(to: str) -> None: ...

    app.queue("billing").set_limit("stripe/", concurrency=3)
    charge.send(1)
    refund.send_many(refund.call("acme") for _ in range(3))
    charge.options(group="vip").send(2)
    charge.options(group="vip").send(3)
    mail.send("someone")
    mail.send("none")
    names = {group.name for group in app.queue("billing").groups()}
    assert names == {"stripe/", "stripe/all", "=stripe/acme", "stripe/vip"}
    assert [group.name for group in app.queue("mail").groups()] == ["stripe/all", "stripe/"]
    assert len(received(app, "billing", "l1")) == 3
    assert received(app, "billing", "l2") == []
    app.queue("billing").set_limit("stripe/", concurrency=4)
    assert len(received(app, "billing", "l3")) == 1


@pytest.mark.parametrize("key", ["", "a/b", "a*", "=a", 7, "k" * 129, "a\nb"])
def test_wrong_keys_of_limits(app: QWorker, key: Any) -> None:
    """As an option and as what a function returns; the message says which task and what a key is."""
    with pytest.raises(InvalidOptionError, match="limit_key"):
        app.task(name="a", limit_key=key)(lambda: None)
    wrong = app.task(name="b", queue="mail", limit_key=lambda: key)(lambda: None)
    with pytest.raises(InvalidOptionError, match="limit_key of task b"):
        wrong.send()
    assert app.queue("mail").groups() == []


def test_keys_of_limits_that_do_not_fit(app: QWorker) -> None:
    """With a group that has a parent, a priority, and as a later step whose arguments are not known."""
    task = app.task(name="a", queue="mail", limit_key="k", group="x/y")(lambda: None)
    with pytest.raises(InvalidOptionError, match="leave out the part before the slash"):
        task.send()
    with pytest.raises(InvalidOptionError, match="limit_key"):
        app.task(name="b", limit_key="k", priority=2)(lambda: None)
    with pytest.raises(InvalidOptionError, match="did you mean limit_key"):
        app.task(name="c", rate_limit="1/s")(lambda: None)  # type: ignore[call-overload]
    first = app.task(name="d", queue="mail", result="1h")(lambda: 1)
    later = app.task(name="e", queue="mail", limit_key=lambda number: f"k{number}")(
        lambda number: None
    )
    with pytest.raises(InvalidOptionError, match="take a task whose limit_key is a name"):
        chain(first.call(), later.then()).send()


def test_an_ordered_group_keeps_its_order_over_retries(app: QWorker) -> None:
    """The one that failed runs again before those behind it."""
    seen: list[int] = []

    @app.task(queue="mail", group=lambda account, number: account, ordered=True)
    def book(account: str, number: int) -> None:
        seen.append(number)
        if seen.count(1) == 1 and number == 1:
            raise ValueError

    for number in range(4):
        book.send("acct", number)
    drain(app, errors="collect")
    assert seen == [0, 1, 1, 2, 3]


def test_rate_limited_lets_the_group_wait_alone(app: QWorker) -> None:
    """Other groups of the queue go on."""
    seen: list[str] = []

    @app.task(queue="mail", group=lambda customer: customer)
    def push(customer: str) -> None:
        seen.append(customer)
        if customer == "busy" and seen.count("busy") == 1:
            raise RateLimited("1m")

    push.send("busy")
    push.send("busy")
    push.send("free")
    drain(app)
    assert seen == ["busy", "free"]
    assert app.queue("mail").inspect().limited_until_ms is None
    advance(app, "61s")
    drain(app)
    assert seen == ["busy", "free", "busy", "busy"]


@pytest.mark.parametrize("shards", [1, 3])
def test_a_wait_that_a_handler_asked_for_ends_when_you_say_so(app: QWorker, shards: int) -> None:
    """In whichever shard the group is, for sync and async clients; that of the other group stays."""
    queue = app.queue("mail")
    queue.create()
    if shards > 1:
        queue.divide(shards)
    for group in ("acme/ann", "acme/bob"):
        queue.send(group, group=group)
    for shard in app.client.run(queue.ref.every_shard(refresh=True)):
        batch = app.client.execute(settle_receive(shard.keys, "l1", 2))
        asked = Outcomes("l1")
        for at in range(1, len(batch.items) + 1):
            asked.limit(str(at), 60_000)
        app.client.execute(settle(shard.keys, [asked]))
    assert queue.receive(10) == []
    assert queue.resume_group("acme/ann")
    (message,) = queue.receive(10)
    assert message.body == b'"acme/ann"'

    async def resume() -> tuple[bool, bool]:
        other = app.aqueue("mail")
        try:
            return await other.resume_group("acme/ann"), await other.resume_group("acme/bob")
        finally:
            await other.client.close()

    assert asyncio.run(resume()) == (False, True)
    (message,) = queue.receive(10)
    assert message.body == b'"acme/bob"'


def test_a_broken_shard_keeps_no_group_of_another_waiting(app: QWorker) -> None:
    """Whichever of them comes first; its key is named once all have had their turn."""
    queue = app.queue("mail")
    queue.create()
    queue.divide(3)
    names = [f"acme{number}/ann" for number in range(12)]
    for name in names:
        queue.send(name, group=name)
    shards = [shard.keys for shard in app.client.run(queue.ref.every_shard(refresh=True))]
    held = {}
    for keys in shards:
        batch = app.client.execute(settle_receive(keys, "l1", 12))
        asked = Outcomes("l1")
        for at in range(1, len(batch.items) + 1):
            asked.limit("0" if len(batch.items) == 1 else str(at), 60_000)
        app.client.execute(settle(keys, [asked]))
        held[keys.queue] = len(batch.items)
    assert len([number for number in held.values() if number]) > 1
    broken = next(keys for keys in shards if held[keys.queue])
    app.client.execute(raw("DEL", broken.wake))
    app.client.execute(raw("SET", broken.wake, "x"))
    for name in names:
        with pytest.raises(BrokenQueueError, match="wake"):
            queue.resume_group(name)
    app.client.execute(raw("DEL", broken.wake))
    received = {
        keys.queue: len(app.client.execute(settle_receive(keys, "l2", 12)).items) for keys in shards
    }
    assert received == {**held, broken.queue: 0}


@pytest.mark.parametrize("name", ["", "*", "acme/*", "a/b/c", "x" * 257, "a\n", 7])
def test_a_wait_of_what_is_no_group_cannot_end(app: QWorker, name: object) -> None:
    """The error says which names groups have."""
    with pytest.raises(InvalidOptionError, match=r"^group: .* is not the name of a group; write a"):
        app.queue("mail").resume_group(name)  # type: ignore[arg-type]


def test_limits_hold_at_once_and_in_each_shard(app: QWorker) -> None:
    """They are set, read, changed and removed while messages wait; new shards have them as well."""
    queue = app.queue("mail")
    for number in range(6):
        queue.send(str(number), group=f"acme/{number % 2}")
    queue.set_limit("acme/", concurrency=1)
    assert len(received(app, "mail", "l1")) == 1
    assert received(app, "mail", "l2") == []
    limit = queue.set_limit("acme/", rate="100/s", burst=3)
    assert (limit.concurrency, limit.rate, limit.burst) == (1, "100/s", 3)
    queue.set_limit("acme/", concurrency=3)
    assert len(received(app, "mail", "l3")) == 2
    assert queue.remove_limit("acme/")
    assert not queue.remove_limit("acme/")
    assert len(received(app, "mail", "l4")) == 3
    queue.set_limit("*", concurrency=2)
    queue.divide(3, wait=0)
    for shard in range(3):
        keys = queue.ref.shard_of(shard).keys
        with app.client.factory.redis(keys.meta) as redis:
            assert redis.hgetall(keys.limits) == {b"*": b"c=2"}


def test_a_burst_goes_with_the_rate_that_it_was_given_for(app: QWorker) -> None:
    """Another rate has its own; other options of a limit stay."""
    queue = app.queue("mail")
    queue.set_limit("a", concurrency=4, rate="100/s", burst=50)
    changed = queue.set_limit("a", rate="10/s")
    assert (changed.concurrency, changed.rate, changed.burst) == (4, "10/s", None)
    assert queue.set_limit("a", rate="20/s", burst=7).burst == 7
    assert queue.set_limit("a", weight=2).burst == 7


def test_a_group_says_what_it_waits_for(app: QWorker) -> None:
    """Its own limits, or those of its parent."""
    queue = app.queue("mail")
    queue.send_many([b"1", b"2"], group="a")
    queue.send_many([b"1", b"2"], group="t/b")
    assert {group.name: group.reason for group in queue.groups()} == {
        "a": "turn",
        "t/": "",
        "t/b": "turn",
    }
    queue.set_limit("a", rate="1/h")
    queue.set_limit("t/", concurrency=1)
    assert len(received(app, "mail", "l1")) == 2
    assert received(app, "mail", "l2") == []
    reasons = {group.name: group.reason for group in queue.groups()}
    assert reasons == {"a": "rate", "t/": "", "t/b": "concurrency of its parent"}


def test_a_group_waits_for_the_time_of_its_handler_or_for_its_rate(app: QWorker) -> None:
    """What a handler asked for is told apart from a rate, also by the limit that the group has, and from then on."""
    queue = app.queue("mail")
    queue.set_limit("*", concurrency=5)
    queue.set_limit("a", rate="1/h")
    for group in ("a", "b"):
        queue.send_many([b"1", b"2"], group=group)
    batch = app.client.execute(settle_receive(queue.keys, "l1", 2))
    place = next(at for at, item in enumerate(batch.items, 1) if b" g=b" in item)
    asked = Outcomes("l1")
    asked.limit(str(place), 60_000)
    app.client.execute(settle(queue.keys, [asked]))
    found = {group.name: group for group in queue.groups()}
    reasons = {name: group.reason for name, group in found.items()}
    assert reasons == {"a": "rate", "b": "rate_limited"}
    until_ms = found["b"].until_ms
    assert until_ms is not None
    assert waits_for(found["a"], until_ms).startswith("its rate, ")
    assert waits_for(found["b"], until_ms - 30_000) == "a handler's RateLimited, 30s more"
    loads = {load.name: load for load in app.client.run(limit_loads(queue.ref))}
    assert loads["a"].waits_for(until_ms).startswith("its rate, ")
    assert loads["*"].waits_for(until_ms - 30_000) == "a handler's RateLimited, 30s more"
    assert received(app, "mail", "l2") == []


def test_more_than_a_page_of_messages_in_flight(app: QWorker) -> None:
    """What runs of a group is the sum over all pages; a limit that is removed lets all of them run."""
    queue = app.queue("mail")
    queue.send_many([b"x"] * 600, group="a")
    assert (len(received(app, "mail", "l1", 500)), len(received(app, "mail", "l2", 500))) == (
        500,
        100,
    )
    assert [(group.name, group.running) for group in queue.groups()] == [("a", 600)]
    queue.set_limit("*", concurrency=1)
    new = [
        NewMessage(f"m{number}", tail(b"x", {"g": f"g{number % 300}"}), group=f"g{number % 300}")
        for number in range(600)
    ]
    app.client.execute(send(queue.keys, new, lane="", sequence=0))
    assert len(received(app, "mail", "l3", 500)) == 300
    assert received(app, "mail", "l4") == []
    assert queue.remove_limit("*")
    assert len(received(app, "mail", "l5", 500)) == 300


def test_an_ordered_group_says_when_its_delayed_message_is_due(app: QWorker) -> None:
    """A limit that it has says so too, unless others wait for the limit itself."""
    queue = app.queue("mail")
    queue.set_limit("*", concurrency=1)
    queue.send_many([b"1", b"2"], group="a", ordered=True)
    app.client.execute(settle_receive(queue.keys, "l1", 1))
    nacked = Outcomes("l1")
    nacked.nack("0", 60_000)
    app.client.execute(settle(queue.keys, [nacked]))
    (group,) = queue.groups()
    assert (group.reason, group.until_ms is not None) == ("delayed", True)
    now_ms = (group.until_ms or 0) - 30_000
    assert waits_for(group, now_ms) == "its first message, delayed for 30s more"
    (load,) = app.client.run(limit_loads(queue.ref))
    assert load.waits_for(now_ms) == "a first message, delayed for 30s more"
    queue.send_many([b"1", b"2"], group="b")
    assert len(received(app, "mail", "l2")) == 1
    (load,) = app.client.run(limit_loads(queue.ref))
    assert load.waits_for(now_ms) == "one running, in 1 group"


def test_a_group_with_as_many_waiting_messages_as_it_may_have(app: QWorker) -> None:
    """Refuses the send; others are stored."""
    queue = app.queue("mail")
    queue.set_limit("*", max_waiting=2)
    queue.send_many(["a", "b"], group="g")
    with pytest.raises(GroupFullError, match="group 'g' of queue 'mail' is full: its limit is 2"):
        queue.send("c", group="g")
    queue.send("d", group="h")
    assert queue.inspect().ready == 3
    with pytest.raises(InvalidOptionError, match=r"each group: write acme/\*$"):
        queue.set_limit("acme/", max_waiting=2)
    assert queue.set_limit("acme/", rate="5/s", max_waiting=None).max_waiting is None


def test_a_group_lives_in_one_shard(app: QWorker) -> None:
    """With all of its parent: its limits are exact there."""
    queue = app.queue("mail")
    queue.divide(4, wait=0)
    for number in range(40):
        queue.send(str(number), group=f"acme/{number}")
    shards = [shard.grouped for shard in queue.division().shards]
    assert sorted(shards) == [0, 0, 0, 40]


def test_a_unique_key_of_a_group_is_refused_in_a_divided_queue(app: QWorker) -> None:
    """One key under two groups would be held in two shards. Nothing of the call is stored; either alone is."""
    queue = app.queue("mail")
    first = queue.send("a", group="a", unique="k")
    assert queue.send("b", group="b", unique="k") == first
    queue.divide(4, wait=0)
    for held in ({}, {"unique_for": "10m"}, {"unique_until": "started"}, {"debounce": "5s"}):
        with pytest.raises(InvalidOptionError, match=r"together with group.*into 4 shards"):
            queue.send_many(["c", "d"], group="a", unique="k2", **held)
    assert queue.inspect().stored == 1
    queue.send("e", group="a")
    queue.send("f", unique="k2")


@pytest.mark.bad_input("options: names, weights and rates of groups")
@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"group": ""}, "is not the name of a group"),
        ({"group": "a/b/c"}, "is not the name of a group"),
        ({"group": "a/"}, "is not the name of a group"),
        ({"group": "=a"}, "is not the name of a group"),
        ({"group": "*"}, "is not the name of a group"),
        ({"group": "a\n"}, "is not the name of a group"),
        ({"group": "a" * 257}, "is not the name of a group"),
        ({"group": 7}, "is not a str"),
        ({"ordered": True}, "is set without group"),
        ({"group": "a", "priority": 3}, "is set together with group"),
    ],
)
def test_a_wrong_group_is_refused(app: QWorker, options: dict[str, Any], message: str) -> None:
    """Before anything is sent."""
    with pytest.raises(InvalidOptionError, match=message):
        app.queue("mail").send("x", **options)
    assert not app.queue("mail").inspect().exists


@pytest.mark.bad_input("options: names, weights and rates of groups")
@pytest.mark.parametrize(
    ("name", "options"),
    [
        ("a/b/", {"concurrency": 1}),
        ("", {"concurrency": 1}),
        ("a", {}),
        ("a", {"concurrency": 0}),
        ("a", {"concurrency": 10**7}),
        ("a", {"rate": "fast"}),
        ("a", {"rate": "0/s"}),
        ("a", {"rate": "5/2d"}),
        ("a", {"burst": 3}),
        ("a", {"weight": 0}),
        ("a", {"weight": float("nan")}),
        ("a", {"max_waiting": 0}),
        ("acme/", {"max_waiting": 2}),
        ("*/", {"rate": "5/s", "max_waiting": 2}),
        ("acme/ann", {"weight": 2}),
        ("acme/*", {"concurrency": 5, "weight": 2}),
        ("a", {"speed": 3}),
    ],
)
def test_a_wrong_limit_is_refused(app: QWorker, name: str, options: dict[str, Any]) -> None:
    """And no limit is stored."""
    with pytest.raises(InvalidOptionError):
        app.queue("mail").set_limit(name, **options)
    assert app.queue("mail").limits() == {}


def test_wrong_groups_of_tasks(app: QWorker) -> None:
    """A function that returns anything but a name, options that do not go together, a step of a chain."""

    @app.task(queue="mail", group=lambda number: number)
    def count(number: int) -> None: ...

    with pytest.raises(InvalidOptionError, match="group of task count"):
        count.send(7)
    with pytest.raises(InvalidOptionError, match="ordered"):
        app.task(name="b", ordered=True)(lambda: None)
    with pytest.raises(InvalidOptionError, match="priority"):
        app.task(name="c", group="g", priority=1)(lambda: None)


def test_what_has_left_its_group_before_it_runs_has_no_order(app: QWorker) -> None:
    """The ack of an at_most_once task lets the next one of the group start beside its handler."""
    refused = "ordered: is set together with at_most_once; .*visibility=0"
    with pytest.raises(InvalidOptionError, match=refused):
        app.task(name="a", group="g", ordered=True, at_most_once=True)(lambda: None)
    once = app.task(queue="mail", group="g", at_most_once=True, name="once")(lambda: None)
    with pytest.raises(InvalidOptionError, match=refused):
        once.options(group="a", ordered=True).send()
    once.options(group="a").send()


@pytest.mark.parametrize("queue", ["ledger", "mail"])
def test_a_later_step_of_a_chain_has_its_group(app: QWorker, queue: str) -> None:
    """In its own queue, which is that of the step before or another one; by the task's name or that of the step."""
    seen: dict[str, list[str]] = {}

    def note(word: str) -> None:
        found = app.queue(queue).groups()
        seen[word] = sorted(group.name for group in found if group.running)

    @app.task(queue="ledger", group="first", result="1h")
    def count(number: int) -> int:
        return number + 1

    @app.task(queue=queue, group="second", ordered=True, result="1h")
    def book(number: int) -> int:
        note("book")
        return number + 1

    @app.task(queue=queue, result="1h")
    def mail(number: int) -> int:
        note("mail")
        return number + 1

    handle = chain(count.call(1), book.then(), mail.options(group="tenant/x").then()).start()
    drain(app)
    assert handle.result() == 4
    assert seen == {"book": ["=second"], "mail": ["tenant/", "tenant/x"]}
    assert app.queue(queue).groups() == []


def test_a_later_step_whose_group_cannot_be_known_or_kept_is_refused(app: QWorker) -> None:
    """A function of the value of the step before; a queue that is divided."""

    @app.task(queue="ledger", group=lambda number: str(number), result="1h")
    def count(number: int) -> int:
        return number

    with pytest.raises(InvalidOptionError, match="depends on its arguments"):
        chain(count.call(1), count.then())
    app.queue("ledger").divide(2, wait="0s")
    named = chain(count.call(1), count.options(group="a").then())
    with pytest.raises(InvalidOptionError, match="'a', and queue 'ledger' is divided into 2"):
        named.send()
    assert app.queue("ledger").inspect().stored == 0


def test_a_schedule_has_the_group_of_its_call(app: QWorker) -> None:
    """By the task's function or by an option; the queue must not be divided."""

    @app.task(queue="reports", group=lambda tenant: f"report/{tenant}")
    def report(tenant: str) -> None: ...

    report.schedule("one", every("1h"), "acme")
    report.options(group="vip", ordered=True).schedule("two", every("1h"), "acme")
    stored = app.client.execute(raw("HGETALL", app.queue("reports").keys.schedules, decode=list))
    written = dict(zip(stored[::2], stored[1::2], strict=True))
    assert StoredSchedule.parse(written[b"one"]).group == "report/acme"
    assert StoredSchedule.parse(written[b"two"]).group == "=vip"
    app.queue("reports").divide(2, wait="0s")
    with pytest.raises(InvalidOptionError, match="a group lives in one of them"):
        report.schedule("three", every("1h"), "acme")


@pytest.mark.slow
def test_a_drain_lets_time_pass_for_rates(app: QWorker) -> None:
    """All messages run, and the drain says how long they would have taken."""
    app.queue("mail").set_limit("push", rate="1/s", burst=1)

    @app.task(queue="mail", group="push")
    def push(number: int) -> None: ...

    began = time.monotonic()
    push.send_many([push.call(number) for number in range(4)])
    drained = drain(app)
    assert (drained.handled, drained.left) == (4, 0)
    waited_s = duration_ms(drained.waited, "waited") / 1000
    # The limit counts the time that has really passed as well.
    assert waited_s <= 3.0 <= waited_s + (time.monotonic() - began) + 0.5


@pytest.mark.slow
def test_a_drain_moves_shares_of_a_limit_over_queues(app: QWorker) -> None:
    """One slot over two queues runs the messages of both."""
    app.queue("mail").set_limit("api/", with_queues=["crm"], concurrency=1)
    seen: list[str] = []

    @app.task(queue="mail", group="api/mail")
    def mail(number: int) -> None:
        seen.append("mail")

    @app.task(queue="crm", group="api/crm")
    def crm(number: int) -> None:
        seen.append("crm")

    mail.send_many([mail.call(number) for number in range(3)])
    crm.send_many([crm.call(number) for number in range(3)])
    assert drain(app).handled == 6
    assert sorted(seen) == ["crm"] * 3 + ["mail"] * 3
