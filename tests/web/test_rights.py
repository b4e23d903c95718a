"""What each user is offered and may do: on every page, in every action, beside others, after the rights are gone."""

from __future__ import annotations

import asyncio
import re
import threading
from collections.abc import Callable
from typing import Any

import httpx
import pytest

from qworker import QWorker, Retry, SyncRun, group
from qworker.client.namespace.audit import read_deeds
from qworker.client.namespace.paused_tasks import pause_task
from qworker.daemon.schedule_changes import pause
from qworker.testing import drain
from qworker.web import DESTROY, OPERATE, RIGHTS, VIEW, Access
from qworker.web.actions.table import ACTIONS
from qworker.web.application import Dashboard
from tests.cli.conftest import Shop
from tests.topologies.servers import until
from tests.web.conftest import Browser, Document
from tests.web.test_live import stream

#: Forms by which a page asks first, by the end of their paths, and the rights that these need.
QUESTIONS = {
    "/cancel": DESTROY,
    "/delete": DESTROY,
    "/drop": DESTROY,
    "/edit": DESTROY,
    "/abandon": DESTROY,
    "/schedules/rm": DESTROY,
    "/groups/rm": OPERATE,
    "/redrive": OPERATE,
    "/drain": OPERATE,
}
USERS = [set(rights) for rights in ((VIEW,), (VIEW, OPERATE), (VIEW, DESTROY), RIGHTS)]


@pytest.fixture
def paths(shop: Shop) -> list[str]:
    """A shop with something of everything; the pages that show it, and the questions before it is changed."""
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
        "/queues/emails/groups", "/queues/emails/groups/rm?name=acme/*", "/queues/emails/dead",
        "/queues/emails/dead/redrive", "/queues/emails/dead/drop", f"/queues/emails/dead/{entry}",
        f"/queues/emails/dead/edit?entry={entry}", "/workers", "/workers/drain?name=web-1-a", "/worker?name=web-1-a",
        "/schedules", "/schedules/rm?queue=web&name=hourly", "/runs", "/runs/orders/waiting-1",
        "/runs/orders/waiting-1/cancel", "/runs/orders/dead-1", "/calls", f"/calls/web/{started.id}",
        f"/calls/web/{started.id}/abandon", "/find", "/durability", "/health", "/audit",
    ]  # fmt: skip


def action_of(path: str) -> str:
    """The path of an action in the table, with its names."""
    [found] = [
        one for one in ACTIONS if re.fullmatch(re.sub(r"\{[a-z]+\}", "[^/]+", one), path)
    ] or [""]
    return found


def test_pages_offer_what_their_user_may_do_and_all_of_it(
    made: Callable[..., Dashboard], shop: Shop, paths: list[str]
) -> None:
    """No button and no question leads to a refusal; whoever may do everything finds every action on some page.

    A question is shown to all who may look: what it asks for is refused.
    """
    for rights in USERS:
        browser = Browser(made(authorize=lambda _, r=rights: Access("ada", frozenset(r))))
        offered: set[str] = set()
        for path in paths:
            answer = browser.get(path)
            assert answer.status_code == 200, (path, answer.text)
            page, asks = answer.text, path.partition("?")[0].endswith(tuple(QUESTIONS))
            for form in Document(page).all("form"):
                to = form["action"].partition("?")[0]
                if form["method"] == "post":
                    name = action_of(to)
                    assert name, (path, to)
                    offered.add(name)
                    assert asks or ACTIONS[name].right in rights, (rights, path, to)
                else:
                    needed = [right for end, right in QUESTIONS.items() if to.endswith(end)]
                    assert set(needed) <= rights, (rights, path, to)
        if rights == RIGHTS:
            # A button that is there while a change runs, or an undo is possible.
            assert set(ACTIONS) - offered == {"/queues/{queue}/dead/stop"}


