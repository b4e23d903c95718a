"""The app under fire: `qworker run verification.faults.jobs:app`. The environment names its server and its notes."""

from __future__ import annotations

import asyncio
import ctypes
import multiprocessing
import os
import signal
import sys
import threading
import time

from qworker import Bury, Context, QWorker, Retry, current, every
from verification.faults.history import History

__all__ = ["app"]

app = QWorker(os.environ["FAULTS_NAMESPACE"])
history = History(os.environ["FAULTS_HISTORY"])
_lock = threading.Lock()
_leak: list[bytes] = []
_retry = Retry.fixed("100ms")
#: How long a process that a handler leaves behind lives: longer than a row, but for its drain.
_OUTLIVES_S = 15.0


def delivery() -> Context:
    """The delivery that runs here."""
    context = current()
    assert context is not None
    return context


@app.task(queue="load", retry=_retry)
def handle(key: str, nap_ms: int = 0) -> None:
    """Note the start, take a while, note the end."""
    history.note("started", key, delivery().receive_count)
    if nap_ms:
        time.sleep(nap_ms / 1000)
    history.note("done", key)


@app.task(queue="aload", retry=_retry)
async def ahandle(key: str, nap_ms: int = 0) -> None:
    """Do the same on an event loop."""
    history.note("started", key, delivery().receive_count)
    await asyncio.sleep(nap_ms / 1000)
    history.note("done", key)


@app.task(queue="load", retry=_retry)
def leak(key: str, nap_ms: int = 0) -> None:
    """Keep 256 KiB forever."""
    history.note("started", key, delivery().receive_count)
    _leak.append(os.urandom(256 * 1024))
    history.note("done", key)


@app.task(queue="load", retry=_retry)
def forked(key: str, nap_ms: int = 0) -> None:
    """Send from forked children, over a client that the parent has used."""
    history.note("started", key, delivery().receive_count)
    if nap_ms:
        context = multiprocessing.get_context("fork")
        children = [context.Process(target=_send_forked, args=(key, n)) for n in range(2)]
        for child in children:
            child.start()
        for child in children:
            child.join()
        _send_forked(key, 2)
    history.note("done", key)


def _send_forked(key: str, number: int) -> None:
    producer = f"fork-{key}-{number}"
    history.note("sending", producer, 1, 5)
    for index in range(1, 6):
        handle.send(f"{producer}-{index}")
        history.note("sent", producer, index, index, synced=True)


@app.task(queue="load", retry=_retry)
def die_once(key: str, nap_ms: int = 0) -> None:
    """Ask to be buried at the first delivery, end well after a redrive."""
    context = delivery()
    history.note("started", key, context.receive_count)
    if "d" not in context.flags:
        raise Bury("the first time")
    history.note("done", key)


@app.task(queue="load", at_most_once=True, time_limit="1s")
def once(key: str, nap_ms: int = 0) -> None:
    """Be acked, then note the start and the end."""
    handle(key, nap_ms)


@app.task(queue="load", at_most_once=True, time_limit="1s")
def hang_once(key: str) -> None:
    """Be acked, then never end."""
    history.note("poisoned", key, "hang", delivery().receive_count, synced=True)
    time.sleep(3600)


@app.task(queue="load", retry=_retry)
def fork_on(key: str, nap_ms: int = 0) -> None:
    """Leave a process behind that lives longer than this one may."""
    history.note("started", key, delivery().receive_count)
    if nap_ms and os.fork() == 0:
        history.note("outlives", key)
        time.sleep(_OUTLIVES_S)
        os._exit(0)
    time.sleep(nap_ms / 1000)
    history.note("done", key)


if "FAULTS_SCHEDULE" in os.environ:

    @app.schedule(every("1s", missed="all"))
    @app.task(queue="load")
    def scheduled() -> None:
        """Note that a slot has fired."""
        history.note("scheduled", delivery().message_id)


@app.task(queue="load", time_limit="1s", retry=_retry)
def poison(key: str, kind: str) -> None:
    """Do something that ends its process, or never ends."""
    history.note("poisoned", key, kind, delivery().receive_count, synced=True)
    if kind == "segfault":
        ctypes.string_at(0)
    elif kind == "spin":
        while True:
            pass
    elif kind == "gil":
        ctypes.PyDLL(None).sleep(60)
    elif kind == "deadlock":
        with _lock:
            _lock.acquire(timeout=60)
    elif kind == "exit":
        sys.exit(0)
    elif kind == "_exit":
        os._exit(0)
    elif kind == "interrupt":
        raise KeyboardInterrupt
    elif kind == "kill":
        os.kill(os.getpid(), signal.SIGKILL)
    elif kind == "memory":
        _allocate_in(os.environ["FAULTS_CGROUP"])


def _allocate_in(cgroup: str) -> None:
    """Let the system end this process: it allocates more than its group may."""
    with open(os.path.join(cgroup, "tasks"), "w") as tasks:
        tasks.write(str(os.getpid()))
    hoard = [bytearray(os.urandom(1 << 20)) for _ in range(512)]
    raise MemoryError(len(hoard))  # not reached where the limit holds
