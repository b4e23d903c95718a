"""The journal of a real worker: from the handler's clock to the line in Redis."""

from __future__ import annotations

import socket
from collections import Counter

import pytest

from qworker.engine.options import QueueAttributes
from tests.consumer.driving import until
from tests.consumer.workers import Lab
from tests.journals import event_lines
from tests.topologies.servers import client_of


@pytest.mark.slow
def test_a_worker_journals_every_event_of_a_message(lab: Lab) -> None:
    """Each message is sent, delivered and acked once, with its task, its times in order, and who ran it."""
    lab.app("""
@app.task
def work(n: int) -> None:
    time.sleep(0.002)

@app.task
async def awork(n: int) -> None:
    await asyncio.sleep(0.001)

@app.task(batch=20, max_wait="20ms")
def bulk(ns: list[int]) -> None: ...

@app.task(at_most_once=True)
def once(n: int) -> None: ...

@app.task(max_receives=1)
def fail(n: int) -> None:
    raise LookupError("no")
""")
    queue = lab.queue()
    queue.configure(QueueAttributes(journal="all"))
    tasks = ("work", "awork", "bulk", "once")
    for task in tasks:
        lab.send_many(task, 60)
    lab.send_many("fail", 5)
    with lab.worker("--procs", "2") as worker:
        until(lambda: not queue.inspect().stored)
        pid = worker.process.pid
    with client_of(lab.url) as redis:
        entries = redis.xrange(queue.keys.journal)
    assert [entry.split(b"-")[1] for entry, _ in entries] == [
        b"%d" % n for n in range(len(entries))
    ]
    story: dict[str, list[list[str]]] = {}
    makers = set()
    for _, fields in entries:
        makers.add(fields[b"w"].decode())
        for line in event_lines(fields[b"e1"]):
            words = line.split(" ")
            story.setdefault(words[7], []).append(words)
    assert makers == {"", f"{socket.gethostname()}:{pid}"}
    assert len(story) == 60 * len(tasks) + 5
    ends: Counter[tuple[str, str, str]] = Counter()
    for events in story.values():
        assert [words[0] for words in events[:2]] == ["sent", "delivered"]
        last = events[-1]
        if last[0] == "released":
            continue
        event, delivered, started, ran, task, _, error, _, sent = last[:9]
        ends[event, task, error] += 1
        assert int(sent) <= int(delivered) == int(events[-2][1])
        if task == "once":
            assert (started, ran) == ("-", "-")
        else:
            assert int(delivered) <= int(started)
            assert int(ran) >= {"work": 2000}.get(task, 0)
    assert ends == {
        **{("acked", task, "-"): 60 for task in tasks},
        ("dead", "fail", "LookupError"): 5,
    }
