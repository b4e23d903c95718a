"""Calls that wait for the server, apart from the loop that draws."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from typing import Any, TypeVar

__all__ = ["in_background"]

T = TypeVar("T")


async def in_background(function: Callable[[], T]) -> T:
    """Call a function on its own thread, and return what it does.

    Unlike those of `asyncio.to_thread` the thread does not keep the process: `q` ends the screen at once.
    """
    loop = asyncio.get_running_loop()
    future: asyncio.Future[T] = loop.create_future()

    def settle(setter: Callable[[Any], None], value: Any) -> None:
        if not future.done():
            setter(value)

    def call() -> None:
        setter: Callable[[Any], None]
        try:
            setter, value = future.set_result, function()
        except BaseException as error:  # noqa: BLE001  raised again where it is awaited
            setter, value = future.set_exception, error  # type: ignore[assignment]
        try:
            loop.call_soon_threadsafe(settle, setter, value)
        except RuntimeError:
            return  # the screen has ended

    threading.Thread(target=call, name="qworker-top", daemon=True).start()
    return await future
