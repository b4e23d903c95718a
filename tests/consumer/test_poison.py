"""Messages that kill the process that handles them: they are dead soon, and their neighbours hardly notice."""

from __future__ import annotations

import signal
import time
from collections import Counter

import pytest

from qworker import QueueAttributes
from tests.consumer.driving import until
from tests.consumer.workers import Lab

POISON = """
@app.task
def poison() -> None:
    note("poison")
    ctypes.string_at(0)

@app.task
def handle(n: int) -> None:
    note("started", n)
    time.sleep(0.005)

@app.task
async def apoison() -> None:
    note("poison")
    await asyncio.sleep(0)
    ctypes.string_at(0)

@app.task
async def ahandle(n: int) -> None:
    note("started", n)
    await asyncio.sleep(0.005)
"""


@pytest.mark.slow
@pytest.mark.parametrize(
    ("prefix", "flags"),
    [
        pytest.param(
            "",
            (),
            marks=pytest.mark.nightly(
                "test_a_message_that_crashes_its_worker_is_dead_after_max_receives"
            ),
            id="inline",
        ),
        pytest.param("", ("--concurrency", "8"), id="threads"),
        pytest.param(
            "a",
            (),
            marks=pytest.mark.nightly("test_poison_that_leaves_no_word_is_found_out_all_the_same"),
            id="async",
        ),
    ],
)
def test_a_message_that_crashes_its_worker_is_dead_after_max_receives(
    lab: Lab, prefix: str, flags: tuple[str, ...]
) -> None:
    """A segmentation fault costs its message a receive each time, and those that ran beside it one start at most."""
    lab.app(POISON)
    with lab.worker(*flags) as worker:
        sent = 0
        while not lab.queue().inspect().dead:
            lab.send(f"{prefix}handle", sent)
            sent += 1
            if sent == 20:
                until(lambda: lab.queue().inspect().stored == 0)
                lab.send(f"{prefix}poison")
            time.sleep(0.025)
        until(lambda: lab.queue().inspect().stored == 0)
    starts = Counter(n for (n,) in lab.noted("started"))

    assert len(lab.notes("poison")) == 5
    assert set(starts) == set(range(sent))
    assert starts.total() - sent < 10
    (dead_letter,) = lab.queue().dead()
    assert (dead_letter.reason, dead_letter.error_class) == ("max_receives", "WorkerDiedError")
    first, _, stack = dead_letter.error.partition("\n")
    assert first.startswith(f"Fatal Python error: Segmentation fault in {prefix}poison (")
    assert "the process was ended by signal 11 (SIGSEGV)" in first
    assert f"in {prefix}poison\n" in f"{stack}\n"
    assert "Extension modules" not in dead_letter.error
    assert dead_letter.message is not None
    assert dead_letter.message.receives == 5
    ended = worker.events("child_ended")
    assert [(e["reason"], e["code"]) for e in ended[:-1]] == [("crashed", -signal.SIGSEGV)] * 5
    # Each crash is logged once with its stack, and with the message that it cost a receive.
    for end, failure in zip(ended[:-1], worker.events("message_failed"), strict=True):
        assert f"in {prefix}poison\n" in end["stack"]
        assert failure["pid"] == end["pid"]
        assert failure["exception"] == first


@pytest.mark.slow
@pytest.mark.parametrize(
    "flags",
    [
        pytest.param(
            ("--concurrency", "8"),
            marks=pytest.mark.nightly(
                "test_a_message_that_crashes_its_worker_is_dead_after_max_receives"
            ),
            id="threads",
        ),
        pytest.param((), id="async"),
    ],
)
def test_poison_that_leaves_no_word_is_found_out_all_the_same(
    lab: Lab, flags: tuple[str, ...]
) -> None:
    """A process that just vanishes says nothing: after two deaths in company its messages run alone, and one dies."""
    prefix = "" if flags else "a"
    lab.app(POISON.replace("ctypes.string_at(0)", "os.kill(os.getpid(), signal.SIGKILL)"))
    lab.queue().configure(QueueAttributes(max_receives=2))
    with lab.worker(*flags):
        until(lambda: lab.queue().inspect().stats.get("received", 0) == 0)
        for n in range(20):
            lab.send(f"{prefix}handle", n)
            if n == 10:
                lab.send(f"{prefix}poison")
        until(lambda: lab.queue().inspect().dead == 1)
        until(lambda: lab.queue().inspect().stored == 0)
    (dead_letter,) = lab.queue().dead()
    assert dead_letter.message is not None
    assert b"poison" in dead_letter.message.body
    # Two in company at the most, then max receives of them alone.
    assert 2 <= len(lab.notes("poison")) <= 4
    assert {n for (n,) in lab.noted("started")} == set(range(20))
