"""The full screen over the shared server, with keys to press and lines to read."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from typing import Any

import pytest

from qworker.cli.top.full.app import Top
from qworker.client.execute.sync import Client
from qworker.monitor.namespace import Namespace
from qworker.store.connections import ConnectionFactory
from qworker.store.url import ServerURL
from qworker.wire.control import Answer, read_request, write
from qworker.wire.keys import answer_key, control_key
from tests.cli.conftest import Shop
from tests.timing import DEADLINE_S


@pytest.fixture(autouse=True)
def _slow_reader(monkeypatch: pytest.MonkeyPatch) -> None:
    """Leave what has ended on the screen for as long as a test waits: a busy machine may look at it late."""
    monkeypatch.setattr("qworker.cli.top.full.drawing._SHOWN_S", DEADLINE_S)


class Seat:
    """Someone who sits before the screen."""

    def __init__(self, top: Top, pilot: Any) -> None:
        self.top = top
        self.pilot = pilot

    @property
    def lines(self) -> list[str]:
        """The screen as it is now, dialogs included."""
        return [strip.text for strip in self.top.screen._compositor.render_strips()]

    @property
    def text(self) -> str:
        return "\n".join(self.lines)

    @property
    def words(self) -> str:
        """The words of the screen: where lines break does not matter, nor do borders."""
        return " ".join(self.text.replace("│", " ").split())

    async def press(self, *keys: str) -> None:
        await self.pilot.press(*keys)

    async def type(self, text: str) -> None:
        names = {" ": "space", "/": "slash", "+": "plus", "-": "minus", "_": "underscore"}
        await self.pilot.press(*(names.get(char, char) for char in text))

    async def sees(self, *parts: str, gone: str = "") -> None:
        """Wait until the screen has all parts, and no longer the one that is to go."""
        deadline, pause_s = time.monotonic() + DEADLINE_S, 0.02
        while True:
            words = self.words  # draws the whole screen: so the longer it lasts, the fewer looks
            if all(part in words for part in parts) and not (gone and gone in words):
                return
            assert time.monotonic() < deadline, f"{parts} (gone: {gone!r}) is not:\n{self.text}"
            await self.pilot.pause(pause_s)
            pause_s = min(1.5 * pause_s, 0.2)

    async def until(self, happened: Callable[[], object]) -> None:
        """Wait until something has happened on the server."""
        deadline = time.monotonic() + DEADLINE_S
        while not happened():
            assert time.monotonic() < deadline, f"it did not happen:\n{self.text}"
            await self.pilot.pause(0.01)


@asynccontextmanager
async def seat(
    url: str, namespace: str, size: tuple[int, int] = (80, 24), **options: Any
) -> AsyncIterator[Seat]:
    """Open the screen, and wait for its first picture."""
    client = Client(ConnectionFactory(url, name="test-top"), give_up_s=0.5)
    parsed = ServerURL.parse(url)
    options.setdefault("every_s", 0.5)
    top = Top(Namespace(namespace, client, parsed, parsed), **options)
    try:
        async with top.run_test(size=size) as pilot:
            here = Seat(top, pilot)
            await here.sees(namespace, gone="reading")
            yield here
    finally:
        top.sampler.join()
        for thread in threading.enumerate():
            if thread.name == "qworker-top":
                thread.join(DEADLINE_S)
        client.close()


def at_screen(
    shop: Shop,
    play: Callable[[Seat], Awaitable[None]],
    size: tuple[int, int] = (80, 24),
    **options: Any,
) -> None:
    """Open the screen of the shop, and play a scene before it."""

    async def run() -> None:
        async with seat(shop.url, shop.namespace, size, **options) as here:
            await play(here)

    asyncio.run(run())


@contextmanager
def answering(
    shop: Shop, worker: str, answer: Callable[[str, dict[str, Any]], Answer]
) -> Iterator[list[Any]]:
    """Answer the requests to a worker as it would; gives those that came."""
    ended, came = threading.Event(), []
    client = Client(ConnectionFactory(shop.url), give_up_s=5)
    other = Shop(client, shop.namespace, shop.url)

    def serve() -> None:
        while not ended.is_set():
            item = other.ask("LPOP", control_key(shop.namespace, worker))
            request = read_request(item) if item else None
            if request is None:
                ended.wait(0.02)
                continue
            came.append((request.verb, request.arguments))
            document = write(answer(request.verb, request.arguments))
            other.ask("RPUSH", answer_key(shop.namespace, request.id), document)

    thread = threading.Thread(target=serve)
    thread.start()
    try:
        yield came
    finally:
        ended.set()
        thread.join()
        client.close()
