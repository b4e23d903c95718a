"""The dashboard under attack: markup in every field of every page and action, stored by strangers, and crowds."""

from __future__ import annotations

import re
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any
from urllib.parse import quote, urlencode

import pytest
from starlette.applications import Starlette
from starlette.responses import PlainTextResponse
from starlette.routing import Mount

from qworker import web
from qworker.client.namespace.audit import read_deeds
from qworker.monitor.readings import Stacks
from qworker.web.actions.table import ACTIONS
from qworker.web.application import Dashboard
from qworker.web.pages.table import PAGES
from tests.cli.conftest import Shop
from tests.web.conftest import Browser, Document
from tests.web.test_pages import HOSTILE

#: Every field that a page or an action reads, and some that none does.
FIELDS = (
    "q", "sort", "page", "live", "did", "state", "id", "task", "text", "cursor", "depth", "journal", "error",
    "error_class", "reason", "fingerprint", "newer_than", "older_than", "after", "rate", "entry", "name", "queue",
    "workflow", "stacks", "how", "direction", "job", "at_ms", "shown", "processes", "value", "body",
    "redrive", "before", "concurrency", "burst", "weight", "max_waiting", "seen", "embed", "token", "v",
)  # fmt: skip
WRONG = ("-1", "9" * 40, "\x00", "0@0/../x")
#: Statuses that are answers; a page that fails has 500.
ANSWERS = {200, 303, 400, 403, 404, 409}


def check(text: str, where: object) -> None:
    """No element of a stranger, no handler of an event, nothing that turns the direction of text."""
    document = Document(text)
    assert "alert(1)" not in str(document.all("script")), where
    assert document.all("img") == [], where
    assert not [one for _, one in document.elements if any(n.startswith("on") for n in one)], where
    for attributes in (one for _, one in document.elements):
        for name in ("href", "action", "src"):
            assert not attributes.get(name, "").lower().startswith(("javascript", "data:", "//")), (
                where
            )
    # A hidden field gives a name back as it is.
    shown = re.sub(r'<input type="hidden"[^>]*>', "", text)
    assert not {"\u202e", "\x1b", "\x00"} & set(shown), where
    assert "49" not in document.text.split(), where


@pytest.fixture
def hostile(shop: Shop) -> Shop:
    """Strangers have written markup wherever the server takes it."""
    shop.queue().create(journal="all")
    _spoil_messages(shop)
    _spoil_schedules(shop)
    _spoil_runs(shop)
    _spoil_calls(shop)
    _spoil_workers(shop)
    return shop


def _spoil_messages(shop: Shop) -> None:
    queue, keys = shop.queue(), shop.keys()
    queue.send({"task": "send_email", "args": [HOSTILE], "kwargs": {HOSTILE: HOSTILE}})
    queue.send({HOSTILE: HOSTILE}, delay="1h")
    shop.bury(HOSTILE, task="send_email")
    shop.ask("RPUSH", keys.ready[0], HOSTILE, f"q9 {HOSTILE}", '{"plain": "<b>"}')
    shop.ask("SET", keys.result("m-1"), f"ok\n{HOSTILE}")
    shop.ask("SET", keys.result("m-2"), f"dead {HOSTILE} x\n{HOSTILE}")
    shop.ask("HSET", keys.limits, HOSTILE, HOSTILE, "<b>", "c=x r=1/1 w=<i>")
    row = f"acked 1 {HOSTILE.replace(' ', '')} {quote(HOSTILE)} <b> <i>\nq1 m-1 1 0 0 0 0 z=<b>"
    entry = ("n", "1", "k", "1", "b", "1", "t", "1", "w", HOSTILE, "e1", row)
    shop.ask("XADD", keys.journal, "*", *entry)


def _spoil_schedules(shop: Shop) -> None:
    shop.ask("HSET", shop.keys().schedules, HOSTILE, f'{{"app": "{quote(HOSTILE)}"}}')
    stored = '{"app":"<b>","spec":"<script>","task":"send_email","queue":"emails","body":""}'
    shop.ask("HSET", shop.keys().schedules, "<img src=x>", stored, "<img src=x>:paused", "1")


def _spoil_runs(shop: Shop) -> None:
    keys = shop.keys()
    shop.ask("ZADD", keys.runs, 1, HOSTILE, 2, "r-1")
    waits = ("!<b>", "x", "@waits", HOSTILE, "@since", "x")
    shop.ask("HSET", keys.run("r-1"), HOSTILE, HOSTILE, *waits)
    steps = {
        HOSTILE: " t=1000 l=9007199254740991",
        f"!{HOSTILE}": " t=2000",
        f"*{HOSTILE}": " t=3000 d=7",
        "late": " t=9007199254740991",
    }
    pairs = [word for name, line in steps.items() for word in (name, f"{line}\n{HOSTILE}")]
    shop.ask("HSET", keys.run("r-2"), *pairs)
    shop.ask("ZADD", keys.runs, 3, "r-2")


