"""The handlers that the benchmarks run."""

from __future__ import annotations

from qworker import QWorker

app = QWorker("bench")


@app.task(queue="drain")
def noop(number: int, pad: str) -> None:
    """Do nothing with a number and some text: a body of about 100 bytes."""


aio = QWorker("bench-aio")


@aio.task(name="noop", queue="drain")
async def anoop(number: int, pad: str) -> None:
    """Do nothing, as a coroutine."""
