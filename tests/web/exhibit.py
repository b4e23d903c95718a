"""A shop at work, with everything that a page can show: a real worker, failures, runs, schedules, long names.

For the tests that look at every page in a browser, and for the pictures of the guide (`python -m tests.web.pictures`).
"""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import quote

from qworker.client.namespace.audit import Deed, record_deed
from qworker.client.namespace.paused_tasks import pause_task
from qworker.client.namespace.workers import Worker, read_workers
from qworker.daemon.schedule_changes import pause
from qworker.wire.codec import encode_call
from tests.cli.conftest import Shop, clean_environment
from tests.consumer.forkserver import Order, start_module
from tests.topologies.servers import until

__all__ = ["LONG", "exhibit"]

LONG = "a-queue-with-the-longest-name-that-a-queue-may-have.and-one-more"
APP = '''
"""The tasks of a shop."""
import asyncio
import time
from qworker import QWorker, Retry, Run, SyncRun, chain, every, group

app = QWorker({namespace!r}, url={url!r})


@app.task(queue="emails", retry=Retry.none())
def send_email(to: str, template: str) -> None:
    if template == "invoice":
        raise ConnectionRefusedError(f"no answer from mail-{{len(to)}}.example.org port 25")
    if template == "receipt":
        raise KeyError(to)
    time.sleep(0.005)


@app.task(queue="payments", result="1h", retry=Retry.fixed("250ms"))
def charge_card(order: str, cents: int) -> dict:
    if order not in seen:
        seen.add(order)
        time.sleep(0.12)
        raise TimeoutError("the bank did not answer within 120 ms")
    time.sleep(0.08)
    return {{"order": order, "cents": cents, "state": "charged"}}


seen = set()


@app.task(queue="images")
def resize_image(path: str) -> None:
    scale(path)


def scale(path: str) -> None:
    while True:
        time.sleep(0.05)


@app.workflow(queue="orders", result="1h", retry=Retry.none())
def fulfil_order(run: SyncRun, order: str) -> str:
    run.step("reserve", reserve, order)
    paid = run.step("charge", charge, order)
    if paid["cents"] > 10_000:
        run.wait(str, name="approval", timeout="2d")
    run.step("ship", lambda: f"parcel of {{order}}")
    return f"parcel of {{order}}"


@app.workflow(queue="orders", result="1h", retry=Retry.none())
async def import_catalogue(run: Run, name: str) -> int:
    await run.step("lock", lambda: name)
    sizes = await asyncio.gather(*(import_shop(run, at) for at in range(3)))
    await run.step("index", lambda: time.sleep(0.08))
    await run.wait(str, name="publish")
    return sum(sizes)


async def import_shop(run: Run, at: int) -> int:
    rows = await run.step(f"read/shop-{{at}}", rows_of, at)
    return await run.step(f"store/shop-{{at}}", store, rows)


async def rows_of(at: int) -> list[int]:
    await asyncio.sleep(0.1 + 0.12 * at)
    return [at] * 3


async def store(rows: list[int]) -> int:
    await asyncio.sleep(0.15)
    return 1_000 * len(rows)


def reserve(order: str) -> dict:
    time.sleep(0.06)
    return {{"shelf": "B-17", "items": 3}}


def charge(order: str) -> dict:
    time.sleep(0.15)
    if order == "order-13":
        raise ValueError("order-13 has no address")
    return {{"cents": 12_900 if order == "order-17" else 4_200}}


@app.task(queue="exports", result="1h", retry=Retry.none())
def fetch_orders(day: str) -> list[str]:
    if day == "2031-05-19":
        raise ValueError("there is no file of this day")
    return [f"order-{{day[-2:]}}"]


@app.task(queue="reports", result="1h")
def merge_orders(days: list[list[str]]) -> int:
    return len(days)


@app.task(queue="reports", result="1h")
def sum_up(orders: list[str]) -> dict:
    return {{}}


@app.schedule("0 4 * * *", name="nightly-report")
@app.schedule(every("30m", overlap="skip"), name="stock-count")
@app.schedule("*/5 * * * *", name="refresh-prices")
@app.task(queue="reports")
def report() -> None:
    time.sleep(0.01)
'''


