"""Waits on a link that says nothing any more, as after the loss of a host: they end soon after their timeout.

Their errors say that the server did not answer, not that a call may have run: a wait changes nothing.
"""

from __future__ import annotations

import asyncio
import os
import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from qworker import Handle, Handles, InDoubtError, QWorker, UnavailableError
from qworker.testing import drain
from tests.chaos import ChaosProxy
from tests.timing import Watch

#: Of a wait of 0.3 s: a second for the answer, and the rest for a slow machine.
LONGEST_S = 4.5


@pytest.fixture
def proxy(store_url: str) -> Iterator[ChaosProxy]:
    """What falls silent."""
    with ChaosProxy(store_url) as proxy:
        yield proxy


@pytest.fixture
def handles(proxy: ChaosProxy, namespace: str) -> Iterator[list[Handle[Any]]]:
    """Messages that wait; their calls are tried for a minute."""
    app = QWorker(namespace, url=proxy.url)

    @app.task(queue="math", result="1h")
    def square(number: int) -> int:
        return number * number

    yield [*square.start_many(square.call(number) for number in range(100))]
    proxy.heal()
    app.close()


WAITS: dict[str, Callable[[Handle[Any]], Any]] = {
    "result": lambda handle: handle.result("300ms"),
    "a look": lambda handle: handle.result(0),
    "results": lambda handle: Handles([handle, handle]).results("300ms"),
    "feed": lambda handle: next(handle.feed(timeout="300ms")),
}


async def feed(handle: Handle[Any]) -> None:
    async for _ in handle.afeed(timeout="300ms"):
        pass


AWAITS: dict[str, Callable[[Handle[Any]], Any]] = {
    "result": lambda handle: handle.aresult("300ms"),
    "a look": lambda handle: handle.aresult(0),
    "results": lambda handle: Handles([handle, handle]).aresults("300ms"),
    "feed": feed,
}


@pytest.mark.slow
@pytest.mark.nightly("test_waits_of_async_code_end_soon_after_their_timeout")
def test_waits_end_soon_after_their_timeout(
    proxy: ChaosProxy, handles: list[Handle[Any]], namespace: str
) -> None:
    """Over the connection that has fallen silent and over new ones; they go on when the link does."""
    app = QWorker(namespace, url=proxy.url)
    ends: dict[tuple[str, bool], tuple[float, BaseException]] = {}
    proxy.blackhole = True

    def wait(name: str, handle: Handle[Any], connected: bool) -> None:
        watch = Watch(os.getpid())
        with pytest.raises(UnavailableError) as caught:
            WAITS[name](handle)
        ends[name, connected] = watch.passed_s(), caught.value

    threads = [
        threading.Thread(target=wait, args=(name, handle, connected))
        for name in WAITS
        for handle, connected in ((handles[0], True), (app.handle("math", handles[0].id), False))
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert ends.keys() == {(name, connected) for name in WAITS for connected in (True, False)}
    for passed_s, error in ends.values():
        assert passed_s < LONGEST_S
        assert "may" not in str(error)
    proxy.blackhole = False
    drain(handles[0]._app)
    assert handles[3].result("1m") == 9
    app.close()


@pytest.mark.slow
def test_waits_of_async_code_end_soon_after_their_timeout(
    proxy: ChaosProxy, handles: list[Handle[Any]]
) -> None:
    """All of them, also those that have to wait for a connection."""

    async def waits() -> list[Any]:
        with pytest.raises(TimeoutError):
            await handles[0].aresult("10ms")
        proxy.blackhole = True
        several = (handle.aresult("300ms") for handle in handles)
        others = (wait(handles[0]) for wait in AWAITS.values())
        return await asyncio.gather(*several, *others, return_exceptions=True)

    async def work() -> list[Any]:
        watch = Watch(os.getpid())
        errors = await waits()
        assert watch.passed_s() < LONGEST_S
        proxy.blackhole = False
        await handles[0]._app.aclose()
        return errors

    errors = asyncio.run(work())
    assert {type(error) for error in errors} == {UnavailableError}
    assert not [error for error in errors if "may" in str(error)]


@pytest.mark.parametrize("call", ["cancel", "signal"])
def test_an_unanswered_write_is_in_doubt(
    proxy: ChaosProxy, handles: list[Handle[Any]], namespace: str, call: str
) -> None:
    """It may have run, and its error says so."""
    app = QWorker(namespace, url=proxy.url, give_up="300ms")
    handle = app.handle("math", handles[0].id)
    assert handle.status() is None
    proxy.cut_reply(every=1, of=b"EVALSHA")
    with pytest.raises(InDoubtError, match="may or may not have run"):
        handle.cancel() if call == "cancel" else handle.signal(1, name="go")
    proxy.heal()
    app.close()
