"""Who gets in, and what they may do: every page and action, asked for by the wrong people in the wrong way."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
from starlette.requests import Request
from starlette.responses import RedirectResponse

from qworker.client.namespace.audit import read_deeds
from qworker.errors import InvalidOptionError
from qworker.monitor.namespace import Namespace
from qworker.store.url import ServerURL
from qworker.web import DESTROY, OPERATE, RIGHTS, VIEW, Access
from qworker.web.access import OneTimeLink
from qworker.web.actions.table import ACTIONS
from qworker.web.application import Dashboard
from qworker.web.guard import Guard
from tests.cli.conftest import Shop
from tests.web.conftest import HOST, PATHS, Browser

#: Each action, of a queue, message and worker that are there or not.
CHANGES = [path.replace("{queue}", "emails").replace("{message}", "m-1") for path in ACTIONS]
FORM = {"direction": "out"}
#: What each action takes; where nothing of it is there, it is refused with 400.
FORMS = {
    "/queues/{queue}/pause": FORM,
    "/queues/{queue}/resume": FORM,
    "/queues/{queue}/dead/redrive": {"entry": "1-1"},
    "/queues/{queue}/dead/drop": {"entry": "1-1"},
    "/queues/{queue}/groups/set": {"name": "acme", "concurrency": "5"},
    "/queues/{queue}/groups/rm": {"name": "acme"},
    "/queues/{queue}/groups/resume": {"name": "acme/ann"},
    "/tasks/pause": {"name": "send_email"},
    "/workers/drain": {"name": "web-1-a"},
}


def changed(shop: Shop) -> tuple[str, list[str]]:
    """The pause of the queue, and the verbs of the audit trail."""
    deeds = read_deeds(shop.client.execute, shop.namespace)
    return shop.queue().inspect().paused, [deed.verb for deed in deeds]


@pytest.mark.slow
def test_without_access_there_is_nothing_but_probes_and_files(
    made: Callable[..., Dashboard], shop: Shop
) -> None:
    """No page, no stream, no action; not for an `authorize` that returns anything else either."""
    shop.send()
    for given in (None, True, "ada", {"user": "ada"}):
        browser = Browser(made(authorize=lambda request, given=given: given))
        for path in PATHS:
            answer = browser.get(path)
            assert (answer.status_code, "emails" in answer.text) == (401, False), path
            events = browser.get(path, accept="text/html, text/event-stream").text
            assert ("ask the operator" in events, "emails" in events) == (True, False)
        for path in CHANGES:
            assert browser.post(path, FORM).status_code == 401
        assert browser.get("/healthz").text == "ok\n"
        assert browser.get("/static/style.css").status_code == 200
    assert changed(shop) == ("", [])


@pytest.mark.slow
def test_each_action_needs_its_right_and_every_page_needs_view(
    made: Callable[..., Dashboard], shop: Shop
) -> None:
    """Each set of rights, and the read-only mode, which nobody's rights overrule."""
    shop.send()
    for rights in ({VIEW}, {VIEW, OPERATE}, {VIEW, DESTROY}, {OPERATE, DESTROY}, set(), RIGHTS):
        for read_only in (False, True):
            shop.add_worker(tasks=["send_email"])  # anew: after a while it would count as gone
            user = Access("ada", frozenset(rights))
            browser = Browser(made(authorize=lambda request, u=user: u, read_only=read_only))
            page = browser.get("/queues/emails")
            assert page.status_code == (200 if VIEW in rights else 403)
            assert ("<button" in page.text) == ({VIEW, OPERATE} <= rights and not read_only)
            for (name, action), path in zip(ACTIONS.items(), CHANGES, strict=True):
                allowed = {VIEW, action.right} <= rights and not read_only
                answer = browser.post(path, FORMS.get(name, {"job": "x", "name": "x"}))
                done = 303 if name in FORMS else 400
                assert answer.status_code == (done if allowed else 403), (name, rights, read_only)
                if not allowed:
                    assert changed(shop) == ("", []), name
                shop.queue().resume()
                shop.ask("DEL", f"{shop.namespace}:audit")
            browser.application.close()


@pytest.mark.parametrize(
    "forged",
    [
        {"origin": ""},
        {"origin": "null"},
        {"origin": "http://evil.test"},
        {"origin": f"http://{HOST}.evil.test"},
        {"origin": f"http://evil.test#{HOST}"},
        {"origin": f"http://{HOST}:8080"},
        {"origin": f"http://ada@{HOST}"},
        {"origin": f"chrome-extension://{HOST}"},
        {"origin": HOST},
        {"origin": "https://other.test"},
        {"sec_fetch_site": "cross-site"},
        {"sec_fetch_site": "same-site"},
        {"sec_fetch_site": "none"},
    ],
    ids=str,
)
def test_a_change_that_no_page_of_ours_asked_for_is_refused(
    made: Callable[..., Dashboard], shop: Shop, forged: dict[str, str]
) -> None:
    """The cookie or the proxy's header comes with forged requests too."""
    shop.send()
    browser = Browser(made(origins=["https://ours.test"]))
    for path in CHANGES:
        answer = browser.post(path, FORM, **forged)
        assert answer.status_code == 403
        assert "Origin" in answer.text
    assert changed(shop) == ("", [])


