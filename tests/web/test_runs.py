"""Schedules, runs of workflows, and what can be lost."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from typing import Any
from urllib.parse import quote

import pytest

from qworker import QWorker, Retry, SyncRun
from qworker.client.execute.sync import Client
from qworker.client.namespace.audit import read_deeds
from qworker.daemon.durability import inspect_server
from qworker.daemon.schedule_listing import list_schedules
from qworker.engine.raw import raw
from qworker.health.losses import Extent, losses, replicas
from qworker.store.connections import ConnectionFactory
from qworker.testing import drain
from qworker.web.application import Dashboard
from tests import servers
from tests.cli.conftest import Shop
from tests.ports import free_port
from tests.topologies.servers import until
from tests.web.conftest import Browser, text_of


class Orders:
    """An app with a workflow that charges, waits for an approval, and may fail."""

    def __init__(self, shop: Shop) -> None:
        self.app = QWorker(shop.namespace, url=shop.url)
        self.fails = False
        self.order: Any = self.app.workflow(
            queue="orders", name="order", retry=Retry.none(), result="1h"
        )(self.work)

    def work(self, run: SyncRun, number: str) -> str:
        run.step("charge", lambda: {"secret": number})
        approval = run.wait(str, name="approval", timeout="7d")
        if self.fails:
            raise ValueError("out of stock")
        return run.step("ship", lambda: f"{number} {approval}")

    def start(self, run_id: str) -> None:
        self.order.options(id=run_id).start(run_id)
        self.work_on()

    def work_on(self) -> None:
        drain(self.app, errors="collect", include_delayed=False)


@pytest.fixture
def orders(shop: Shop) -> Iterator[Orders]:
    orders = Orders(shop)
    yield orders
    orders.app.close()


def test_a_run_is_shown_with_how_far_its_loops_have_come(browser: Browser, orders: Orders) -> None:
    def rows(after: int | None) -> list[int]:
        return [*range((after or 0) + 1, 2000)]

    @orders.app.workflow(queue="orders")
    def sweep(run: SyncRun) -> None:
        for number in run.each(rows, key=lambda number: number):
            if number == 1201:
                run.wait(str, name="go")

    sweep.options(id="s-1").start()
    orders.work_on()

    assert "each rows: 1,200" in text_of(browser, "/runs/orders/s-1")


@pytest.mark.slow
def test_runs_are_listed_by_state_with_what_they_wait_for(browser: Browser, orders: Orders) -> None:
    for run_id in ("a-1", "a-2"):
        orders.start(run_id)
    orders.fails = True
    orders.order.handle("a-2").signal("yes", name="approval")
    orders.work_on()

    page = text_of(browser, "/runs")

    assert "all 2" in page
    assert re.search(r"a-1 waiting order orders \S+ ago signal approval", page)
    assert "a-2 dead order" in page
    for query, found in (
        ("state=dead", ["a-2"]),
        ("workflow=ORD", ["a-1", "a-2"]),
        ("queue=emails", []),
        ("state=<b>", []),
    ):
        listed = re.findall(r'href="/runs/orders/([\w-]+)"', browser.get(f"/runs?{query}").text)
        assert sorted(listed) == found, query


@pytest.mark.slow
def test_a_run_shows_its_steps_and_goes_on_by_a_signal(
    made: Callable[..., Dashboard], orders: Orders, shop: Shop
) -> None:
    """Signal, cancel and redrive are those of the command line; values pass the hook."""
    browser = Browser(made())
    orders.start("a-1")

    page = text_of(browser, "/runs/orders/a-1")
    assert page.index("Started") < page.index("charge") < page.index("Now waiting")
    assert "signal approval" in page
    assert '{ "secret": "a-1" }' in page
    hides = Browser(made(redact=lambda task, value: f"hidden {task}"))
    assert "a-1 }" not in text_of(hides, "/runs/orders/a-1").replace('"', "")
    assert "hidden order" in text_of(hides, "/runs/orders/a-1")
    for name, value, status in (
        ("approval", "{", 400),
        ("", "1", 400),
        ("x" * 300, "1", 400),
        ("approval", '"yes"', 303),
        ("approval", '"no"', 409),
    ):
        form = {"name": name, "value": value}
        assert browser.post("/runs/orders/a-1/signal", form).status_code == status, name
    empty = browser.post("/runs/orders/a-1/signal", {"name": "approval", "value": ""})
    assert (empty.status_code, "value: cannot be read" in empty.text) == (400, True)
    orders.fails = True
    orders.work_on()
    assert "Why it is dead" in text_of(browser, "/runs/orders/a-1")
    with pytest.MonkeyPatch.context() as patch:
        # In a queue that is too long to search its result says so.
        patch.setattr("qworker.web.pages.run._SEARCHED", 0)
        assert "Redrive: continue after the last step" in text_of(browser, "/runs/orders/a-1")
    orders.fails = False
    page = browser.get("/runs/orders/a-1").text
    assert "Replace the signal" in page
    form = {
        "name": "approval",
        "value": '"no"',
        **dict(re.findall('name="(replace)" value="(1)"', page)),
    }
    assert browser.post("/runs/orders/a-1/signal", form).status_code == 303
    assert browser.post("/runs/orders/a-1/signal", {**form, "value": '"yes"'}).status_code == 303
    assert browser.post("/runs/orders/a-1/redrive").status_code == 303
    assert browser.post("/runs/orders/a-1/redrive").status_code == 400
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("qworker.web.pages.run._SEARCHED", 0)
        assert "Now active" in text_of(browser, "/runs/orders/a-1")
    orders.work_on()
    page = text_of(browser, "/runs/orders/a-1")
    assert page.index("Signal approval") < page.index("ship")
    assert "Result a-1 yes" in page
    hidden = text_of(hides, "/runs/orders/a-1")
    assert "its task is no longer known" in hidden
    assert "a-1 yes" not in hidden

    orders.start("a-2")
    assert "1 waiting run of orders, order." in text_of(browser, "/runs/orders/a-2/cancel")
    assert browser.post("/runs/orders/a-2/cancel").status_code == 303
    assert "Result cancelled" in text_of(browser, "/runs/orders/a-2/cancel")
    verbs = [deed.verb for deed in read_deeds(shop.client.execute, shop.namespace)]
    assert set(verbs) == {"workflow signal", "workflow redrive", "workflow cancel"}


@pytest.mark.bad_input("dashboard: runs and schedules that do not exist or cannot")
@pytest.mark.slow
def test_what_is_not_there_has_a_page_that_says_so(browser: Browser, shop: Shop) -> None:
    [message_id] = shop.send()
    for path in (
        "/runs/emails/nothing",
        f"/runs/emails/{message_id}",
        "/runs/nothing/x",
        f"/runs/emails/{quote('<b>')}",
        "/runs/emails/%00",
        "/runs/emails/nothing/cancel",
        "/schedules/rm?queue=emails&name=x",
        "/schedules/rm",
    ):
        assert browser.get(path).status_code == 404, path
    for verb in ("signal", "cancel", "redrive"):
        form = {"name": "x", "value": "1"}
        assert browser.post(f"/runs/emails/nothing/{verb}", form).status_code in (400, 409)
    for verb in ("pause", "resume", "run", "rm"):
        for form in ({}, {"queue": "<b>", "name": "x"}, {"queue": "emails", "name": "x" * 500}):
            assert browser.post(f"/schedules/{verb}", form).status_code == 400


def test_schedules_show_their_next_slots_and_are_paused_run_and_removed(
    browser: Browser, shop: Shop
) -> None:
    """Those that do not fire come first; each change is one of the command line."""
    app = QWorker(shop.namespace, url=shop.url)

    @app.task(queue="emails")
    def report(number: int) -> None: ...

    later = datetime.now(UTC) + timedelta(hours=12)
    for name, hour in (("daily", later.hour), ("hourly", "*")):
        report.schedule(name, f"0 {hour} * * *", 7)
    app.close()

    page = text_of(browser, "/schedules")
    assert "No reaper is alive: nothing fires." in page
    assert re.search(
        r"hourly report to emails fires .* in \S+ \S+ \S+:00:00 \S+ then in \S+ , in \S+ never",
        page,
    )
    assert page.index("hourly") < page.index("daily")
    assert "1 of 2 schedules" in text_of(browser, "/schedules?q=DAILY")
    assert "All 2 schedules" in text_of(browser, "/schedules?q=nope")
    daily = {"queue": "emails", "name": "daily"}
    assert browser.post("/schedules/pause", daily).status_code == 303
    page = text_of(browser, "/schedules")
    assert page.index("daily report to emails paused") < page.index("hourly")
    assert browser.post("/schedules/run", daily).status_code == 303
    assert shop.queue().inspect().ready == 1
    assert browser.post("/schedules/resume", daily).status_code == 303
    assert "1 schedule of emails, which sends report" in text_of(
        browser, "/schedules/rm?queue=emails&name=daily"
    )
    assert browser.post("/schedules/rm", daily).status_code == 303
    assert [one.name for one in list_schedules(shop.client, shop.namespace)] == ["hourly"]
    deeds = [(deed.verb, deed.target) for deed in read_deeds(shop.client.execute, shop.namespace)]
    verbs = ("rm", "resume", "run", "pause")
    assert deeds == [(f"schedule {verb}", "emails daily") for verb in verbs]


def test_the_page_of_losses_names_each_fault(browser: Browser, shop: Shop) -> None:
    page = text_of(browser, "/durability")
    for part in ("A worker is killed", "Its machine loses power", "A replica takes over"):
        assert part in page, part
    assert "Settings to change" in page or "durable" in page


def test_what_a_fault_takes_follows_the_settings() -> None:
    """Of a real server."""
    always: dict[str, str] = {"appendonly": "yes", "appendfsync": "always"}
    cases: list[tuple[dict[str, str], dict[str, str]]] = [
        ({"appendonly": "no", "save": ""}, {"killed": "everything: it makes no snapshots"}),
        ({"save": "3600 1"}, {"killed": "all since its last snapshot", "power": "all since"}),
        (always, {"killed": "nothing", "power": "nothing"}),
        ({"appendfsync": "everysec"}, {"killed": "nothing", "power": "the last 1 to 2 seconds"}),
        ({"appendfsync": "no"}, {"killed": "nothing", "power": "about the last 30 seconds"}),
        ({"maxmemory": "50mb", "maxmemory-policy": "allkeys-lru"}, {"memory": "whole queues"}),
        ({"maxmemory-policy": "noeviction"}, {"memory": "nothing"}),
        ({"maxmemory": "0"}, {"memory": "as if it is killed", "takes over": "does not happen"}),
    ]
    with (
        servers.start("valkey") as server,
        Client(ConnectionFactory(server.url), give_up_s=5) as client,
    ):
        for settings, extents in cases:
            for name, value in settings.items():
                client.execute(raw("CONFIG", "SET", name, value))
            [facts] = inspect_server(client).nodes
            found = losses(facts, client.now_ms())
            for fault, lost in extents.items():
                [one] = [one for one in found if fault in one.fault and "worker" not in one.fault]
                assert one.lost.startswith(lost), one
                nothing = lost.startswith(("nothing", "does not happen"))
                assert (one.extent is Extent.NOTHING) == nothing


def test_a_replica_shows_how_far_it_is_behind() -> None:
    """And what a master that is cut off accepts."""
    port = free_port()
    quick = ("--repl-diskless-sync-delay", "0")
    with (
        servers.start("valkey", "--port", str(port), *quick) as master,
        servers.start("valkey", "--replicaof", f"127.0.0.1 {port}"),
        Client(ConnectionFactory(master.url), give_up_s=5) as client,
    ):

        def seen() -> tuple[list[str], dict[str, str]]:
            [facts] = inspect_server(client).nodes
            states = [one.state for one in replicas(facts.info)]
            return states, {one.fault: one.lost for one in losses(facts, client.now_ms())}

        until(lambda: seen()[0] == ["online"])
        found = seen()[1]
        client.execute(raw("CONFIG", "SET", "min-replicas-to-write", 1))
        bounded = seen()[1]
    cut_off = "It is cut off from its replicas, and one takes over"
    assert found["A replica takes over"] == "what no replica has yet"
    assert found[cut_off] == "all that it accepts until it notices"
    assert bounded[cut_off] == "what it accepts within 10s"
