"""Keys of the namespace that hold another type: workers, senders and reapers go on without them."""

from __future__ import annotations

import pytest

from qworker.engine.raw import raw
from qworker.wire.keys import namespace_types
from tests.consumer.driving import until
from tests.consumer.workers import Lab


@pytest.mark.slow
@pytest.mark.bad_input("data found: key of another type")
@pytest.mark.parametrize("when", ["before it starts", "while it runs"])
def test_a_worker_handles_messages_without_its_namespaces_keys(lab: Lab, when: str) -> None:
    """All of them are of another type: it starts, handles what is sent and what was delayed, and ends as usual."""
    lab.app("""
@app.task
def handle(n: int) -> None:
    note("handled", n)

@app.schedule("0 0 1 1 *")
def yearly() -> None: ...
""")

    def break_all() -> None:
        for key in namespace_types(lab.namespace):
            lab.sender.client.execute(raw("DEL", key))
            lab.sender.client.execute(raw("SET", key, "not ours"))

    if when == "before it starts":
        break_all()
    lab.send("handle", 0)
    with lab.worker("--procs", "2") as worker:
        until(lambda: lab.noted("handled") == [[0]])
        if when == "while it runs":
            break_all()
        lab.send("handle", 1)
        until(lambda: lab.noted("handled") == [[0], [1]])
        lab.send("handle", 2, delay="200ms")
        until(lambda: lab.noted("handled") == [[0], [1], [2]])
    assert worker.process.returncode == 0
    assert lab.queue().inspect().stored == 0