def test_the_right_of_each_action_is_as_the_guide_says() -> None:
    """A table of its own, so that no change of one passes unseen: what cannot be undone destroys."""
    destroys = {path for path, action in ACTIONS.items() if action.right == DESTROY}
    assert destroys == {
        "/queues/{queue}/messages/{message}/cancel",
        "/queues/{queue}/messages/{message}/delete",
        "/queues/{queue}/dead/drop",
        "/queues/{queue}/dead/edit",
        "/schedules/rm",
        "/runs/{queue}/{message}/cancel",
        "/calls/{queue}/{message}/abandon",
    }
    assert {action.right for path, action in ACTIONS.items() if path not in destroys} == {OPERATE}


def test_a_stream_ends_when_its_user_may_see_less(
    made: Callable[..., Dashboard], shop: Shop, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A page that is left open does not outlast its user's rights; the browser asks again, and is refused."""
    shop.send()
    monkeypatch.setattr("qworker.web.application._ASK_S", 0.0)
    rights = [frozenset({VIEW, OPERATE})]
    dashboard = made(authorize=lambda _: Access("ada", rights[0]) if rights[0] else None)

    async def watch() -> None:
        async with stream(dashboard, "/queues/emails") as open_page:
            assert "Pause receiving" in await open_page.event()
            rights[0] = frozenset({VIEW})
            await asyncio.to_thread(shop.send, "emails", 6)
            await open_page.ends()
        async with stream(dashboard, "/queues/emails") as open_page:
            assert "Pause receiving" not in await open_page.event()
            rights[0] = frozenset()
            await open_page.ends()
        async with stream(dashboard, "/queues/emails") as open_page:
            refused = await open_page.event()
            assert "ask whoever runs" in refused
            assert "emails" not in refused

    asyncio.run(watch())


@pytest.mark.bad_input("dashboard: ids and names of what belongs to another queue")
def test_what_belongs_to_another_queue_is_not_changed_through_this_one(
    browser: Browser, shop: Shop, paths: list[str]
) -> None:
    """Forged paths and forms, each with an id that exists elsewhere."""
    browser.application._jobs.undo_s = 3_600.0
    shop.queue("other").create()
    entry = shop.queue().dead(1)[0].entry_id
    [delayed] = [one.id for one in shop.queue().peek(10, state="delayed")]
    assert browser.post("/queues/emails/dead/drop", {"entry": entry}).status_code == 303
    page = browser.get("/queues/emails/dead").text
    [job] = re.findall(r'name="job" value="([^"]+)"><button>Undo<', page)
    started = next(path for path in paths if path.startswith("/calls/web/")).rpartition("/")[2]
    before = {key: value for key, value in shop.dump().items() if b"audit" not in key}

    for path, form in {
        "/queues/other/dead/stop": {"job": job},
        "/queues/other/dead/edit": {"entry": entry, "body": "{}"},
        f"/queues/other/messages/{delayed}/delete": {},
        f"/queues/other/messages/{delayed}/hold": {},
        f"/queues/other/messages/{delayed}/enqueue": {},
        "/queues/other/groups/rm": {"name": "../emails"},
        "/runs/other/waiting-1/signal": {"name": "approval", "value": "null"},
        "/runs/other/dead-1/redrive": {},
        f"/calls/other/{started}/abandon": {},
        f"/calls/emails/{started}/abandon": {},
        "/schedules/rm": {"queue": "other", "name": "hourly"},
        "/schedules/run": {"queue": "emails", "name": "hourly"},
        "/workers/drain": {"name": "web-2"},
    }.items():
        answer = browser.post(path, form)
        done = (
            answer.status_code == 303
            and "had no limits" in browser.get(answer.headers["location"]).text
        )
        assert done or answer.status_code in (400, 404, 409), (path, answer.text)
        assert "Traceback" not in answer.text

    assert {key: value for key, value in shop.dump().items() if b"audit" not in key} == before
    undone = browser.post("/queues/emails/dead/stop", {"job": job})
    assert "undone: nothing was dropped" in browser.get(undone.headers["location"]).text


def at_once(*requests: Callable[[], httpx.Response]) -> list[int]:
    """Send requests at the same time; returns their statuses, sorted."""
    statuses: list[int] = []
    gate = threading.Barrier(len(requests))

    def send(request: Callable[[], httpx.Response]) -> None:
        gate.wait()
        statuses.append(request().status_code)

    crowd = [threading.Thread(target=send, args=(request,)) for request in requests]
    for one in crowd:
        one.start()
    for one in crowd:
        one.join()
    return sorted(statuses)


def test_two_operators_at_once_do_everything_once(
    made: Callable[..., Dashboard], shop: Shop, paths: list[str]
) -> None:
    """Of two who press the same button one is told that it is done already; the trail has both.

    None: one may come while the other is at it, and then both have done it.
    """
    ada, grace = (
        Browser(made(authorize=lambda _, user=user: Access(user, RIGHTS)))
        for user in ("ada", "grace")
    )  # two processes
    for browser in (ada, grace):
        browser.get("/queues/emails")
    [delayed] = [one.id for one in shop.queue().peek(10, state="delayed")]
    started = next(path for path in paths if path.startswith("/calls/web/")).rpartition("/")[2]
    entry = shop.queue().dead(1)[0].entry_id
    ready = shop.queue().inspect().ready
    for path, form, statuses in (
        ("/queues/emails/dead/redrive", {"entry": entry, "rate": ""}, [303, 303]),
        (f"/queues/emails/messages/{delayed}/delete", {}, None),
        (f"/calls/web/{started}/abandon", {}, [303, 400]),
        ("/runs/orders/dead-1/redrive", {}, [303, 400]),
        ("/schedules/rm", {"queue": "web", "name": "hourly"}, None),
        ("/queues/emails/pause", {"direction": "out"}, [303, 303]),
    ):
        both = [lambda b=browser, p=path, f=form: b.post(p, f) for browser in (ada, grace)]
        found = at_once(*both)
        assert found == statuses or (statuses is None and found in ([303, 400], [303, 303])), path
    assert shop.queue().inspect().ready == ready + 1
    assert shop.queue().inspect().delayed == 0
    assert shop.queue("orders").inspect().dead == 0
    outcomes = [
        (deed.user, deed.outcome)
        for deed in read_deeds(shop.client.execute, shop.namespace)
        if deed.verb == "dead redrive"
    ]
    assert {user for user, _ in outcomes} == {"ada", "grace"}
    assert sorted(outcome.partition(" ")[0] for _, outcome in outcomes) == ["0", "1"]


def test_a_crowd_of_changes_is_bounded(browser: Browser, shop: Shop) -> None:
    """Each holds a thread and a connection; the ninth is refused with what to do, and a place is free again later."""
    shop.bury(*["ValueError: x"] * 30)
    browser.get("/queues/emails/dead")

    def start() -> httpx.Response:
        asked = browser.get("/queues/emails/dead/redrive?rate=1/s&error=ValueError").text
        fields = dict(re.findall(r'<input type="hidden" name="([a-z_]+)" value="([^"]*)">', asked))
        return browser.post("/queues/emails/dead/redrive", fields)

    answers = [start() for _ in range(9)]

    assert [one.status_code for one in answers] == [303] * 8 + [400]
    assert "8 others are running" in answers[8].text
    jobs = re.findall(r'name="job" value="([^"]+)"', browser.get("/queues/emails/dead").text)
    assert len(jobs) == 8
    browser.post("/queues/emails/dead/stop", {"job": jobs[0]})
    until(lambda: start().status_code == 303)


def test_a_queue_that_is_removed_while_it_is_looked_at_has_pages_that_say_so(
    browser: Browser, shop: Shop, paths: list[str]
) -> None:
    """Every page and action of it: 404 or a refusal, never a defect; the others go on."""
    texts: dict[str, Any] = {}
    for path in paths:
        browser.get(path)
    shop.queue().remove()
    until(lambda: browser.get("/queues/emails").status_code == 404)
    for path in paths:
        answer = browser.get(path)
        gone = path.startswith("/queues/emails")
        assert answer.status_code == (404 if gone else 200), (path, answer.text)
        texts[path] = answer.text
    for name in ACTIONS:
        if name.startswith("/queues/{queue}"):
            path = name.replace("{queue}", "emails").replace("{message}", "m-1")
            answer = browser.post(path, {"direction": "out"})
            assert (answer.status_code, "no such queue" in answer.text) == (400, True), path
