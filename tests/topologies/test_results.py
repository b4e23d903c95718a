"""Results on a Cluster and behind Sentinels, and with a distant server."""

from __future__ import annotations

import asyncio
import threading

import pytest

from qworker import QWorker, TaskEndedError
from qworker.app.task import Task
from qworker.testing import drain
from tests import servers
from tests.relay import Relay


def tasks(app: QWorker) -> list[Task[[int], int]]:
    """A task on each of several queues, one of them divided: on the nodes of a Cluster, wherever their slots are."""
    found = []
    for name in ("a", "b", "c"):

        @app.task(name=name, queue=name, result="1h")
        def double(n: int) -> int:
            return 2 * n

        found.append(double)
    app.queue("c").divide(3)
    return found


@pytest.mark.parametrize(
    "url",
    [
        "nodes",
        pytest.param("trio", marks=pytest.mark.nightly("test_results_of_queues_on_several_nodes")),
    ],
    indirect=True,
)
def test_results_of_queues_on_several_nodes(url: str, namespace: str) -> None:
    """Threads and coroutines wait for results, wherever these are written."""
    app = QWorker(namespace, url=url)
    handles = [task.start(n) for task in tasks(app) for n in range(3)]
    purged = app.find("a").start(9)
    results: dict[int, int] = {}
    threads = [
        threading.Thread(
            target=lambda at, handle: results.update({at: handle.result("1m")}), args=pair
        )
        for pair in enumerate(handles)
    ]
    for thread in threads:
        thread.start()
    timer = threading.Timer(0.3, lambda: drain(app))
    timer.start()

    async def wait() -> list[int]:
        values = await asyncio.gather(*(handle.aresult("1m") for handle in handles))
        await app.aclose()
        return values

    assert asyncio.run(wait()) == [0, 2, 4] * 3
    for thread in [*threads, timer]:
        thread.join()
    assert [results[at] for at in range(9)] == [0, 2, 4] * 3
    assert purged.result("1m") == 18
    gone = app.find("b").start(1)
    app.queue("b").purge()
    with pytest.raises(TaskEndedError):
        gone.result("1m")
    app.close()


@pytest.mark.slow
def test_a_distant_server(namespace: str) -> None:
    """30 ms away, a wait takes some trips more than its message. Its worker is near: it makes a hundred of them."""
    with servers.start("valkey", far=False) as server, Relay(server.url, rtt_ms=30) as relay:
        far, near = QWorker(namespace, url=relay.url), QWorker(namespace, url=server.url)
        for app in (far, near):

            @app.task(name="double", result="1h")
            def double(n: int) -> int:
                return 2 * n

        handle = far.find("double").start(4)
        timer = threading.Timer(0.1, lambda: drain(near))
        timer.start()
        assert handle.result("1m") == 8
        timer.join()
        far.close()
        near.close()