def test_a_change_from_our_own_pages_is_made(made: Callable[..., Dashboard], shop: Shop) -> None:
    """Also from a browser that sends no Sec-Fetch-Site, and by a proxy that rewrites the host."""
    shop.send()
    browser = Browser(made(origins=["https://ours.test"]))
    for headers in (
        {},
        {"sec_fetch_site": ""},
        {"origin": f"https://{HOST}"},
        {"origin": "https://ours.test", "sec_fetch_site": "cross-site"},
    ):
        answer = browser.post("/queues/emails/pause", FORM, **headers)
        assert answer.status_code == 303
    assert changed(shop) == ("out", ["queue pause"] * 4)


@pytest.mark.bad_input("dashboard: forms of another type, too large, incomplete")
def test_a_wrong_form_changes_nothing(browser: Browser, shop: Shop) -> None:
    """Each with its own status and a page that says why."""
    shop.send()
    form = {"content-type": "application/x-www-form-urlencoded"}
    for content, headers, status in (
        (b"direction=out", {"content-type": "text/plain"}, 415),
        (b"direction=out", {"content-type": ""}, 415),
        (b"direction=out&direction=in", form, 400),
        (b"direction=sideways", form, 400),
        (b"direction=", form, 400),
        (b"", form, 400),
        (b"direction=%ff", form, 400),
        (b"direction=\xc3\xbc", form, 400),
        (b"&".join(b"a%d=1" % at for at in range(60)), form, 400),
        (b"direction=" + b"o" * 70_000, form, 413),
    ):
        own = {"origin": f"http://{HOST}", **headers}
        answer = browser.request("POST", "/queues/emails/pause", own, content=content)
        assert answer.status_code == status, content[:40]
        assert "<h1>" in answer.text
    assert browser.post("/queues/nothing-here/pause", FORM).status_code == 400
    assert browser.post("/queues/emails/explode", FORM).status_code == 404
    assert browser.get("/queues/emails/pause").status_code == 405
    assert shop.queue().inspect().paused == ""
    assert {deed.outcome.partition(":")[0] for deed in deeds(shop)} == {"failed"}


def deeds(shop: Shop) -> list[Any]:
    return read_deeds(shop.client.execute, shop.namespace)


def test_authorize_may_be_a_coroutine_and_may_answer_itself(
    made: Callable[..., Dashboard], shop: Shop
) -> None:
    """It sees the request: here a header that a proxy sets, and a login page for those without."""

    async def authorize(request: Request) -> Any:
        await asyncio.sleep(0)
        user = request.headers.get("x-forwarded-user")
        return Access(user, {VIEW}) if user else RedirectResponse("https://login.test/", 302)  # type: ignore[arg-type]

    browser = Browser(made(authorize=authorize))
    for answer in (browser.get("/"), browser.post("/queues/emails/pause", FORM)):
        assert (answer.status_code, answer.headers["location"]) == (302, "https://login.test/")
    page = browser.get("/", x_forwarded_user="grace<b>")
    assert "grace&lt;b&gt;" in page.text
    assert "read-only" in page.text


def test_a_right_that_does_not_exist_is_refused() -> None:
    """A typo must not look like a right that is missing, or be one some day."""
    with pytest.raises(
        ValueError, match="no such right: redrive; rights are destroy, operate, view"
    ):
        Access("ada", frozenset({"view", "redrive"}))


@pytest.fixture
def linked(shop: Shop) -> Any:
    """A dashboard as `qworker web` makes it without --authorize, and the tokens that it printed."""
    tokens: list[str] = []
    link = OneTimeLink("qworker_1", tokens.append)
    url = ServerURL.parse(shop.url)
    dashboard = Dashboard(
        Namespace(shop.namespace, shop.client, url, url), Guard(link.authorize), link=link
    )
    yield Browser(dashboard), tokens
    dashboard.close()


