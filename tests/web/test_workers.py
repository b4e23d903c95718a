"""Workers: what each runs, stacks of handlers, processes and tasks."""

from __future__ import annotations

import os
import signal
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest

from qworker.client.namespace.audit import read_deeds
from qworker.client.namespace.paused_tasks import read_paused_tasks
from qworker.web import VIEW, Access
from qworker.web.application import Dashboard
from qworker.wire.keys import leaving_key
from tests.cli.conftest import Shop, clean_environment
from tests.consumer.forkserver import Order, WarmProcess, start_module
from tests.topologies.servers import until
from tests.web.conftest import Browser, Document, text_of

APP = """
import time
from qworker import QWorker
app = QWorker({namespace!r})

@app.task(queue="emails")
def hang(number: int) -> None:
    while True:
        time.sleep(0.05)
"""


def test_workers_are_listed_with_what_they_run_the_longest_first(
    browser: Browser, shop: Shop
) -> None:
    """Those that are silent are told from those that leave and those that live."""
    running = [{"task": f"task_{at}", "id": f"l-{at}:1", "seconds": at * 100.0} for at in range(3)]
    shop.add_worker("alive", children=[{"pid": 7, "state": "running", "running": running}])
    shop.add_worker("leaves", leaving=True)
    shop.add_worker("silent", age_ms=60_000)

    page = text_of(browser, "/workers")

    assert "Workers 2 alive" in page
    assert "Running 4 handlers now" in page
    for part in ("alive alive", "leaves leaving", "silent gone"):
        assert part in page
    assert page.index("task_2 3m20s") < page.index("task_1 1m40s") < page.index("send_email 3.2s")
    shown = text_of(browser, "/worker?name=alive")
    assert "pid 7 running" in shown
    assert "task_2 3m20s l-2:1 7" in shown
    assert "It is silent" in text_of(browser, "/worker?name=silent")
    assert "Drain" not in text_of(browser, "/worker?name=silent")


@pytest.mark.bad_input("dashboard: workers that do not exist, or that others have described")
def test_a_worker_that_is_not_there_has_a_page_that_says_so(browser: Browser, shop: Shop) -> None:
    hostile = "a/../b?c=<b>&\u202e"
    shop.add_worker(hostile, children=[{"pid": "x", "running": "y", "state": 7}, None], queues=[1])
    shop.add_worker("silent", age_ms=60_000)
    for name in ("", "nothing", "x" * 5000):
        assert "No such worker" in text_of(browser, f"/worker?name={name}", 404)
    for name in ("nothing", "silent"):
        assert browser.get(f"/workers/drain?name={name}").status_code == 404
        for path in ("/workers/drain", "/workers/scale"):
            assert browser.post(path, {"name": name, "processes": "+1"}).status_code == 400
    for change in ("", "x", "++1", "+", "1.5", "9999999", "²"):
        answer = browser.post("/workers/scale", {"name": hostile, "processes": change})
        assert answer.status_code == 400, change
    assert "\\u202e" in text_of(browser, f"/worker?name={quote(hostile, safe='')}")
    moved = browser.post("/workers/drain", {"name": hostile})
    assert moved.status_code == 303
    assert "exits after 0 running handlers" in text_of(browser, moved.headers["location"])
    assert shop.ask("HEXISTS", leaving_key(shop.namespace), hostile) == 1


def test_tasks_are_paused_and_resumed(browser: Browser, shop: Shop) -> None:
    """Paused ones come first, with their age; a name that no worker knows is refused."""
    shop.add_worker(tasks=["send_email", "a_report", "zip"])

    assert browser.post("/tasks/pause", {"name": "zip"}).status_code == 303
    assert "already paused" in text_of(
        browser, browser.post("/tasks/pause", {"name": "zip"}).headers["location"]
    )
    page = text_of(browser, "/workers")
    assert page.index("zip paused") < page.index("a_report runs") < page.index("send_email runs")
    assert "send_email" not in text_of(browser, "/workers?task=REPORT").partition("Tasks")[2]
    assert "No task has a matching name" in text_of(browser, "/workers?task=nope")
    assert list(read_paused_tasks(shop.client.execute, shop.namespace)) == ["zip"]
    assert browser.post("/tasks/resume", {"name": "zip"}).status_code == 303
    for path, name in (("resume", "zip"), ("pause", "zap"), ("pause", ""), ("pause", "<b>")):
        assert browser.post(f"/tasks/{path}", {"name": name}).status_code == 400
    assert read_paused_tasks(shop.client.execute, shop.namespace) == {}


def test_who_may_only_look_has_no_buttons_but_those_of_searches(
    made: Callable[..., Dashboard], shop: Shop
) -> None:
    shop.add_worker(tasks=["send_email"])
    browser = Browser(made(authorize=lambda request: Access("eve", frozenset({VIEW}))))
    for path in ("/workers", "/worker?name=web-1-a"):
        assert [
            form
            for form in Document(browser.get(path).text).all("form")
            if form["method"] == "post"
        ] == []


@pytest.fixture
def worker(shop: Shop, tmp_path: Path) -> Iterator[WarmProcess | subprocess.Popen[bytes]]:
    """A worker of one process whose handlers hang."""
    (tmp_path / "hangs.py").write_text(APP.format(namespace=shop.namespace))
    words = ["run", "hangs", "--procs", "1", "--grace", "100ms", "--concurrency", "2"]
    environment = clean_environment(QWORKER_URL=shop.url)
    order = Order(
        "qworker", [*words, "--metrics-port", "0"], str(tmp_path), environment, nursery=True
    )
    with Path(os.devnull).open("wb") as unread:
        process = start_module(order, unread)
    yield process
    if process.poll() is None:
        os.kill(process.pid, signal.SIGTERM)
    process.wait(30)


@pytest.mark.slow
def test_a_worker_shows_where_its_handlers_are_and_is_scaled_and_drained(
    browser: Browser, shop: Shop, worker: WarmProcess | subprocess.Popen[bytes]
) -> None:
    """All of it with its own worker process."""
    body: Any = {"task": "hang", "args": [1]}
    message_id = shop.queue().send(body)

    def running() -> bool:
        return "hang" in text_of(browser, "/workers").partition("Longest running handlers")[2]

    until(running)
    name = browser.application.sampler.sample.workers[0].name
    path = f"/worker?name={quote(name)}"
    assert "Where each running handler is" in text_of(browser, path)
    stacks = text_of(browser, f"{path}&stacks=1")
    assert "hangs.py" in stacks
    assert "in hang" in stacks
    moved = browser.post("/workers/scale", {"name": name, "processes": "+1"})
    assert "2 processes (was 1)" in text_of(browser, moved.headers["location"])
    assert "when 1 running handler has ended" in text_of(
        browser, f"/workers/drain?name={quote(name)}"
    )
    assert browser.post("/workers/drain", {"name": name}).status_code == 303
    kill = {"how": "kill", "state": "unacked"}
    killed = browser.post(f"/queues/emails/messages/{message_id}/cancel", kill)
    assert "was ended by" in text_of(browser, killed.headers["location"])
    assert worker.wait(60) == 0
    deeds = read_deeds(shop.client.execute, shop.namespace)
    assert [deed.verb for deed in deeds] == ["message cancel", "worker drain", "worker scale"]