def _spoil_calls(shop: Shop) -> None:
    keys, broken = shop.keys(), shop.keys("broken")
    counts = ("@size", 3, "@left", HOSTILE, "@sent", "x", "@dead", f"1 {HOSTILE}")
    terms = ("@policy", HOSTILE, "@made", "<b>", "@then", HOSTILE)
    shop.ask("HSET", keys.join("m-1"), *counts, *terms, "0", f"ok\n{HOSTILE}", "1", HOSTILE)
    gathered = ("@size", 2, "@run", b"\x92\xa3<b>\xa1x", "0", "dead <b> <i>\n<u>")
    shop.ask("HSET", keys.join("m-2"), *gathered)
    shop.ask("SET", keys.join("m-3"), HOSTILE)
    shop.ask("ZADD", keys.joins, 1, "m-1", 2, HOSTILE, 3, "m-2", 4, b"\xff")
    shop.ask("ZADD", broken.joins, 1, "m-1")
    shop.ask("SET", broken.join("m-1"), HOSTILE)
    shop.ask("HSET", f"{shop.namespace}:queues", "broken", 1)
    shop.ask("HSET", broken.stats, "followed", 1)
    step = [HOSTILE, HOSTILE, HOSTILE, 1, 2]
    then = {"task": HOSTILE, "queue": HOSTILE, "id": HOSTILE}
    chained = {"task": HOSTILE, "past": [step], "then": [then, {"join": [HOSTILE, HOSTILE, 7]}]}
    shop.queue().send(chained, delay="2h")


def _spoil_workers(shop: Shop) -> None:
    shop.ask("HSET", f"{shop.namespace}:paused_tasks", HOSTILE, HOSTILE)
    running = [{"task": HOSTILE, "id": HOSTILE, "seconds": 1e300}]
    child = {"pid": 1, "state": HOSTILE, "running": running}
    shop.add_worker(HOSTILE, app=HOSTILE, host=HOSTILE, tasks=[HOSTILE], children=[child])


@pytest.mark.slow
@pytest.mark.bad_input(
    "dashboard: markup, control characters and nonsense in every field of every page"
)
def test_no_page_shows_or_trips_over_what_strangers_ask_or_store(
    browser: Browser, hostile: Shop
) -> None:
    """Each page with each field, and with names in its path that cannot be."""
    names = {"queue": "emails", "message": "m-1", "entry:path": "1-1"}
    for path in PAGES:
        there = path
        for name, value in names.items():
            there = there.replace(f"{{{name}}}", value)
        query = dict.fromkeys(FIELDS, HOSTILE)
        paths = [there, f"{there}?{urlencode(query)}", f"{there}?name={quote(HOSTILE, safe='')}"]
        paths += [f"{there}?{urlencode(dict.fromkeys(FIELDS, wrong))}" for wrong in WRONG]
        for name in names:
            if f"{{{name}}}" in path:
                paths.append(
                    path.replace(f"{{{name}}}", quote(HOSTILE, safe=""))
                    .replace("{", "x")
                    .replace("}", "x")
                )
        for one in paths:
            answer = browser.get(one)
            assert answer.status_code in ANSWERS, (one, answer.text[:300])
            check(answer.text, one)
    chained = [one.id for one in hostile.queue().peek(9, state="delayed")]
    assert len(chained) == 2
    for message_id in ("m-1", "m-2", "m-3", "r-1", "r-2", *chained):
        for path in ("/queues/emails/messages", "/runs/emails", "/calls/emails"):
            for page in ("", "/abandon", "/cancel") if "calls" in path else ("", "/cancel"):
                answer = browser.get(f"{path}/{message_id}{page}")
                broken = message_id == "m-3" and "calls" in path
                assert answer.status_code in ({502} if broken else ANSWERS), answer.text
                assert ("rename or delete it" in answer.text) == broken
                check(answer.text, path)
    steps = browser.get("/runs/emails/r-2").text
    assert steps.count("&lt;script&gt;") >= 6  # names and values of a step, a signal and a loop
    assert "Its chain" in browser.get(f"/queues/emails/messages/{chained[1]}").text
    assert "&lt;b&gt;" in browser.get("/calls").text
    shown = browser.get("/queues/emails/messages").text
    check(shown, "messages")
    assert "&lt;img src=x" in shown


@pytest.mark.slow
@pytest.mark.bad_input("dashboard: markup and nonsense in every field of every action")
def test_no_action_takes_or_shows_what_strangers_send(browser: Browser, hostile: Shop) -> None:
    """Each is refused, or changes what the path names; the audit trail shows it as text."""
    for path in ACTIONS:
        there = path.replace("{queue}", "emails").replace("{message}", "m-1")
        for value in (HOSTILE, *WRONG):
            answer = browser.post(there, dict.fromkeys(FIELDS, value))
            assert answer.status_code in ANSWERS, (there, value, answer.text[:300])
            check(answer.text, (there, value))
        outside = path.replace("{queue}", quote("../x")).replace(
            "{message}", quote(HOSTILE, safe="")
        )
        if outside != path:
            assert browser.post(outside, {"name": "x"}).status_code in (400, 404)
    check(browser.get("/audit").text, "audit")
    assert hostile.queue().inspect().dead == 1


