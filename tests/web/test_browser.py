"""The dashboard in Chromium: what only a browser can show, as wide as a telephone and a screen, light and dark."""

from __future__ import annotations

import re
import shutil
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from qworker.web.application import Dashboard
from tests.cli.conftest import Shop

pytestmark = [
    pytest.mark.browser,
    pytest.mark.slow,
    pytest.mark.needs("playwright", "uvicorn"),
    pytest.mark.xdist_group("browser"),  # one Chromium for all
]
WAIT_MS = 60_000


@contextmanager
def serving(dashboard: Dashboard, page: Any = None, port: int = 0) -> Iterator[int]:
    """Serve a dashboard on a port of loopback; `page` leaves it before the end."""
    import uvicorn

    listener = socket.create_server(("127.0.0.1", port))
    config = uvicorn.Config(dashboard, log_config=None, lifespan="off", timeout_graceful_shutdown=1)
    server = uvicorn.Server(config)
    thread = threading.Thread(target=server.run, kwargs={"sockets": [listener]})
    thread.start()
    try:
        yield listener.getsockname()[1]
        if page is not None:
            page.goto("about:blank")
    finally:
        dashboard.sampler.end()
        server.should_exit = True
        thread.join()
        listener.close()


@pytest.fixture(scope="module")
def chromium() -> Iterator[Any]:
    """The system's Chromium."""
    path = shutil.which("chromium") or shutil.which("google-chrome")
    if path is None:
        pytest.skip("needs chromium: apt install chromium")
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(
            executable_path=path, args=["--no-sandbox", "--disable-dev-shm-usage"]
        )
        yield browser
        browser.close()


@pytest.fixture
def page(chromium: Any) -> Iterator[Any]:
    """A page; what its console says, refused scripts and styles among it, fails the test unless it is expected."""
    context = chromium.new_context()
    context.set_default_timeout(WAIT_MS)
    page = context.new_page()
    page.said = []
    page.on("console", lambda message: page.said.append(message.text))
    page.on("pageerror", lambda error: page.said.append(str(error)))
    yield page
    context.close()
    assert page.said == []


def test_a_page_changes_by_itself_and_keeps_the_focus(
    made: Callable[..., Dashboard], shop: Shop, page: Any
) -> None:
    """Only what has changed is exchanged; a page that is paused stays as it is."""
    shop.send("emails", 1)
    with serving(made(), page) as port:
        page.goto(f"http://127.0.0.1:{port}/")
        page.locator("tbody a", has_text="emails").focus()
        shop.send("emails", 41)
        page.wait_for_function("() => document.querySelector('#q-emails').innerText.includes('42')")
        assert page.evaluate("document.activeElement.innerText") == "emails"
        page.click("text=Pause updates")
        page.wait_for_url(re.compile("live=off"))
        assert page.locator("script").count() == 0


def test_a_page_says_that_it_is_cut_off_and_comes_back(
    made: Callable[..., Dashboard], shop: Shop, page: Any
) -> None:
    """The process that serves it is restarted."""
    shop.send("emails", 1)
    with serving(made()) as port:
        page.goto(f"http://127.0.0.1:{port}/queues/emails")
        page.wait_for_function("() => document.querySelector('#live')._htmx?.sse?.status === 200")
        assert not page.is_visible(".cut-off-notice")
    page.wait_for_selector(".cut-off-notice", state="visible")
    shop.send("emails", 6)
    until = time.monotonic() + 60
    while True:
        try:
            socket.create_server(("127.0.0.1", port)).close()
            break
        except OSError:
            assert time.monotonic() < until
            time.sleep(0.1)
    with serving(made(), page, port):
        page.wait_for_selector(".cut-off-notice", state="hidden")
        page.wait_for_function("() => document.querySelector('.tile .value').innerText === '7'")
    assert all("Failed to" in said for said in page.said)
    page.said.clear()


def test_dead_letters_are_found_and_redriven_by_keyboard_alone(
    made: Callable[..., Dashboard], shop: Shop, page: Any
) -> None:
    """Filter, rate, question, progress; then back."""
    shop.bury(*["ValueError: old"] * 3, *["KeyError: new"] * 12)
    with serving(made(), page) as port:
        page.goto(f"http://127.0.0.1:{port}/queues/emails/dead")
        page.focus("[name=error]")
        page.keyboard.type("KeyError")
        page.keyboard.press("Enter")
        page.wait_for_url(re.compile("error=KeyError"))
        page.focus("[name=rate]")
        page.keyboard.press("End")
        page.keyboard.press("Tab")
        page.keyboard.press("Enter")
        page.wait_for_url(re.compile("/redrive"))
        assert page.locator("main button").inner_text() == "Redrive 12 dead letters"
        page.focus("main button")
        page.keyboard.press("Enter")
        page.wait_for_function(
            "() => document.querySelector('.job')?.innerText.includes('12 dead letters redriven; done')"
        )
        assert shop.queue().inspect().ready == 12
        page.go_back()
        assert "Redrive" in page.locator("h1").inner_text()


def test_without_scripts_everything_but_updates_works(
    made: Callable[..., Dashboard], shop: Shop, chromium: Any
) -> None:
    shop.send("emails", 1)
    context = chromium.new_context(java_script_enabled=False)
    page = context.new_page()
    with serving(made(), page) as port:
        page.goto(f"http://127.0.0.1:{port}/queues/emails")
        page.click("text=Pause receiving")
        assert "paused out" in page.locator(".notice").inner_text()
        page.click("text=Resume receiving")
        assert "not paused" in page.locator(".notice").inner_text()
    context.close()
