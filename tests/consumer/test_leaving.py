"""Workers that were asked to leave: they take all the time of what runs, until they are stopped."""

from __future__ import annotations

from typing import Any

import pytest

from qworker.engine.raw import raw
from qworker.wire.keys import leaving_key, workers_key
from tests.consumer.driving import until
from tests.consumer.workers import Lab

APP = """
@app.task
def block(n: int) -> None:
    note("started", n)
    time.sleep(600)
"""


@pytest.mark.slow
def test_a_draining_worker_that_is_stopped_has_its_grace_time(lab: Lab) -> None:
    """It does not wait forever any more: what still runs then is cut off and given back."""
    lab.app(APP)
    lab.send("block", 0)
    lab.send("block", 1)
    worker = lab.start("--grace", "1s")
    until(lambda: lab.notes("started"))

    def ask(*words: str | int | bytes) -> Any:
        command = raw(*words)
        return lab.sender.client.execute(command)

    until(lambda: ask("HLEN", workers_key(lab.namespace)) == 1)
    [name] = ask("HKEYS", workers_key(lab.namespace))
    ask("HSET", leaving_key(lab.namespace), name, 1)
    until(lambda: worker.events("worker_stopping"))
    assert worker.events("worker_stopping")[0]["grace_seconds"] is None
    until(lambda: b'"leaving":true' in ask("HGET", workers_key(lab.namespace), name))
    assert worker.process.poll() is None
    assert worker.stop() == 0
    assert len(worker.events("child_cut_off")) == 1
    assert lab.noted("started") == [[0]]
    # A handler was started for the first one, and cut off.
    assert [message.receives for message in lab.queue().peek()] == [1, 0]
    for key in (leaving_key(lab.namespace), workers_key(lab.namespace)):
        assert ask("EXISTS", key) == 0
