"""A check while real workers, senders and a reaper run finds nothing, and a repair disturbs none of them."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from qworker.client.execute.sync import Client
from qworker.client.namespace.queues import list_queues
from qworker.fsck.check import check
from qworker.fsck.damage import Damage
from qworker.store.connections import ConnectionFactory
from tests.consumer.driving import until
from tests.consumer.workers import Lab

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]

MESSAGES = 4_000
APP = """
@app.task(max_receives=3, retry=Retry.fixed("50ms"))
def handle(n: int) -> None:
    # Some come back, at once or later, and some die.
    if n % 10 == 3 and time.monotonic_ns() // 1000 % 3:
        raise Release(delay=0.02 if n % 20 == 3 else 0)
    if n % 100 == 9:
        raise ValueError(n)
    if n % 50 == 7:
        raise Bury("seen enough")
"""


@pytest.fixture
def lab(store_url: str, namespace: str, tmp_path: Path) -> Iterator[Lab]:
    """Workers in their own processes."""
    lab = Lab(store_url, namespace, tmp_path)
    yield lab
    lab.close()


@pytest.mark.parametrize(
    "repair",
    [
        pytest.param(
            False,
            marks=pytest.mark.nightly("test_workers_that_drain_a_queue_cause_no_finding"),
        ),
        True,
    ],
)
def test_workers_that_drain_a_queue_cause_no_finding(lab: Lab, repair: bool) -> None:
    """Thousands of messages are sent, released, delayed, buried and acked while the check runs again and again."""
    lab.app(APP)
    queue, damages, checks = lab.queue(), list[Damage](), 0
    sender = threading.Thread(target=lambda: lab.send_many("handle", MESSAGES))
    with Client(ConnectionFactory(lab.url)) as client, lab.reaper(0.05):
        sender.start()
        # The first send stores, and then enters the queue in the index: a check in between says so.
        until(lambda: queue.name in client.run(list_queues(lab.namespace)))
        with lab.worker("--procs", "2", "--no-reaper"):

            def is_done() -> bool:
                nonlocal checks
                checks += 1
                reports = check(client, lab.namespace, repair=repair)
                damages.extend(report for report in reports if isinstance(report, Damage))
                seen = queue.inspect()
                return (
                    not sender.is_alive()
                    and not seen.ready
                    and not seen.delayed
                    and not seen.unacked
                )

            until(is_done, 90)
        sender.join()
        assert damages == []
        assert checks > 2
        last = queue.inspect()
        assert last.stats["stored"] == 0
        assert last.stats["acked"] + last.dead == MESSAGES
