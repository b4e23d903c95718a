"""A shop with something of everything that a page shows or an action changes, made in a second."""

from __future__ import annotations

from qworker import QWorker, Retry, SyncRun, group
from qworker.client.namespace.paused_tasks import pause_task
from qworker.daemon.schedule_changes import pause
from qworker.testing import drain
from tests.cli.conftest import Shop

__all__ = ["fill"]


def fill(shop: Shop) -> list[str]:
    """Put something of everything into a shop; returns the pages of it, and of the questions before it is changed."""
    app = QWorker(shop.namespace, url=shop.url)

    @app.task(queue="video", result="1h", max_receives=1)
    def halve(number: int) -> int:
        return 60 // number

    @app.task(queue="web", result="1h")
    def total(values: list[int]) -> int:
        return sum(values)

    @app.workflow(queue="orders", result="1h", retry=Retry.none())
    def order(run: SyncRun, fails: bool) -> None:
        run.step("begin", lambda: 1 // (not fails))
        run.wait(str, name="approval")

    for run_id, fails in (("waiting-1", False), ("dead-1", True)):
        order.options(id=run_id).start(fails)
    started = group([halve.call(0), halve.call(1)], policy="successes").then(total).start()
    drain(app, errors="collect", include_delayed=False)
    for name in ("hourly", "paused"):
        total.schedule(name, "0 * * * *", [7])
    pause(shop.client, shop.keys("web"), "paused")
    shop.bury("ValueError: x", "KeyError: y")
    entry = shop.queue().dead(1)[0].entry_id
    [ready] = shop.send()
    [delayed] = shop.send(delay="1h")
    [held] = shop.send("held")
    shop.queue("held").hold(held)
    [unacked] = shop.send("busy")
    shop.queue("busy").receive(1)
    shop.rate_limit("crm", "acme/ann")
    shop.queue("paused").create()
    shop.queue("paused").pause("all")
    shop.queue().set_limit("acme/*", concurrency=2)
    shop.add_worker(tasks=["send_email", "stopped"])
    pause_task(shop.client.execute, shop.namespace, "stopped", shop.now_ms())
    app.close()
    message = "/queues/emails/messages"
    return [
        "/", "/queues", "/queues/emails", "/queues/paused", message, f"{message}/{ready}?state=ready",
        f"{message}/{delayed}?state=delayed", f"{message}/{delayed}/cancel", f"{message}/{delayed}/delete",
        f"/queues/held/messages/{held}?state=held", f"/queues/busy/messages/{unacked}?state=unacked",
        "/queues/emails/groups", "/queues/emails/groups/rm?name=acme/*", "/queues/crm/groups",
        "/queues/emails/dead", "/queues/emails/dead/redrive", "/queues/emails/dead/drop",
        f"/queues/emails/dead/{entry}", f"/queues/emails/dead/edit?entry={entry}",
        "/workers", "/workers/drain?name=web-1-a", "/worker?name=web-1-a",
        "/schedules", "/schedules/rm?queue=web&name=hourly", "/runs", "/runs/orders/waiting-1",
        "/runs/orders/waiting-1/cancel", "/runs/orders/dead-1", "/calls", f"/calls/web/{started.id}",
        f"/calls/web/{started.id}/abandon", f"/calls/web/{started.id}/cancel", "/find", "/durability",
        "/health", "/audit",
    ]  # fmt: skip
