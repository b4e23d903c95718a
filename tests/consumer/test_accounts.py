"""Server, metrics, log and handlers say the same numbers, also of messages whose child died."""

from __future__ import annotations

import os
import random
import re
import signal
import threading
import urllib.request
from contextlib import suppress
from typing import Any

import pytest
from prometheus_client.parser import text_string_to_metric_families

from qworker import QueueAttributes
from qworker.consumer.board.board import Board
from qworker.consumer.board.counters import TaskCounts
from qworker.consumer.board.states import Mark
from qworker.consumer.board.tally import Tally
from qworker.engine.command import Command
from qworker.engine.raw import raw
from tests.consumer.driving import until
from tests.consumer.workers import Lab
from tests.ports import free_port

COUNT = 250


class DiedError(Exception):
    """The process died here."""


def test_a_message_is_counted_once_wherever_its_child_dies() -> None:
    """Whichever store into the board is the last one, the counts and the marks together tell of each message once."""
    counts = TaskCounts.none()
    counts.outcomes[0], counts.outcomes[1] = 2, 1
    stores, seen = 0, set()
    while True:
        board = Board.create(1)
        board.leases.enter(0, "L-1", 0, 30.0)
        board.leases.hold(0, 4, 1.0, 30.0)
        for place, mark in enumerate((Mark.DONE, Mark.FAILED, Mark.DONE, Mark.RUNNING)):
            board.leases.mark(0, place, mark)
        # A batch of before.
        board.tally.add(3, counts, (), 1)
        left = [stores]
        memory, words = Stores(board.bytes, left), Stores(board.words, left)
        dying = Tally(memory, words, board.leases, board.counters, 0)
        try:
            marks = board.leases.marks_at(0)
            dying.add(3, counts, (marks, marks + 1, marks + 2), 1)
            died = False
        except DiedError:
            died = True
        board.tally.finish()
        uncounted = board.tally.uncounted(0)
        counted = board.counters.read(3).outcomes
        assert len(uncounted) in (0, 3)
        assert sum(counted) + len(uncounted) == 6
        assert counted[:2] == ([2, 1] if uncounted else [4, 2])
        assert (board.handled, board.failed) == ((3, 1) if uncounted else (6, 2))
        (view,) = board.leases.views()
        assert list(view.marks) == [Mark.DONE, Mark.FAILED, Mark.DONE, Mark.RUNNING]
        seen.add(len(uncounted))
        board.close()
        if not died:
            break
        stores += 1
    assert seen == {0, 3}


class Stores:
    """Memory whose owner dies before the store of a number."""

    def __init__(self, memory: memoryview[int], left: list[int]) -> None:
        self.memory, self._left = memory, left

    def __getitem__(self, at: Any) -> Any:
        return self.memory[at]

    def __setitem__(self, at: Any, value: Any) -> None:
        for place, item in enumerate(value) if isinstance(at, slice) else [(None, value)]:
            if not self._left[0]:
                raise DiedError
            self._left[0] -= 1
            self.memory[at if place is None else at.start + place] = item


def scrape(port: int, label: str = "outcome") -> dict[str, int]:
    """What a worker's metrics say of its messages, by a label, and of stale ones."""
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=60) as answer:
        text = answer.read().decode()
    counts: dict[str, int] = {}
    for family in text_string_to_metric_families(text):
        for sample in family.samples:
            if sample.name == "qworker_handled_total" and sample.value:
                value = sample.labels[label]
                counts[value] = counts.get(value, 0) + int(sample.value)
            elif sample.name == "qworker_stale_outcomes_total" and sample.value:
                counts["stale"] = int(sample.value)
    return counts


