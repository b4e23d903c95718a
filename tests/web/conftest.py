"""A dashboard over the shared server, and a browser without JavaScript to look at it."""

from __future__ import annotations

import asyncio
import socket
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from html.parser import HTMLParser
from typing import Any

import httpx
import pytest

from qworker import QWorker
from qworker.client.execute.sync import Client
from qworker.store.connections import ConnectionFactory
from qworker.web import RIGHTS, Access, asgi
from qworker.web.application import Dashboard
from qworker.web.pages.table import PAGES
from tests.browser import chromium, new_page  # noqa: F401  fixtures
from tests.cli.conftest import Shop
from tests.web.filled import fill

HOST = "ops.test"
#: Pages of what a query names.
ASKED_FOR = (
    "/worker",
    "/workers/drain",
    "/schedules/rm",
    "/queues/{queue}/dead/edit",
    "/queues/{queue}/groups/rm",
)
#: Every page of the queue `emails` that is there without anything in it.
PATHS = [
    path.replace("{queue}", "emails")
    for path in PAGES
    if not any(name in path for name in ("{entry", "{message")) and path not in ASKED_FOR
]


class Browser:
    """Sends requests as a browser does: a form has the origin of its page."""

    def __init__(self, application: Any, base: str = "") -> None:
        self.application = application
        self.base = base
        self.headers: dict[str, str] = {}

    def get(self, path: str, **headers: str) -> httpx.Response:
        return self.request("GET", path, headers)

    def post(
        self, path: str, form: Mapping[str, str] | None = None, **headers: str
    ) -> httpx.Response:
        own = {"origin": f"http://{HOST}", "sec-fetch-site": "same-origin"}
        if not form:
            own["content-type"] = "application/x-www-form-urlencoded"
        return self.request("POST", path, {**own, **headers}, data=form or {})

    def request(
        self, method: str, path: str, headers: Mapping[str, str], **more: Any
    ) -> httpx.Response:
        """Send a request; a header with an empty value is left out, and `_` stands for `-` in its name."""
        sent = {
            name.replace("_", "-"): value
            for name, value in {**self.headers, **headers}.items()
            if value
        }

        async def send() -> httpx.Response:
            transport = httpx.ASGITransport(self.application, raise_app_exceptions=False)
            async with httpx.AsyncClient(
                transport=transport, base_url=f"http://{HOST}{self.base}"
            ) as client:
                return await client.request(method, path, headers=sent, **more)

        return asyncio.run(send())


class Document(HTMLParser):
    """The elements of a page, and its text."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.elements: list[tuple[str, dict[str, str]]] = []
        self.words: list[str] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, {name: value or "" for name, value in attrs}))

    def handle_data(self, data: str) -> None:
        self.words += data.split()

    @property
    def text(self) -> str:
        return " ".join(self.words)

    def all(self, tag: str) -> list[dict[str, str]]:
        return [attributes for name, attributes in self.elements if name == tag]


def text_of(browser: Browser, path: str, status: int = 200) -> str:
    """Return the text of a page, which must have this status."""
    answer = browser.get(path)
    assert answer.status_code == status, answer.text
    return Document(answer.text).text


@pytest.fixture
def shop(store_url: str, namespace: str) -> Iterator[Shop]:
    with Client(ConnectionFactory(store_url), give_up_s=20) as client:
        yield Shop(client, namespace, store_url)


@pytest.fixture
def made(shop: Shop) -> Iterator[Callable[..., Dashboard]]:
    """Make a dashboard of the shop, by default for a user who may do everything."""
    with ExitStack() as stack:

        def make(**options: Any) -> Dashboard:
            options.setdefault("authorize", lambda request: Access("ada", RIGHTS))
            dashboard = asgi(QWorker(shop.namespace, url=shop.url), **options)
            stack.callback(dashboard.close)
            return dashboard

        yield make


@pytest.fixture
def paths(shop: Shop) -> list[str]:
    """The pages of a shop with something of everything."""
    return fill(shop)


@pytest.fixture
def browser(made: Callable[..., Dashboard]) -> Browser:
    return Browser(made())


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