def test_a_link_lets_one_browser_in_once(linked: tuple[Browser, list[str]]) -> None:
    """Its token is of no use afterwards, and the next one is printed; the cookie is out of reach of scripts."""
    browser, tokens = linked
    assert "qworker web has printed" in browser.get("/").text
    for wrong in ("", "x", tokens[0][:-1], "ü"):
        assert browser.get(f"/enter?token={wrong}").status_code == 401
    assert len(tokens) == 1

    entered = browser.get(f"/enter?token={tokens[0]}")

    assert (entered.status_code, entered.headers["location"]) == (303, "/")
    cookie = entered.headers["set-cookie"]
    assert cookie.startswith("qworker_1=")
    assert {"HttpOnly", "Path=/", "SameSite=strict"} <= {part.strip() for part in cookie.split(";")}
    assert len(tokens) == 2
    assert browser.get(f"/enter?token={tokens[0]}").status_code == 401
    browser.headers["cookie"] = cookie.partition(";")[0]
    assert browser.get("/").status_code == 200
    assert browser.get("/", cookie="qworker_1=x").status_code == 401
    assert browser.get(f"/enter?token={tokens[1]}").status_code == 303
    assert browser.get("/").status_code == 200  # two browsers


def test_a_link_knows_the_last_hundred_browsers() -> None:
    """Memory is bounded; who came first needs a new link."""
    tokens: list[str] = []
    link = OneTimeLink("qworker_1", tokens.append)
    cookies = [link.enter(tokens[-1]) for _ in range(101)]

    def knows(cookie: str | None) -> bool:
        headers = [(b"cookie", f"qworker_1={cookie}".encode())]
        return link.authorize(Request({"type": "http", "headers": headers})) is not None

    assert (knows(cookies[0]), knows(cookies[1]), knows(cookies[-1])) == (False, True, True)
    assert len(set(tokens)) == 102


def test_a_browser_needs_a_new_link_after_twelve_hours(
    linked: tuple[Browser, list[str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    browser, tokens = linked
    cookie = browser.get(f"/enter?token={tokens[0]}").headers["set-cookie"].partition(";")[0]
    now_s = time.monotonic()
    for hours, status in ((11.9, 200), (12.1, 401)):
        monkeypatch.setattr(
            "qworker.web.access.time", SimpleNamespace(monotonic=lambda h=hours: now_s + h * 3600)
        )
        assert browser.get("/audit", cookie=cookie).status_code == status


@pytest.mark.slow
def test_a_browser_runs_and_shows_nothing_but_our_own_files(browser: Browser, shop: Shop) -> None:
    """The headers are on every answer, errors and files included; only files are kept."""
    shop.send()
    for path in (*PATHS, "/no/such/page", "/healthz", "/static/style.css", "/static/../app.py"):
        headers = browser.get(path).headers
        policy = headers["content-security-policy"]
        for rule in (
            "default-src 'none'",
            "script-src 'self'",
            "style-src 'self'",
            "frame-ancestors 'none'",
        ):
            assert rule in policy, path
        assert "unsafe" not in policy
        assert headers["x-frame-options"] == "DENY"
        assert headers["x-content-type-options"] == "nosniff"
        assert headers["referrer-policy"] == "same-origin"
        kept = path == "/static/style.css"
        assert headers["cache-control"] == ("no-cache" if kept else "no-store")


@pytest.mark.slow
def test_only_cards_can_be_framed_and_only_by_who_is_named(
    made: Callable[..., Dashboard], shop: Shop
) -> None:
    """A card has no button, form or link to what changes anything; without names nothing can be framed."""
    shop.bury("ValueError: x")
    shop.send()
    grafana = "https://grafana.example.org"
    browser = Browser(made(frame_ancestors=[grafana]))
    cards = {"/", "/queues", "/queues/emails", "/workers", "/durability"}
    framed = set()
    for path in PATHS:
        answer = browser.get(f"{path}?embed=1")
        policy = answer.headers["content-security-policy"]
        assert policy.endswith(("frame-ancestors 'none'", f"frame-ancestors {grafana}")), path
        if policy.endswith(grafana):
            framed.add(path)
            page = answer.text[answer.text.index('id="live"') :]
            assert "x-frame-options" not in answer.headers
            assert "<nav aria-label" not in answer.text
            assert 'method="post"' not in answer.text
            assert "Pause updates" not in page
        else:
            assert answer.headers["x-frame-options"] == "DENY"
        assert browser.get(path).headers["x-frame-options"] == "DENY"
    assert framed == cards
    assert browser.get("/queues/nothing?embed=1").headers["x-frame-options"] == "DENY"
    other = Browser(made())
    assert other.get("/?embed=1").headers["x-frame-options"] == "DENY"


@pytest.mark.parametrize(
    "origin", ["*", "https://x/y", "https://x; script-src *", "x", "", "'self'"]
)
@pytest.mark.bad_input("dashboard: origins that are none")
def test_who_may_frame_cards_is_named_by_origins(
    made: Callable[..., Dashboard], origin: str
) -> None:
    with pytest.raises(InvalidOptionError, match="https://grafana"):
        made(frame_ancestors=[origin])


def test_without_the_extra_one_line_names_it(
    made: Callable[..., Dashboard], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A plain install has neither Starlette nor Jinja2."""
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(InvalidOptionError) as refused:
        made()
    assert str(refused.value) == (
        "web: needs starlette, which is not installed; pip install 'qworker-redis[web]'"
    )
