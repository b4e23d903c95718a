"""What each user is offered and may do: on every page, in every action, beside others, after the rights are gone."""

from __future__ import annotations

import asyncio
import re
import threading
from collections.abc import Callable
from typing import Any

import httpx
import pytest

from qworker.client.namespace.audit import read_deeds
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


def action_of(path: str) -> str:
    """The path of an action in the table, with its names."""
    [found] = [
        one for one in ACTIONS if re.fullmatch(re.sub(r"\{[a-z]+\}", "[^/]+", one), path)
    ] or [""]
    return found


@pytest.mark.slow
def test_pages_offer_what_their_user_may_do_and_all_of_it(
    made: Callable[..., Dashboard], shop: Shop, paths: list[str]
) -> None:
    """No button and no question leads to a refusal; whoever may do everything finds every action on some page.

    A question is shown to all who may look: what it asks for is refused.
    """
    for rights in USERS:
        browser = Browser(made(authorize=lambda _, r=rights: Access("ada", frozenset(r))))
        shop.add_worker(
            tasks=["send_email", "stopped"]
        )  # anew: after a while it would count as gone
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
        "/calls/{queue}/{message}/cancel",
    }
    assert {action.right for path, action in ACTIONS.items() if path not in destroys} == {OPERATE}


def test_the_trail_names_the_user_whom_authorize_gave(
    made: Callable[..., Dashboard], shop: Shop
) -> None:
    """Nothing that a browser sends changes that."""
    shop.send()
    browser = Browser(made(authorize=lambda _: Access("ada", RIGHTS)))
    claims = {"user": "eve", "access": "eve", "direction": "out"}
    assert browser.post("/queues/emails/pause?user=eve", claims, user="eve").status_code == 303
    assert [deed.user for deed in read_deeds(shop.client.execute, shop.namespace)] == ["ada"]


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
            assert "ask the operator" in refused
            assert "emails" not in refused

    asyncio.run(watch())


@pytest.mark.bad_input("dashboard: ids and names of what belongs to another queue")
@pytest.mark.slow
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
        "/queues/other/groups/resume": {"name": "acme/ann"},
        "/runs/other/waiting-1/signal": {"name": "approval", "value": "null"},
        "/runs/other/dead-1/redrive": {},
        f"/calls/other/{started}/abandon": {},
        f"/calls/emails/{started}/abandon": {},
        "/schedules/rm": {"queue": "other", "name": "hourly"},
        "/schedules/run": {"queue": "emails", "name": "hourly"},
        "/workers/drain": {"name": "web-2"},
    }.items():
        answer = browser.post(path, form)
        moved_to = answer.headers.get("location")
        done = moved_to and re.search("had no limits|RateLimited makes", browser.get(moved_to).text)
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


@pytest.mark.slow
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


@pytest.mark.slow
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


@pytest.mark.slow
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
        if "drain" in path:
            shop.add_worker(tasks=["send_email"])  # anew: after a while it would count as gone
            until(lambda: "alive" in browser.get("/worker?name=web-1-a").text)
        answer = browser.get(path)
        gone = path.startswith("/queues/emails")
        assert answer.status_code == (404 if gone else 200), (path, answer.text)
        texts[path] = answer.text
    for name in ACTIONS:
        if name.startswith("/queues/{queue}"):
            path = name.replace("{queue}", "emails").replace("{message}", "m-1")
            answer = browser.post(path, {"direction": "out"})
            assert (answer.status_code, "does not exist" in answer.text) == (400, True), path
