"""What pages show, of ordinary and of hostile contents, to a browser without JavaScript."""

from __future__ import annotations

import re
from collections.abc import Callable
from urllib.parse import quote

import pytest
from starlette.applications import Starlette
from starlette.routing import Mount

from qworker.client.namespace.audit import Deed, record_deed
from qworker.web.application import Dashboard
from qworker.web.render import ASSETS
from tests.cli.conftest import Shop
from tests.web.conftest import PATHS, Browser, Document, text_of

#: Pages with a question, which do not change.
ASKING = [path for path in PATHS if path.endswith(("/redrive", "/drop", "/messages", "/find"))]
#: Markup, attributes, entities, a bidirectional override, a control character, a script of templates.
HOSTILE = "\"'><script>alert(1)</script><img src=x onerror=alert(1)>&amp;\u202e\x1b[31m{{ 7*7 }}"


def rows(browser: Browser, path: str) -> list[str]:
    """The names of the queues of a table, in order."""
    return re.findall(r'<tr id="q-([^"]+)"', browser.get(path).text)


def test_the_overview_says_what_needs_a_person_and_the_verb_that_mends_it(
    browser: Browser, shop: Shop
) -> None:
    """Findings of the doctor, problems first; figures of all queues; the queues that need most."""
    shop.send("emails", 3)
    shop.send("calm", 1)
    shop.bury("ValueError: x", name="orders")
    shop.queue("calm").pause("out")
    shop.break_queue("broken")

    page = text_of(browser, "/")

    assert "none is alive: delayed and timed-out messages stay" in page
    assert "qworker queue resume calm" in page
    assert "qworker dead ls orders" in page
    assert page.index("queue.broken problem") < page.index("paused warning")
    assert "Ready 4" in page
    assert "Dead 1" in page
    assert rows(browser, "/")[:2] == ["broken", "calm"]


def test_a_namespace_without_queues_says_how_one_is_made(browser: Browser) -> None:
    for path in ("/", "/queues"):
        assert "qworker send QUEUE BODY" in text_of(browser, path)
    assert "No changes have been made" in text_of(browser, "/audit")


@pytest.mark.slow
def test_queues_are_found_sorted_and_paged_by_the_url(browser: Browser, shop: Shop) -> None:
    """A query that makes no sense shows the first page in the usual order."""
    for at in range(110):
        shop.ask("HSET", f"{shop.namespace}:queues", f"bulk-{at:03}", 1)
        shop.ask("HSET", shop.keys(f"bulk-{at:03}").stats, "sent", 1)
    shop.send("emails", 5)
    shop.send("orders", 9)

    first = rows(browser, "/queues?sort=ready")
    assert (len(first), first[:3]) == (50, ["orders", "emails", "bulk-000"])
    assert len(rows(browser, "/queues?page=3")) == 12
    assert rows(browser, "/queues?page=999") == rows(browser, "/queues?page=3")
    assert rows(browser, "/queues?q=EMA") == ["emails"]
    assert rows(browser, "/queues?q=bulk&sort=name&page=2")[0] == "bulk-050"
    for nonsense in ("page=-1", "page=x", "page=" + "9" * 40, "sort=no", "sort=__class__", "q="):
        assert rows(browser, f"/queues?{nonsense}")[:2] == rows(browser, "/queues")[:2]
    following = Document(browser.get("/queues?q=bulk&sort=name&page=2").text)
    links = [link["href"] for link in following.all("a") if link.get("rel")]
    assert links == ["/queues?q=bulk&sort=name&page=1", "/queues?q=bulk&sort=name&page=3"]
    assert "No queue has a matching name" in text_of(browser, "/queues?q=nope")


def test_a_queue_shows_places_counters_attributes_and_workers(browser: Browser, shop: Shop) -> None:
    shop.configure("emails", maxlen=10, visibility="5s")
    shop.send("emails", 3, priority=7)
    shop.send("emails", 2, delay="1h")
    shop.queue("emails").receive(1)
    shop.bury("ValueError: x", name="emails")
    shop.add_worker()

    page = text_of(browser, "/queues/emails")

    for part in (
        "Ready 2 the oldest",
        "Unacked 1 in 1 lease",
        "Delayed 2 the next due in",
        "Dead 1",
        "sent 6",
        "became dead letters: 1",
        "maxlen 10",
        "visibility 5s",
        "web-1-a 1 handler running",
    ):
        assert part in page, part


def test_an_action_is_confirmed_by_its_entry_in_the_audit_trail(
    browser: Browser, shop: Shop
) -> None:
    """One direction leaves the other as it is, as on the command line."""
    shop.send()

    paused = browser.post("/queues/emails/pause", {"direction": "out"})
    shown = text_of(browser, paused.headers["location"])

    assert "queue pause emails : paused out: nothing is delivered by ada" in shown
    assert "Resume receiving" in shown
    assert "Pause sending" in shown
    browser.post("/queues/emails/pause", {"direction": "in"})
    assert shop.queue().inspect().paused == "all"
    browser.post("/queues/emails/resume", {"direction": "out"})
    assert shop.queue().inspect().paused == "in"
    trail = text_of(browser, "/audit")
    assert trail.index("queue resume emails paused in") < trail.index(
        "queue pause emails paused out"
    )
    for forged in ("1-1", "x", "99999999999999999-1", quote(HOSTILE)):
        assert 'class="notice"' not in browser.get(f"/queues/emails?did={forged}").text


