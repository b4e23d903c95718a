"""A node of a Cluster is away: the dashboard and the full screen of top show what the other nodes know."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pytest

from qworker import QWorker
from qworker.client.inspect.peek import Inspection
from qworker.monitor.sample import Sample
from qworker.web import RIGHTS, Access, asgi
from qworker.web.application import Dashboard
from qworker.wire.keys import QueueKeys, queues_key, reapers_key, workers_key
from tests.topologies.servers import Cluster, Node, until
from tests.topologies.test_node_away import namespace_of, queues, without_failover
from tests.web.conftest import Browser
from tests.web.test_live import stream

pytestmark = [
    pytest.mark.slow,
    pytest.mark.timeout(120),
    pytest.mark.needs("starlette", "jinja2", "httpx"),
]

#: A page waits for the node at most twice: to see that it is away, and once to see that it still is.
LONGEST_S = 6.0


@contextmanager
def dashboard_of(space: str, nodes: Cluster) -> Iterator[Dashboard]:
    dashboard = asgi(QWorker(space, url=nodes.url), authorize=lambda request: Access("ada", RIGHTS))
    yield dashboard
    dashboard.close()


def sampled(dashboard: Dashboard, fits: Callable[[Sample], bool]) -> Sample:
    """Wait for a sample that fits."""

    def fitting() -> Sample | None:
        sample = dashboard.sampler.sample
        return sample if fits(sample) else None

    found: Sample = until(fitting, what="the sample")
    return found


def fill(space: str, nodes: Cluster, lost: Node) -> tuple[list[str], list[str]]:
    """Send a message to two queues of a node, and to two of others; returns their names."""
    places: list[QueueKeys] = queues(nodes, space, lost, 2, 2)
    app = QWorker(space, url=nodes.url)
    with app.client:
        for keys in places:
            app.queue(keys.name).send({"n": 1})
    return [keys.name for keys in places[:2]], [keys.name for keys in places[2:]]


@pytest.mark.bad_input("dashboard: a node of a Cluster that is away")
def test_pages_show_what_the_other_nodes_know_and_come_back(nodes: Cluster, namespace: str) -> None:
    """Queues of a frozen node say which node is away; no page waits long, and a stream goes on when it is back."""
    with without_failover(nodes) as lost:
        space = namespace_of(nodes, namespace, lost, [reapers_key])
        gone, there = fill(space, nodes, lost)
        with dashboard_of(space, nodes) as dashboard:
            browser = Browser(dashboard)
            assert browser.get("/").status_code == 200
            lost.pause()
            try:
                sample = sampled(dashboard, lambda sample: len(sample.unread) == 2)
                assert not sample.problem
                assert sample.unknown.keys() == {"reapers"}
                assert sum(queue.ready for queue in sample.read()) == 2

                async def watch() -> None:
                    async with stream(dashboard, f"/queues/{gone[0]}") as page:
                        assert lost.address in await page.event(lost.address)
                        slowest = {}
                        for path, status in (
                            ("/", 200),
                            ("/queues", 200),
                            (f"/queues/{there[0]}", 200),
                            (f"/queues/{there[0]}/messages", 200),
                            (f"/queues/{gone[0]}", 503),
                            (f"/queues/{gone[0]}/messages", 503),
                            (f"/queues/{gone[0]}/dead", 503),
                            (f"/queues/{gone[0]}/messages/x", 503),
                            ("/workers", 200),
                            ("/runs", 200),
                            ("/durability", 200),
                            ("/health", 200),
                        ):
                            began = time.monotonic()
                            answer = await asyncio.to_thread(browser.get, path)
                            slowest[path] = time.monotonic() - began
                            assert answer.status_code == status, (path, answer.text)
                            if status == 200:
                                assert f"2 queues not read ({gone[0]}, {gone[1]})" in answer.text
                            assert (
                                f"{lost.address} of the Cluster does not answer" in answer.text
                            ), path
                        assert max(slowest.values()) < LONGEST_S, slowest
                        lost.resume()
                        assert '"value ">1<' in await page.event('"value ">1<')

                asyncio.run(watch())
            finally:
                lost.resume()
            sampled(dashboard, lambda sample: not sample.partial)
            assert "not read" not in browser.get("/").text


def test_queues_are_found_while_their_index_is_away(nodes: Cluster, namespace: str) -> None:
    """By a scan of the nodes that answer, with a page for each; workers on the lost node are not shown as gone."""
    with without_failover(nodes) as lost:
        space = namespace_of(nodes, namespace, lost, [queues_key, workers_key])
        _, there = fill(space, nodes, lost)
        lost.kill()
        try:
            with dashboard_of(space, nodes) as dashboard:
                browser = Browser(dashboard)
                sample = sampled(dashboard, lambda sample: sample.now_ms > 0)
                assert set(sample.queues) >= set(there)
                assert all(isinstance(sample.queues[name], Inspection) for name in there)
                page = browser.get("/queues").text
                assert "The list of queues is not read" in page
                assert all(f"/queues/{name}" in page for name in there)
                assert browser.get(f"/queues/{there[0]}").status_code == 200
                workers = browser.get("/workers").text
                assert "They cannot be read now" in workers
                assert "No workers are running" not in workers
                assert browser.get("/worker?name=x").status_code == 503
        finally:
            lost.start()