def test_the_fields_above_are_those_that_pages_and_actions_read() -> None:
    """A field that is new must be attacked, too."""
    sources = "".join(path.read_text() for path in Path(web.__file__).parent.rglob("*.py"))
    read = set(
        re.findall(r"""(?:query|form|query_params|wanted)(?:\.get\(|\[)"([a-z_]+)\"""", sources)
    )
    assert read > {"entry", "rate", "body"}
    assert read <= set(FIELDS)


@pytest.mark.bad_input("dashboard: paths that lead out of where it is mounted")
@pytest.mark.parametrize("base", ["", "/ops/queues"])
@pytest.mark.slow
def test_no_path_leads_out_of_where_it_is_mounted(
    made: Callable[..., Dashboard], shop: Shop, base: str
) -> None:
    """Dots, encoded or not, second slashes, hosts in paths, line ends: never a file, another page or another host."""
    shop.send()
    reached: list[str] = []

    async def outside(scope: Any, receive: Any, send: Any) -> None:
        reached.append(scope["path"])
        await PlainTextResponse("outside", 404)(scope, receive, send)

    routes = [Mount(base, made())] if base else [Mount("/", made())]
    browser = Browser(Starlette(routes=[*routes, Mount("/", outside)]), base)
    for path in (
        "/static/../render.py", "/static/..%2frender.py", "/static/%2e%2e/render.py", "/static/....//style.css",
        "/static//etc/passwd", "/static/style.css%00.py", "/queues/../../etc/passwd", "/queues/..%2f..%2fx",
        "/queues/emails/dead/../../../audit", "/queues/emails/dead/1-1/../../x", "//evil.test/queues", "//evil.test/",
        "/\\evil.test/", "/queues/%0d%0aSet-Cookie:%20x=1", "/queues/emails%0d%0aLocation:%20http://evil.test/",
        "/runs/emails/%2e%2e", "/calls/emails/..%2f..", "/queues/emails/messages/%2f%2fevil.test/cancel",
        "/enter?token=//evil.test", "/find?id=//evil.test", "/queues/emails?did=//evil.test", "/%ff%fe",
    ):  # fmt: skip
        for answer in (browser.get(path), browser.post(path, {"name": "//evil.test"})):
            assert answer.status_code in {200, 307, 400, 404, 405}, (path, answer.text)
            assert "set-cookie" not in answer.headers
            to = answer.headers.get("location", f"http://ops.test{base}/")
            assert to.startswith((f"http://ops.test{base}/", f"{base}/")), (path, to)
            assert not to.startswith("//")
            assert "from __future__" not in answer.text
            assert "root:" not in answer.text


@pytest.mark.slow
@pytest.mark.bad_input("dashboard: names, values and paths that are huge")
def test_what_is_huge_is_refused_or_cut(browser: Browser, hostile: Shop) -> None:
    """In a path, a query, a field: an answer, small, and a short entry of the audit trail."""
    long = "x" * 60_000
    for path in PAGES:
        there = (
            path.replace("{queue}", "emails")
            .replace("{message}", "y" * 8_000)
            .replace("{entry:path}", "1" * 8_000)
        )
        answer = browser.get(f"{there}?{urlencode(dict.fromkeys(FIELDS, 'z' * 1_000))}")
        assert answer.status_code in ANSWERS, (there[:80], answer.text[:300])
    for path in ACTIONS:
        there = path.replace("{queue}", "emails").replace("{message}", "m-1")
        for field in ("name", "value", "body", "task", "entry", "processes", "job"):
            answer = browser.post(there, {field: long})
            assert answer.status_code in (*ANSWERS, 413), (there, field, answer.text[:300])
    for deed in read_deeds(hostile.client.execute, hostile.namespace, count=1_000):
        assert max(len(deed.target), len(deed.outcome), len(deed.user)) <= 300
    assert len(browser.get("/audit").text) < 100_000


def test_a_crowd_that_asks_for_stacks_leaves_threads_for_pages(
    made: Callable[..., Dashboard], shop: Shop, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A worker that does not answer is asked once for all, and few wait for it at a time."""
    shop.add_worker("mute")
    browser = Browser(made())
    browser.get("/")
    asked: list[str] = []
    go = threading.Event()

    def mute(self: Stacks, worker: str) -> None:
        asked.append(worker)
        go.wait(30)

    monkeypatch.setattr(Stacks, "_ask", mute)
    texts: list[str] = []
    crowd = [
        threading.Thread(
            target=lambda: texts.append(browser.get("/worker?name=mute&stacks=1").text)
        )
        for _ in range(12)
    ]
    for one in crowd:
        one.start()
    while len(texts) < 8:
        time.sleep(0.01)
    assert browser.get("/workers").status_code == 200
    go.set()
    for one in crowd:
        one.join()
    assert asked == ["mute"]
    assert all("It did not answer" in text for text in texts)