@pytest.mark.slow
@pytest.mark.timeout(300)
@pytest.mark.parametrize(
    "kind",
    [
        "inline",
        *(
            pytest.param(kind, marks=pytest.mark.nightly("test_accounts_agree_when_children_die"))
            for kind in ("threads", "async")
        ),
    ],
)
def test_accounts_agree_when_children_die(lab: Lab, kind: str) -> None:
    """Children that crash and are killed at random: acks, metrics, log and what handlers noted are the same numbers."""
    word, nap = ("async def", "await asyncio.sleep") if kind == "async" else ("def", "time.sleep")
    lab.app(f"""
@app.task(max_receives=50, time_limit=60)
{word} work(n):
    context = current()
    note("began", n)
    if n % 97 == 5 and context.timeouts == 0:
        note("crashing", n)
        os.kill(os.getpid(), signal.SIGKILL)
    if n % 61 == 7 and context.nacks == 0:
        raise Retry("50ms")
    if n % 40 == 9:
        {nap}(0.01)
    note("done", n)
""")
    lab.queue().configure(QueueAttributes(max_receives=50))
    lab.send_many("work", COUNT)
    port = free_port()
    killed: set[int] = set()
    flags = {"inline": (), "threads": ("--concurrency", "4"), "async": ("--concurrency", "20")}
    worker = lab.start("--procs", "2", "--metrics-port", str(port), *flags[kind])
    ended = threading.Event()
    pick = random.Random(11)

    def kill() -> None:
        while not ended.wait(0.25) and len(killed) < 4:
            # One that is dead stays a child until its supervisor has seen that.
            children = [pid for pid in worker.children() if pid not in killed]
            if children and len(lab.notes("began")) > 10:
                chosen = pick.choice(children)
                with suppress(ProcessLookupError):  # it has ended by itself
                    os.kill(chosen, signal.SIGKILL)
                    killed.add(chosen)

    killer = threading.Thread(target=kill)
    killer.start()
    try:
        until(lambda: lab.queue().inspect().stats.get("acked", 0) >= COUNT, 120)
    finally:
        ended.set()
        killer.join()

    def agree() -> bool:
        stats, metrics = lab.queue().inspect().stats, scrape(port)
        return (
            metrics.get("acked", 0) == stats["acked"] + metrics.get("stale", 0)
            and metrics.get("nacked", 0) == stats.get("nacked", 0)
            and metrics.get("crashed", 0) >= stats.get("timeouts", 0)
        )

    until(agree, what="agreement of server and metrics")
    metrics, stats = scrape(port), lab.queue().inspect().stats
    assert stats["acked"] == COUNT
    assert len({n for (n,) in lab.noted("done")}) == COUNT
    assert metrics["nacked"] == len([n for n in range(COUNT) if n % 61 == 7])
    # One that was killed on the way into its handler has noted nothing.
    deaths = len(worker.events("child_ended"))
    unnoted = metrics["crashed"] + metrics["acked"] + metrics["nacked"] - len(lab.notes("began"))
    assert 0 <= unnoted <= deaths * {"inline": 1, "threads": 4, "async": 20}[kind]
    assert set(metrics) <= {"acked", "nacked", "crashed", "stale"}
    ids = {
        line["message_id"]
        for line in worker.events("message_failed")
        if line["reason"] == "crashed"
    }
    assert None not in ids
    assert deaths >= len(killed)


@pytest.mark.slow
def test_a_crash_and_a_time_limit_are_reported_and_counted_apart(lab: Lab) -> None:
    """Log and metrics name the message, task and reason; the dead letter says the limit and where the handler hung."""
    lab.app("""
@app.task(max_receives=2)
def crash(n):
    os.kill(os.getpid(), signal.SIGSEGV)

def stand_still():
    time.sleep(1000)

@app.task(time_limit=0.6, max_receives=1)
def hang(n):
    stand_still()

@app.task(time_limit=0.7, max_receives=1)
def hold(n):
    ctypes.PyDLL(None).sleep(1000)  # with the GIL
""")
    port = free_port()
    with lab.worker("--metrics-port", str(port)) as worker:
        ids = {task: lab.send(task, 1) for task in ("crash", "hang", "hold")}
        until(lambda: lab.queue().inspect().dead == 3, 60)
        until(lambda: len(worker.events("message_failed")) == 4)
        assert scrape(port) == {"crashed": 2, "time_limit": 2}
    lines = [
        (event["task"], event["message_id"], event["receive_count"], event["reason"], event["dead"])
        for event in worker.events("message_failed")
    ]
    assert sorted(lines) == sorted(
        [
            ("crash", ids["crash"], 1, "crashed", False),
            ("crash", ids["crash"], 2, "crashed", True),
            ("hang", ids["hang"], 1, "time_limit", True),
            ("hold", ids["hold"], 1, "time_limit", True),
        ]
    )
    dead_letters = {dead_letter.message.id: dead_letter.error for dead_letter in lab.queue().dead()}
    for task, limit, place in (("hang", "0.6", "stand_still"), ("hold", "0.7", "hold")):
        words = dead_letters[ids[task]]
        assert f"past its time limit of {limit} s" in words
        assert re.search(rf'jobs\.py", line \d+ in {place}\n|in {place}$', words)
        assert "qworker/consumer" not in words


