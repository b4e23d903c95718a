"""The dashboard in Chromium: what only a browser can show, as wide as a telephone and a screen, light and dark."""

from __future__ import annotations

import os
import re
import socket
import time
from collections.abc import Callable
from typing import Any

import pytest

from qworker.engine.raw import raw
from qworker.web.application import Dashboard
from qworker.wire.codec import encode_call
from tests.cli.conftest import Shop
from tests.web.conftest import serving

pytestmark = [
    pytest.mark.browser,
    pytest.mark.slow,
    pytest.mark.needs("playwright", "uvicorn"),
    pytest.mark.xdist_group("browser"),  # one Chromium for all
]
#: Old dead letters, among which there are twelve new ones.
OLD = int(os.environ.get("QWORKER_DEAD_LETTERS", "6000"))


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


def test_twelve_new_dead_letters_of_many_are_found_and_redriven_by_keyboard_alone(
    made: Callable[..., Dashboard], shop: Shop, page: Any
) -> None:
    """From the overview to why they died, and at 10 a second back, within a minute; the browser's back leads back.

    QWORKER_DEAD_LETTERS says how many old ones there are; 700000 is the long form.
    """
    body = encode_call("send_email", [1], {})
    stored = b"q1 " + b"a" * 20 + b" 1 1 1 0 0\n" + body
    fields = (
        "reason",
        "max_receives",
        "class",
        "OSError",
        "envelope",
        stored,
        "error",
        "disk full",
    )
    for first in range(1, OLD, 1000):
        shop.client.execute_each(
            [raw("XADD", shop.keys().dead, f"{first + at}-1", *fields) for at in range(1000)]
        )
    shop.bury(*["KeyError: 'address'"] * 12)

    def tab_to(found: str) -> None:
        """Press Tab until an element has the focus."""
        for _ in range(150):
            page.keyboard.press("Tab")
            if page.evaluate("found => document.activeElement.matches(found)", found):
                return
        raise AssertionError(f"{found} is not reached")

    with serving(made(), page) as port:
        page.goto(f"http://127.0.0.1:{port}/")
        begun = time.monotonic()
        tab_to(f"[aria-label='{OLD + 12:,} dead letters of emails']")
        page.keyboard.press("Enter")
        page.wait_for_url(re.compile("/dead"))
        assert "KeyError: …" in page.locator("[aria-labelledby=groups] tbody tr").first.inner_text()
        tab_to("[name=newer_than]")
        page.keyboard.type("1h")
        page.keyboard.press("Enter")
        page.wait_for_url(re.compile("newer_than=1h"))
        assert "12 found" in page.locator("main").inner_text()
        tab_to(".letters a")
        page.keyboard.press("Enter")
        page.wait_for_url(re.compile("/dead/[0-9]"))
        assert "KeyError: 'address'" in page.locator("main pre").first.inner_text()
        page.go_back()
        page.wait_for_url(re.compile("newer_than=1h"))
        tab_to("[name=rate]")
        assert page.locator("[name=rate]").input_value() == "10/s"
        page.keyboard.press("Tab")
        page.keyboard.press("Enter")
        page.wait_for_url(re.compile("/redrive"))
        assert (
            f"12 dead letters of {OLD + 12:,} in emails, at 10/s"
            in page.locator("main").inner_text()
        )
        tab_to("main .confirm button")
        page.keyboard.press("Enter")
        page.wait_for_function(
            "() => document.querySelector('.job')?.innerText.includes('12 dead letters redriven; done')"
        )
        took_s = time.monotonic() - begun
        print(f"twelve among {OLD:,} dead letters, by keyboard: {took_s:.1f} s")
        assert took_s < 60
        left = shop.queue().inspect()
        assert (left.ready, left.dead) == (12, OLD)
