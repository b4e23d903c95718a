"""The dashboard under attack: markup in every field of every page and action, stored by strangers, and crowds."""

from __future__ import annotations

import re
import threading
import time
from collections.abc import Callable
from urllib.parse import quote, urlencode

import pytest

from qworker.monitor.readings import Stacks
from qworker.web.actions.table import ACTIONS
from qworker.web.application import Dashboard
from qworker.web.pages.table import PAGES
from tests.cli.conftest import Shop
from tests.web.conftest import Browser, Document
from tests.web.test_pages import HOSTILE

#: Every field that a page or an action reads, and some that none does.
FIELDS = (
    "q", "sort", "page", "live", "did", "state", "id", "task", "text", "cursor", "look_at", "journal", "error",
    "error_class", "reason", "fingerprint", "newer_than", "older_than", "after", "rate", "entry", "name", "queue",
    "workflow", "stacks", "how", "direction", "job", "at_ms", "shown", "processes", "value", "body",
    "redrive", "before", "concurrency", "burst", "weight", "max_waiting",
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
    queue = shop.queue()
    queue.create(journal="all")
    queue.send({"task": "send_email", "args": [HOSTILE], "kwargs": {HOSTILE: HOSTILE}})
    queue.send({HOSTILE: HOSTILE}, delay="1h")
    shop.bury(HOSTILE, task="send_email")
    shop.ask("RPUSH", shop.keys().ready[0], HOSTILE, f"q9 {HOSTILE}", '{"plain": "<b>"}')
    shop.ask("HSET", shop.keys().schedules, HOSTILE, f'{{"app": "{quote(HOSTILE)}"}}')
    stored = '{"app":"<b>","spec":"<script>","task":"send_email","queue":"emails","body":""}'
    shop.ask("HSET", shop.keys().schedules, "<img src=x>", stored, "<img src=x>:paused", "1")
    shop.ask("ZADD", shop.keys().runs, 1, HOSTILE, 2, "r-1")
    shop.ask(
        "HSET",
        shop.keys().run("r-1"),
        HOSTILE,
        HOSTILE,
        "!<b>",
        "x",
        "@waits",
        HOSTILE,
        "@since",
        "x",
    )
    shop.ask("SET", shop.keys().result("m-1"), f"ok\n{HOSTILE}")
    shop.ask("SET", shop.keys().result("m-2"), f"dead {HOSTILE} x\n{HOSTILE}")
    shop.ask("HSET", shop.keys().limits, HOSTILE, HOSTILE, "<b>", "c=x r=1/1 w=<i>")
    shop.ask("HSET", f"{shop.namespace}:paused_tasks", HOSTILE, HOSTILE)
    row = f"acked 1 {HOSTILE.replace(' ', '')} {quote(HOSTILE)} <b> <i>\nq1 m-1 1 0 0 0 0 z=<b>"
    entry = ("n", "1", "k", "1", "b", "1", "t", "1", "w", HOSTILE, "e1", row)
    shop.ask("XADD", shop.keys().journal, "*", *entry)
    running = [{"task": HOSTILE, "id": HOSTILE, "seconds": 1e300}]
    child = {"pid": 1, "state": HOSTILE, "running": running}
    shop.add_worker(HOSTILE, app=HOSTILE, host=HOSTILE, tasks=[HOSTILE], children=[child])
    return shop


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
    for message_id in ("m-1", "m-2", "r-1"):
        for path in ("/queues/emails/messages", "/runs/emails"):
            answer = browser.get(f"{path}/{message_id}")
            assert answer.status_code in (200, 404), answer.text
            check(answer.text, path)
    shown = browser.get("/queues/emails/messages").text
    check(shown, "messages")
    assert "&lt;img src=x" in shown


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