@pytest.mark.slow
@pytest.mark.parametrize(
    "kind",
    [
        "inline",
        *(
            pytest.param(
                kind, marks=pytest.mark.nightly("test_messages_acked_before_their_start_are_named")
            )
            for kind in ("threads", "async")
        ),
    ],
)
def test_messages_acked_before_their_start_are_named(lab: Lab, kind: str) -> None:
    """At most once: log and metrics name messages and tasks, although the lease of a dead child no longer does."""
    word = "async def" if kind == "async" else "def"
    lab.app(f"""
@app.task(at_most_once=True)
{word} crash(n):
    note("began", "crash", current().message_id)
    os.kill(os.getpid(), signal.SIGKILL)

@app.task(at_most_once=True, time_limit=0.6)
{word} hang(n):
    note("began", "hang", current().message_id)
    time.sleep(1000)

@app.task(at_most_once=True, batch=3, max_wait=5)
{word} load(items):
    os.kill(os.getpid(), signal.SIGKILL)
""")
    plain: Command[int] = raw("RPUSH", lab.queue().keys.ready[0], b'{"task":"crash","args":[2]}')
    port = free_port()
    flags = ("--concurrency", "3") if kind == "threads" else ()
    with lab.worker("--metrics-port", str(port), *flags) as worker:
        # One after the other: of several that run, it is not known which one killed their child.
        for number, send in enumerate(
            (
                lambda: lab.sender.client.execute(plain),
                lambda: lab.send("crash", 1),
                lambda: lab.send("hang", 1),
            ),
            start=1,
        ):
            send()
            until(lambda number=number: len(worker.events("message_failed")) == number, 60)
        batch = [lab.send("load", n) for n in range(3)]
        until(lambda: worker.events("messages_suspected"), 60)
        assert scrape(port, "task") == {"crash": 2, "hang": 1, "load": 3}
    assert sorted(
        [line["task"], line["message_id"]] for line in worker.events("message_failed")
    ) == sorted(lab.noted("began"))
    assert {line["receive_count"] for line in worker.events("message_failed")} == {1}
    (suspected,) = worker.events("messages_suspected")
    assert (suspected["tasks"], sorted(suspected["message_ids"])) == (["load"], sorted(batch))


@pytest.mark.slow
@pytest.mark.parametrize(
    "when",
    [
        "before",
        pytest.param(
            "after",
            marks=pytest.mark.nightly("test_messages_lost_between_ack_and_start_are_named"),
        ),
    ],
)
def test_messages_lost_between_ack_and_start_are_named(lab: Lab, when: str) -> None:
    """The process ends before, or after, it has read the reply of their acks: server, log and metrics count them."""
    lab.app(f"""
from qworker.consumer.child.at_most_once import AckFirst
finish = AckFirst._finish

def finish_and_die(self, deliveries):
    if {when!r} == "before":
        assert self._connection.has_reply(30)
    else:
        finish(self, deliveries)
    note("acked")
    os.kill(os.getpid(), signal.SIGKILL)

if not os.path.getsize({str(lab.history)!r}):
    AckFirst._finish = finish_and_die

@app.task(at_most_once=True)
def once(n):
    note("began", current().message_id)
""")
    sent = {lab.send("once", n) for n in range(6)}
    port = free_port()
    with lab.worker("--concurrency", "3", "--metrics-port", str(port)) as worker:
        until(lambda: lab.queue().inspect().stats.get("acked") == 6)
        until(lambda: worker.events("messages_lost"))
        (line,) = worker.events("messages_lost")
        until(lambda: len(lab.notes("began")) == 6 - line["messages"])
        until(lambda: sum(scrape(port, "task").values()) == 6)
        assert scrape(port, "outcome")["crashed"] == line["messages"] > 0
    began = {message_id for (message_id,) in lab.noted("began")}
    assert sorted(line["message_ids"]) == sorted(sent - began)
    assert (line["queues"], line["tasks"], line["reason"]) == (["default"], ["once"], "crashed")


@pytest.mark.slow
def test_several_running_messages_are_reported_in_one_line(lab: Lab) -> None:
    """Where it is not known which of several killed their child, a line names all that may have."""
    lab.app("""
@app.task
def wait(n):
    note("began", n)
    if current().receive_count == 1:
        time.sleep(1000)
""")
    lab.send_many("wait", 3)
    port = free_port()
    with lab.worker("--concurrency", "3", "--metrics-port", str(port)) as worker:
        until(lambda: len(lab.notes("began")) == 3)
        os.kill(worker.children()[0], signal.SIGKILL)
        until(lambda: worker.events("messages_suspected"))
        (line,) = worker.events("messages_suspected")
        assert (line["messages"], line["tasks"], line["reason"]) == (3, ["wait"], "crashed")
        assert len(set(line["message_ids"])) == 3
        until(lambda: scrape(port) == {"crashed": 3, "acked": 3})
