"""A check beside real workers, senders and a reaper finds nothing, and a repair disturbs nobody."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from qworker.client.sync import Client
from qworker.fsck.check import check
from qworker.fsck.finding import Finding
from qworker.store.connection import ConnectionFactory
from tests.consumer.driving import until
from tests.consumer.workers import Lab

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]

MESSAGES = 20_000
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
    """A place for workers in processes of their own."""
    lab = Lab(store_url, namespace, tmp_path)
    yield lab
    lab.close()


@pytest.mark.parametrize("repair", [False, True])
def test_workers_that_drain_a_queue_are_no_damage(lab: Lab, repair: bool) -> None:
    """20,000 messages are sent, released, delayed, buried and acked while the check runs again and again."""
    lab.app(APP)
    queue, found, looks = lab.queue(), list[Finding](), 0
    sender = threading.Thread(target=lambda: lab.send_all("handle", MESSAGES))
    with Client(ConnectionFactory(lab.url)) as client, lab.reaper(0.05):
        sender.start()
        with lab.worker("--procs", "2", "--no-reaper"):

            def is_done() -> bool:
                nonlocal looks
                looks += 1
                for each in check(client, lab.namespace, repair=repair):
                    if isinstance(each, Finding):
                        found.append(each)
                seen = queue.inspect()
                return (
                    not sender.is_alive()
                    and not seen.ready
                    and not seen.delayed
                    and not seen.unacked
                )

            until(is_done, 90)
        sender.join()
        assert found == []
        assert looks > 2
        last = queue.inspect()
        assert last.stats["stored"] == 0
        assert last.stats["acked"] + last.dead == MESSAGES
