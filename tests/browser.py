"""A browser, the system's Chromium, and pages of it."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from typing import Any

import pytest

from tests.servers import missing

__all__ = ["WAIT_MS", "chromium", "new_page"]

WAIT_MS = 60_000


@pytest.fixture(scope="module")
def chromium() -> Iterator[Any]:
    """The system's Chromium. Playwright has an event loop that runs meanwhile, which other files must not meet."""
    path = shutil.which("chromium") or shutil.which("google-chrome")
    if path is None:
        missing("needs chromium: apt install chromium")
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(
            executable_path=path, args=["--no-sandbox", "--disable-dev-shm-usage"]
        )
        yield browser
        browser.close()


@pytest.fixture(name="page")
def new_page(chromium: Any) -> Iterator[Any]:
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