def test_the_audit_trail_is_read_in_pages(browser: Browser, shop: Shop) -> None:
    for at in range(60):
        record_deed(shop.client.execute, shop.namespace, Deed("ada", "queue pause", f"n{at}", "x"))

    first = browser.get("/audit").text
    older = re.search(r'href="([^"]+)" rel="next"', first)

    assert "n59" in first
    assert "n10<" in first
    assert "n9<" not in first
    assert older is not None
    second = browser.get(older[1].replace("&amp;", "&")).text
    assert "n9<" in second
    assert "n0<" in second
    assert "n10<" not in second


@pytest.mark.bad_input(
    "dashboard: names, workers, attributes and audit entries with markup and control characters"
)
@pytest.mark.slow
def test_no_page_has_markup_or_control_characters_of_a_stranger(
    browser: Browser, shop: Shop
) -> None:
    """Anyone with access to the server can write names of workers, reapers, attributes; users come from a proxy."""
    shop.send()
    shop.ask("HSET", shop.keys().stats, f"dead:{HOSTILE}", 3, "dead", 3)
    shop.ask("HSET", shop.keys().meta, "visibility_ms", HOSTILE, "paused", HOSTILE)
    shop.ask("HSET", f"{shop.namespace}:queues", HOSTILE, 1)
    shop.add_worker(HOSTILE, app=HOSTILE, host=HOSTILE, queues=["emails", HOSTILE])
    shop.add_reaper(HOSTILE)
    shop.break_queue("broken")
    fields = ("reason", "class", "error", "envelope")
    shop.ask(
        "XADD", shop.keys().dead, "7-7", *[word for name in fields for word in (name, HOSTILE)]
    )
    record_deed(shop.client.execute, shop.namespace, Deed(*[HOSTILE] * 4))

    searches = [
        f"/queues?q={quote(HOSTILE)}",
        f"/?live={quote(HOSTILE)}",
        f"/queues?sort={quote(HOSTILE)}",
    ]
    dead = [f"/queues/emails/dead?error={quote(HOSTILE)}", "/queues/emails/dead/7-7"]
    dead += [
        f"/queues/emails/dead/redrive?task={quote(HOSTILE)}",
        "/queues/emails/dead/drop?entry=7-7",
    ]
    wrong = [f"/queues/{quote(HOSTILE, safe='')}", f"/{quote(HOSTILE, safe='')}"]
    for path in (*PATHS, *searches, *wrong, "/queues/broken", *dead):
        answer = browser.get(path)
        assert answer.status_code in ((404, 405) if path in wrong else (200,)), path
        document = Document(answer.text)
        assert "alert(1)" not in str(document.all("script")), path
        assert document.all("img") == [], path
        assert not [
            attrs for _, attrs in document.elements if any(n.startswith("on") for n in attrs)
        ]
        assert "\u202e" not in answer.text, path
        assert "\x1b" not in answer.text, path
        assert "49" not in document.text.split(), path


def test_a_shard_that_cannot_be_read_hides_no_other(browser: Browser, shop: Shop) -> None:
    """The figures cover the rest, and the page names what is missing."""
    shop.send("emails")
    shop.queue().divide(3)
    shop.send("emails", 5)
    shop.ask("SET", shop.keys("emails/1").delayed, "x")

    page = text_of(browser, "/queues/emails")

    assert "partly unread" in page
    assert "A shard cannot be read: emails/1" in page
    assert "partly unread" in text_of(browser, "/")


@pytest.mark.bad_input("dashboard: queues that do not exist, paths outside of it")
@pytest.mark.bad_input("dashboard: a key of a queue or of the namespace holds another type")
@pytest.mark.parametrize(
    ("part", "check"),
    [
        ("joins", "calls"), ("out", "outbox"), ("runs", "runs"), ("limits", ""), ("schedules", ""),
        ("meta", "queue.broken"), ("workers", "workers"), ("reapers", "reapers"),
        ("paused_tasks", "schedules"), ("audit", ""),
    ],
)  # fmt: skip
def test_a_key_that_a_stranger_broke_hides_nothing_else(
    browser: Browser, shop: Shop, part: str, check: str
) -> None:
    """All other pages answer; Health names what was not checked, and what to do."""
    shop.send()
    shop.send("broken")
    for counter in ("followed", "parked"):
        shop.ask("HINCRBY", shop.keys("broken").stats, counter, 1)
    shop.queue("broken").set_limit("acme", concurrency=1)
    key = getattr(shop.keys("broken"), part, f"{shop.namespace}:{part}")
    shop.ask("DEL", key)
    shop.ask("SET", key, "a stranger's")

    for path in (
        "/",
        "/queues",
        "/queues/emails",
        "/queues/broken",
        "/workers",
        "/schedules",
        "/runs",
        "/calls",
    ):
        assert browser.get(path).status_code == 200, path
    page = text_of(browser, "/health")
    assert not check or f"{check} problem" in page, page
    assert not check or key in page
    advice = "qworker fsck broken --repair" if part == "meta" else "RENAME or DEL it in redis-cli"
    assert not check or advice in page
    if part == "audit":
        refused = browser.get("/audit")
        assert (refused.status_code, "rename or delete it" in refused.text) == (502, True)
        assert browser.post("/queues/emails/pause", {"direction": "out"}).status_code == 303


