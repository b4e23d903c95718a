"""`qworker workflow`: runs for operators."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Iterator
from typing import Any

import pytest

from qworker import Keyring, QWorker, Retry, SyncRun, TaskEndedError
from qworker.testing import drain


class Orders:
    """An app with a workflow that charges, waits for an approval, ships, and may fail in between."""

    def __init__(self, url: str, namespace: str, **options: Any) -> None:
        self.app = QWorker(namespace, url=url, **options)
        self.fails = False
        options = {"queue": "orders", "name": "order", "retry": Retry.none()}
        self.order: Any = self.app.workflow(**options)(self.work)

    def work(self, run: SyncRun, number: str) -> str:
        charged = run.step("charge", lambda: {"number": number})
        approval = run.wait(str, name="approval", timeout="7d")
        if self.fails:
            raise ValueError("out of stock")
        return run.step("ship", lambda: f"{charged['number']}: {approval}")

    def start(self, run_id: str) -> Any:
        return self.order.options(id=run_id).start(run_id)

    def run_what_is_ready(self) -> None:
        drain(self.app, errors="collect", include_delayed=False)


@pytest.fixture
def orders(shop: Any) -> Iterator[Orders]:
    """The app, in the namespace of the command line."""
    orders = Orders(shop.url, shop.namespace)
    yield orders
    orders.app.close()


def test_runs_are_listed_with_what_they_wait_for(run, shop, orders):
    """Each in its state, also one that has just been started; ended ones are not listed."""
    for name in ("a-1", "a-2", "a-3"):
        orders.start(name)
    orders.run_what_is_ready()
    orders.fails = True
    orders.order.handle("a-2").signal("yes", name="approval")
    orders.run_what_is_ready()
    orders.fails = False
    orders.order.handle("a-3").signal("yes", name="approval")
    orders.run_what_is_ready()
    orders.start("a-4")
    orders.start("a-5")
    held = orders.app.queue("orders").receive(1)

    ran = run("workflow", "ls")

    states = {line.split()[1]: line.split()[3] for line in ran.lines}
    assert states == {
        "ID": "STATE",
        "a-1": "waiting",
        "a-2": "dead",
        "a-4": "running",
        "a-5": "ready",
    }
    [waiting] = [line for line in ran.lines if "a-1" in line]
    assert "signal approval until " in waiting
    assert " order " in waiting
    listed = run("workflow", "ls", "orders", "--state", "waiting", "--json").json["runs"]
    [one] = listed
    assert abs(one["since_ms"] - shop.now_ms()) < 60_000
    assert abs(one["due_ms"] - one["since_ms"] - 7 * 86_400_000) < 1000
    assert (one["id"], one["waits_for"], one["workflow"]) == ("a-1", "approval", "order")
    assert "no sleeping run in namespace" in run("workflow", "ls", "--state", "sleeping").err
    assert "no sleeping run in orders" in run("workflow", "ls", "orders", "--state", "sleeping").err
    orders.app.queue("orders").release(*held)


def test_a_run_is_shown_with_how_far_its_loops_have_come(run, orders):
    """In items, and of how many where that is known."""

    @orders.app.workflow(queue="orders")
    def sweep(run: SyncRun) -> None:
        for _ in run.each(["a"]):
            pass
        for number in run.each(range(5000), name="rows"):
            if number == 1200:
                run.wait(str, name="go")

    sweep.options(id="s-1").start()
    orders.run_what_is_ready()

    assert run("workflow", "show", "s-1", "--json").json["steps"][1]["position"] == 1200
    shown = run("workflow", "show", "s-1").out
    assert "each each: all 1\n" in shown
    assert "each rows: 1,200 of 5,000\n" in shown


@pytest.mark.slow
def test_a_run_is_shown_with_the_calls_that_it_waits_for(run, orders):
    """No signal continues it, so none is proposed."""

    @orders.app.task(queue="orders", result="1h")
    def weigh(number: int) -> int:
        return number

    @orders.app.workflow(queue="orders")
    def parcel(run: SyncRun) -> None:
        run.gather([weigh.options(delay="1h").call(1)])
        run.wait(str, name="go")

    parcel.options(id="p-1").start()
    orders.run_what_is_ready()

    shown = run("workflow", "show", "p-1").out
    assert "calls of gather#1\n" in shown
    assert "calls      1, waits for 1\n" in shown
    assert "workflow signal" not in shown
    waits = run("workflow", "show", "p-1", "--json").json["calls"]
    calls = waits["id"]
    assert (waits["calls"], waits["left"], waits["dead"]) == (1, 1, [])
    assert f"qworker calls show {calls}" in shown
    assert calls in run("calls", "show", calls).out
    drain(orders.app)
    assert "gather#1  (its calls have ended)\n" in run("workflow", "show", "p-1").out


def test_a_run_whose_gather_is_blocked_names_the_dead_call_and_what_to_do(run, orders):
    """In two steps: from the run to its calls, and from these to the dead letter; its redrive continues the run."""
    fixed: list[int] = []

    @orders.app.task(queue="scales", result="1h", max_receives=1)
    def weigh(number: int) -> int:
        if not fixed:
            raise ValueError(number)
        return number

    @orders.app.workflow(queue="orders")
    def parcel(run: SyncRun) -> int:
        return sum(run.gather([weigh.call(1), weigh.call(2)], policy="successes"))

    handle = parcel.options(id="p-2").start()
    drain(orders.app, errors="collect")
    shown = run("workflow", "show", "p-2").out
    assert "calls      2, waits for 2, 2 dead\n" in shown
    waits = run("workflow", "show", "p-2", "--json").json["calls"]
    calls = waits["id"]
    assert (waits["state"], waits["left"], waits["dead"]) == ("blocked", 2, [0, 1])
    assert f"qworker calls show {calls}\n" in shown

    shown = run("calls", "show", calls).out
    assert f"qworker dead show scales {calls}.0\n" in shown
    document = run("calls", "show", calls, "--json").json
    assert document["first_dead"] == {"queue": "scales", "id": f"{calls}.0"}
    assert f"qworker dead redrive scales --id {calls}.0\n" in shown
    assert f"qworker calls cancel {calls}\n" in shown
    assert "ValueError" in run("dead", "show", "scales", f"{calls}.0").out
    fixed.append(1)
    for number in range(2):
        assert run("dead", "redrive", "scales", "--id", f"{calls}.{number}", "--yes").code == 0
    drain(orders.app)
    assert handle.result(0) == 3


def test_a_run_is_shown_with_its_steps(run, shop, orders):
    """And their times and values; after its end as long as they are kept."""
    orders.start("a-1")
    orders.run_what_is_ready()
    shown = run("workflow", "show", "a-1", "--json").json
    [step] = shown["steps"]
    assert abs(step.pop("at_ms") - shop.now_ms()) < 60_000
    assert step == {
        "name": "charge",
        "value": {"number": "a-1"},
        "position": None,
        "timed_out": False,
        "closed": None,
        "lasted_ms": None,
    }
    assert "qworker workflow signal a-1 approval JSON" in run("workflow", "show", "a-1").out

    other = run("workflow", "signal", "a-1", "aproval", '"ann"')
    assert other.out == "gave a-1 of orders the signal aproval\n"
    assert other.err == "note: a-1 waits for the signal approval, and goes on waiting\n"
    right = run("workflow", "signal", "a-1", "approval", '"ann"')
    assert (right.code, right.err) == (0, "")
    orders.run_what_is_ready()
    ran = run("workflow", "show", "a-1", "--queue", "orders")
    names = [line.split("  ")[1] for line in ran.lines if "ago)" in line and "  " in line]
    assert [name for name in names if name] == ["charge", "!aproval", "!approval", "ship"]
    assert "state  ok" in ran.out.replace("state     ", "state  ")
    assert run("workflow", "show", "a-1", "--json").json["state"] == "ok"

    orders.start("a-2")
    drain(orders.app, errors="collect")
    [_, late] = run("workflow", "show", "a-2", "--json").json["steps"]
    assert (late["name"], late["timed_out"]) == ("!approval", True)
    assert "(not given in time)" in run("workflow", "show", "a-2").out


@pytest.mark.slow
def test_a_dead_run_is_redriven_after_its_last_step(run, orders):
    """Others are refused."""
    handle = orders.start("a-1")
    orders.run_what_is_ready()
    refused = run("workflow", "redrive", "a-1")
    assert (refused.code, "is not dead, but waiting" in refused.err) == (1, True)
    orders.fails = True
    handle.signal("yes", name="approval")
    orders.run_what_is_ready()
    assert "qworker workflow redrive a-1" in run("workflow", "show", "a-1").out
    for arguments in (["--dry-run"], ["--yes"]):
        refused = run("workflow", "cancel", "a-1", *arguments)
        assert (refused.code, "qworker dead drop orders --id a-1" in refused.err) == (1, True)
    assert run("workflow", "redrive", "a-1", "--dry-run").code == 0
    assert handle.status().state == "dead"
    orders.fails = False
    assert run("workflow", "redrive", "a-1").code == 0
    orders.run_what_is_ready()
    assert handle.result(0) == "a-1: yes"


def test_a_signal_that_a_run_cannot_use_is_replaced(run, orders):
    """Its error names the command, and the command the next one."""
    handle = orders.start("a-1")
    orders.run_what_is_ready()
    assert run("workflow", "signal", "a-1", "approval", "7").code == 0
    orders.run_what_is_ready()
    [replacing] = re.findall(
        r"qworker (workflow signal a-1 approval) JSON (--replace)",
        run("dead", "show", "orders", "a-1").out,
    )
    assert run("workflow", "signal", "a-1", "approval", '"ann"').code == 1
    replaced = run(*replacing[0].split(), '"ann"', replacing[1]).out
    [redrive] = re.findall(r"qworker (workflow redrive a-1)", replaced)
    assert run(*redrive.split()).code == 0
    orders.run_what_is_ready()
    assert handle.result(0) == "a-1: ann"


def test_listings_say_what_they_leave_out(run, orders):
    """Runs in a state are found behind others; `calls ls` says so as well."""
    for name in ("a-1", "a-2", "a-3"):
        orders.start(name)
    orders.run_what_is_ready()
    orders.fails = True
    orders.order.handle("a-3").signal("yes", name="approval")
    orders.run_what_is_ready()

    dead = run("workflow", "ls", "-n", "1", "--state", "dead")
    assert ("a-3" in dead.out, "only the oldest" in dead.err) == (True, False)
    two = run("workflow", "ls", "-n", "2")
    assert "only the oldest 2 are listed of orders (--limit)" in two.err
    assert ("a-2" in two.out, "a-3" in two.out) == (True, False)
    assert "only the oldest" not in run("workflow", "ls", "-n", "3").err


def test_a_run_is_cancelled(run, orders):
    """While it waits, at once; one that has ended is too late."""
    handle = orders.start("a-1")
    orders.run_what_is_ready()
    assert (
        "would cancel a-1 of orders (waiting)" in run("workflow", "cancel", "a-1", "--dry-run").out
    )
    document = run("workflow", "cancel", "a-1", "--yes", "--json").json
    assert (document["state"], document["answer"]) == ("waiting", "cancelled")
    assert handle.status().state == "cancelled"
    late = run("workflow", "cancel", "a-1", "--yes")
    assert (late.code, "has ended (cancelled)" in late.err) == (1, True)


def test_unknown_runs_and_wrong_signals_are_refused(run, shop, orders):
    """A message that is not a run is not found as one; JSON and ids are checked first."""
    orders.start("a-1")
    (other,) = shop.send("orders")
    assert run("workflow", "ls", "--state", "bogus").code == 2
    for arguments, code, text in (
        (["show", "nobody"], 1, "run nobody not found in the queues of namespace"),
        (["show", other, "--queue", "orders"], 1, "not found in queue 'orders'"),
        (["show", "a b"], 2, "ID"),
        (["signal", "a-1", "approval", "{"], 2, "JSON"),
        (["signal", "a-1", "a b", "1"], 2, "signal"),
        (["cancel", "nobody", "--yes"], 1, "not found"),
    ):
        ran = run("workflow", *arguments)
        assert (ran.code, text in ran.err) == (code, True), (arguments, ran)


def test_handles_tell_the_same_in_async_code_and_in_divided_queues(shop, orders):
    """Where a run stands, and its steps; None of an unknown one. An encrypted value without its key says so."""
    handle = orders.start("a-1")
    orders.app.queue("orders").divide(3)
    plain = orders.order.start("plain")
    orders.run_what_is_ready()

    async def looked() -> Any:
        seen = [await each.astatus() for each in (handle, plain, orders.order.handle("nobody"))]
        steps = await handle.asteps()
        await orders.app.aclose()
        return seen, steps

    (named, drawn, nobody), steps = asyncio.run(looked())
    assert (named.state, drawn.state, nobody) == ("waiting", "waiting", None)
    assert [step.name for step in steps] == ["charge"]
    assert [seen.id for seen in orders.app.queue("orders").runs(10)] == ["a-1", plain.id]
    assert orders.order.handle("nobody").steps() is None

    keys = Keyring(encryption={"k": b"e" * 32})
    sealed = Orders(shop.url, f"{shop.namespace}-sealed", keys=keys)
    secret = sealed.start("secret")
    sealed.run_what_is_ready()
    [step] = secret.steps()
    assert (step.value, step.closed) == (b'{"number":"secret"}', "")
    sealed.app.close()
    other = QWorker(f"{shop.namespace}-sealed", url=shop.url)
    [step] = other.queue("orders").run_steps("secret")
    assert (step.value, "lacks" in step.closed) == (b"", True)
    seen = other.queue("orders").run_status("secret")
    assert (seen.state, seen.workflow) == ("waiting", "")
    other.close()


def test_doctor_names_what_is_stuck(run, shop, orders):
    """A run whose message is gone, and an outbox that nobody relays; each with the command that repairs it."""
    handle = orders.start("a-1")
    orders.run_what_is_ready()
    orders.order.options(id="a-2").start("a-2")
    keys = shop.keys("orders")
    shop.ask("HINCRBY", keys.stats, "followed", 1)
    old = (shop.now_ms() - 60_000) * 1024
    entry = ("priority", 0, "delay", "", "ttl", "", "head", "q1 m ", "tail", "\nx")
    shop.ask("XADD", keys.outbox("gone"), f"{old}-0", *entry)
    shop.ask("HSET", keys.out, "gone", f"out-ab {old}")

    def finding(check: str) -> Any:
        found = {one["check"]: one for one in run("doctor", "--json").json["findings"]}
        return found.get(check)

    assert finding("runs") is None
    outbox = finding("outbox")
    assert outbox["status"] == "problem"
    assert "orders → gone 1 for 1m" in outbox["text"]
    assert "qworker daemon" in outbox["fix"]

    shop.ask("DEL", keys.delayed)
    assert "orders 1" in finding("runs")["text"]
    assert "qworker fsck orders --repair" in finding("runs")["fix"]
    listed = run("workflow", "ls", "--state", "lost", "--json").json["runs"]
    assert [each["id"] for each in listed] == ["a-1"]
    assert "qworker fsck orders --repair\n" in run("workflow", "show", "a-1").out
    assert run("fsck", "orders", "--repair", "--yes").code in (0, 3)
    assert finding("runs") is None
    with pytest.raises(TaskEndedError, match="discarded"):
        handle.result("5s")
