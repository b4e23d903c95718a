"""The app that the scenarios run. Every start and end of a handler is a line in the history file."""

from __future__ import annotations

import ctypes
import os
import time

from qworker import QWorker, Retry, current

app = QWorker(os.environ.get("SCENARIO_NAMESPACE", "scenario"))

_HISTORY = os.environ.get("SCENARIO_HISTORY")


def note(event: str, value: object) -> None:
    """Append one line; a write of this size with O_APPEND is atomic, and fsync makes it outlive a kill."""
    if _HISTORY is None:
        return
    context = current()
    receives = context.receive_count if context else 0
    file = os.open(_HISTORY, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
    try:
        os.write(
            file, f"{event} {value} {os.getpid()} {receives} {time.monotonic():.4f}\n".encode()
        )
        os.fsync(file)
    finally:
        os.close(file)


@app.task(queue="work", max_receives=20, retry=Retry.fixed("100ms"))
def work(number: int, seconds: float) -> None:
    """Take some time."""
    note("start", number)
    time.sleep(seconds)
    note("end", number)


@app.task(queue="work", max_receives=3)
def segfault(number: int) -> None:
    """End the process the hard way."""
    note("start", number)
    ctypes.string_at(0)


@app.task(queue="work")
def hold_gil(number: int, seconds: int) -> None:
    """Sleep in C without giving up the GIL."""
    note("start", number)
    ctypes.PyDLL(None).sleep(seconds)
    note("end", number)


@app.task(queue="aio")
async def asegfault(number: int) -> None:
    """End the process the hard way, among other coroutines."""
    note("start", number)
    ctypes.string_at(0)


@app.task(queue="aio", max_receives=20)
async def awork(number: int, seconds: float) -> None:
    """Take some time without blocking."""
    import asyncio

    note("start", number)
    await asyncio.sleep(seconds)
    note("end", number)