@contextmanager
def exhibit(shop: Shop, folder: Path, *, ordinary: bool = False) -> Iterator[dict[str, str]]:
    """Open the shop; yields the path of each page by a name. `ordinary`: without what is long, foreign or broken."""
    for name in ("payments", "orders"):
        shop.queue(name).create(journal="all")
    source = APP.format(namespace=shop.namespace, url=shop.url)
    (folder / "shop_tasks.py").write_text(source)
    words = ["run", "shop_tasks", "--procs", "2", "--concurrency", "4", "--grace", "100ms"]
    environment = clean_environment(QWORKER_URL=shop.url, PYTHONPATH=str(folder))
    order = Order(
        "qworker", [*words, "--metrics-port", "0"], str(folder), environment, nursery=True
    )
    with Path(os.devnull).open("wb") as unread:
        worker = start_module(order, unread)
    tasks: dict[str, Any] = {"__name__": "shop_tasks"}
    exec(source, tasks)
    try:
        yield _fill(shop, tasks, ordinary=ordinary)
    finally:
        tasks["app"].close()
        os.kill(worker.pid, signal.SIGTERM)
        worker.wait(60)


def _fill(shop: Shop, tasks: dict[str, Any], *, ordinary: bool) -> dict[str, str]:
    charged, merged = _send(shop, tasks)
    if not ordinary:
        _disturb(shop)
    emails, orders, reports = (shop.queue(name) for name in ("emails", "orders", "reports"))
    until(lambda: emails.inspect().dead == 10)
    until(lambda: sorted(run.state for run in orders.runs()) == ["dead", "waiting", "waiting"])
    until(lambda: shop.queue("payments").outcome(charged) is not None)
    until(lambda: reports.call_group(merged).state == "blocked")
    until(lambda: shop.queue("images").inspect().unacked == 3)
    [step] = until(lambda: reports.peek(1, state="delayed"))
    worker = until(lambda: _busy_worker(shop))
    pause(shop.client, shop.keys("reports"), "refresh-prices")
    pause_task(shop.client.execute, shop.namespace, "charge_card", shop.now_ms())
    deed = Deed("ada", "dead redrive", "emails --error KeyError", "3 dead letters redriven; done")
    record_deed(shop.client.execute, shop.namespace, deed)
    return {
        **_pages("emails" if ordinary else LONG),
        **_pages_of_messages(shop, charged, step.id),
        **_pages_of_worker(worker),
        **_pages_of_calls(merged),
        **({} if ordinary else {"broken": "/queues/broken"}),
    }


def _send(shop: Shop, tasks: dict[str, Any]) -> tuple[str, str]:
    """Send calls of every kind; the ids of a payment and of a group."""
    emails, webhooks = shop.queue("emails"), shop.queue("webhooks")
    people = ("ada", "grace", "alan", "edsger", "barbara", "donald")
    shop.queue("images").send_many(
        [encode_call("resize_image", [f"/srv/images/{at}.png"], {}) for at in range(3)]
    )
    charged = tasks["charge_card"].send("order-17", 12_900)
    for template, number in (("invoice", 7), ("receipt", 3), ("welcome", 20)):
        to = [f"{people[at % 6]}@example.org" for at in range(number)]
        emails.send_many([encode_call("send_email", [one, template], {}) for one in to])
    for order in ("order-17", "order-13", "order-21"):
        tasks["fulfil_order"].options(id=order).start(order)
    tasks["import_catalogue"].options(id="catalogue-7").start("spring")
    fetch, sum_up = tasks["fetch_orders"], tasks["sum_up"]
    days = [fetch.call(f"2031-05-{day}") for day in (17, 18, 19, 20)]
    merged = tasks["group"](days, policy="successes").then(tasks["merge_orders"]).start()
    steps = sum_up.options(delay="2h").then(), sum_up.options(delay="1h").then()
    tasks["chain"](fetch.call("2031-05-17"), *steps).start()
    emails.send_many(
        [encode_call("send_email", ["ada@example.org", "reminder"], {})] * 4, delay="2h"
    )
    webhooks.send_many([encode_call("call_webhook", [at], {}) for at in range(12)])
    for tenant, number in (("acme/ann", 7), ("acme/bob", 2), ("zeta", 1)):
        webhooks.send_many([encode_call("call_webhook", [tenant], {})] * number, group=tenant)
    webhooks.set_limit("acme/*", concurrency=2, rate="100/s")
    webhooks.set_limit("zeta", weight=3.0)
    return charged, merged.id