def test_what_does_not_exist_has_a_page_that_says_so(browser: Browser, shop: Shop) -> None:
    shop.send()
    for path in ("/queues/nothing", "/queues/UPPER", "/queues/%00", "/queues/queues"):
        answer = browser.get(path)
        assert (answer.status_code, "There is no queue" in answer.text) == (404, True), path
    for path in (
        "/static/nope.js",
        "/static/..%2fapplication.py",
        "/static/%2e%2e/rows.py",
        "/x",
        "/queues/..%2f..%2fetc",
    ):
        assert browser.get(path).status_code == 404, path
    shop.queue("emails").remove()
    browser.application.sampler.refresh("emails")
    assert browser.get("/queues/emails").status_code == 404


@pytest.mark.slow
def test_pages_need_no_script_and_have_none_inline(browser: Browser, shop: Shop) -> None:
    """Links and forms do everything; a paused page loads no script at all."""
    shop.send()
    for path in PATHS:
        document = Document(browser.get(path).text)
        for script in document.all("script"):
            assert script["src"].startswith("/static/"), path
            assert "defer" not in script  # htmx would start before its extension has come
        assert document.all("style") == []
        assert not [attrs for _, attrs in document.elements if "style" in attrs]
        assert len(document.all("h1")) == 1
        ids = [attrs["id"] for _, attrs in document.elements if "id" in attrs]
        assert len(ids) == len(set(ids)), path
        for form in document.all("form"):
            assert form["method"] in ("get", "post")
            assert form["action"].startswith("/")
        assert Document(browser.get(f"{path}?live=off").text).all("script") == []


@pytest.mark.slow
@pytest.mark.parametrize(
    "base",
    [
        "/internal/queues",
        pytest.param(
            "",
            marks=pytest.mark.nightly("test_every_link_stays_below_the_path_where_it_is_mounted"),
        ),
    ],
)
def test_every_link_stays_below_the_path_where_it_is_mounted(
    made: Callable[..., Dashboard], shop: Shop, base: str
) -> None:
    """Mounted into another application, links, forms, files, streams and redirects begin with its path."""
    shop.send()
    shop.queue().pause("in")
    application = Starlette(routes=[Mount(base or "/", made())])
    browser = Browser(application, base)
    for path in PATHS:
        document = Document(browser.get(path).text)
        links = [
            attrs[name]
            for _, attrs in document.elements
            for name in ("href", "src", "action", "data-hx-sse-connect")
            if name in attrs and not attrs[name].startswith("#")
        ]
        assert [link for link in links if not link.startswith(f"{base}/")] == []
        live = [
            attrs["data-hx-sse-connect"]
            for attrs in document.all("div")
            if "data-hx-sse-connect" in attrs
        ]
        assert live == ([] if path in ASKING else [f"{base}{path}"])
        for link in dict.fromkeys(links):
            assert browser.get(link.removeprefix(base)).status_code in (200, 405), link
    moved = browser.post("/queues/emails/resume", {"direction": "in"})
    assert moved.headers["location"].startswith(f"{base}/queues/emails?did=")


def test_the_first_page_is_small(browser: Browser, shop: Shop) -> None:
    """Page, style sheet, icon and scripts together: 60 kB over the wire, however many queues there are."""
    for at in range(60):
        shop.ask("HSET", f"{shop.namespace}:queues", f"bulk-{at:03}", 1)
        shop.ask("HSET", shop.keys(f"bulk-{at:03}").stats, "sent", 1)
    bytes_sent = 0
    for path in ("/", *(f"/static/{name}" for name in ASSETS)):
        answer = browser.get(path, accept_encoding="gzip")
        assert answer.headers["content-encoding"] == "gzip" or "icon" in path
        bytes_sent += int(answer.headers["content-length"])
    assert bytes_sent < 40_000


def test_a_file_is_kept_for_ever_under_its_own_name_only(browser: Browser) -> None:
    """An update changes the name; any other name is asked for again."""
    page = browser.get("/").text
    for name in ASSETS:
        found = re.search(rf"/static/{re.escape(name)}\?v=[0-9a-f]+", page)
        assert found is not None
        assert "immutable" in browser.get(found[0]).headers["cache-control"]
        assert browser.get(f"/static/{name}?v=0").headers["cache-control"] == "no-cache"


def test_rates_and_sparklines_come_with_the_second_reading(browser: Browser, shop: Shop) -> None:
    """Before it the figures are unknown, not zero."""
    shop.send("emails", 1)
    assert "Sent –" in text_of(browser, "/")
    shop.send("emails", 50)

    browser.application.sampler.refresh("emails")

    assert re.search(r"Sent [1-9]", text_of(browser, "/"))