def _disturb(shop: Shop) -> None:
    """Add what is long, foreign or broken."""
    shop.send(LONG, 2)
    shop.bury(f"ValueError: {'x' * 300}", "Error: of\nseveral\nlines", name=LONG, task="t" * 100)
    shop.break_queue("broken")
    shop.queue(LONG).pause("in")
    shop.add_worker("a-host-with-a-name.internal.example.org-12345-abcdef", tasks=["t" * 100])
    shop.add_worker("silent", age_ms=90_000)
    record_deed(shop.client.execute, shop.namespace, Deed("eve", "queue pause", LONG, "x" * 300))


def _busy_worker(shop: Shop) -> Worker | None:
    """The worker of the shop, once three of its tasks run."""
    for worker in read_workers(_Asks(shop)):
        if worker.described.app.startswith("shop_tasks") and len(worker.running) == 3:
            return worker
    return None


def _pages(busiest: str) -> dict[str, str]:
    return {
        "overview": "/",
        "queues": "/queues",
        "queue": f"/queues/{busiest}",
        "messages": f"/queues/{busiest}/messages?task=s",
        "groups": "/queues/webhooks/groups",
        "limit": f"/queues/webhooks/groups/rm?name={quote('acme/*', safe='')}",
        "dead": f"/queues/{busiest}/dead",
        "emails-dead": "/queues/emails/dead",
        "redrive": "/queues/emails/dead/redrive?error=KeyError&rate=10/s",
        "schedules": "/schedules",
        "runs": "/runs",
        "run": "/runs/orders/order-17",
        "ended": "/runs/orders/order-21",
        "calls": "/calls",
        "parallel": "/runs/orders/catalogue-7",
        "durability": "/durability",
        "health": "/health",
        "audit": "/audit",
        "find": "/find?id=nothing",
        "missing": "/queues/nothing",
    }


def _pages_of_messages(shop: Shop, charged: str, step: str) -> dict[str, str]:
    entry = shop.queue("emails").dead(1)[0].entry_id
    running = shop.queue("images").peek(1, state="unacked")[0]
    return {
        "message": f"/queues/payments/messages/{charged}",
        "running": f"/queues/images/messages/{running.id}?state=unacked",
        "delete": f"/queues/images/messages/{running.id}/delete?state=unacked",
        "letter": f"/queues/emails/dead/{entry}",
        "edit": f"/queues/emails/dead/edit?entry={entry}",
        "chain": f"/queues/reports/messages/{step}",
    }


def _pages_of_worker(worker: Worker) -> dict[str, str]:
    page = f"/worker?name={quote(worker.name)}"
    return {
        "workers": "/workers",
        "worker": f"{page}&stacks=1",
        "drain": page.replace("/worker", "/workers/drain"),
    }


def _pages_of_calls(group: str) -> dict[str, str]:
    page = f"/calls/reports/{group}"
    return {"group": page, "abandon": f"{page}/abandon", "cancel-group": f"{page}/cancel"}


class _Asks:
    """Asks for the namespace of a shop."""

    def __init__(self, shop: Shop) -> None:
        self.namespace = shop.namespace
        self.ask = shop.ask
        self.now_ms = shop.now_ms
