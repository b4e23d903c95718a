"""Results of workers: children that are killed around the settle, and a full server."""

from __future__ import annotations

import time

import pytest

from qworker import OutOfMemoryError, QWorker, TaskEndedError
from qworker.client.execute.sync import Client
from qworker.client.queue import Queue
from qworker.consumer.board.counters import TaskCounts
from qworker.consumer.board.states import Mark
from qworker.consumer.supervisor.leases.postmortem import Death
from qworker.engine.effects import result_effect
from qworker.engine.settle import Outcomes, settle
from qworker.store.connections import ConnectionFactory
from tests import servers
from tests.chaos import ChaosProxy
from tests.consumer.driving import until
from tests.consumer.supervisor.test_lease_keeper import Scene, scene  # noqa: F401  a fixture
from tests.consumer.workers import Lab


def test_what_a_dead_child_had_not_settled_runs_again(scene: Scene) -> None:  # noqa: F811
    """Its results died with it: its messages are given back, and not acked as those without results are."""
    scene.receive(0, [Mark.DONE, Mark.SETTLING, Mark.SETTLING])
    scene.settle_dead(Death(-9))
    stats = scene.app.queue("q").inspect()
    assert (stats.ready, stats.unacked, stats.stats["acked"]) == (2, 0, 1)
    assert [message.receives for message in scene.app.queue("q").peek(10)] == [1, 1]
    # Its counts said nothing of these messages; what it had counted would have come to nothing.
    assert scene.keeper.stale == 0


def test_a_result_that_was_counted_and_died_with_its_child_is_stale(scene: Scene) -> None:  # noqa: F811
    """The metrics say that it was handled, and will say so again when it has run again: one of the two is stale."""
    scene.receive(0, [Mark.DONE, Mark.SETTLING, Mark.SETTLING])
    marks = scene.board.leases.marks_at(0)
    counts = TaskCounts.none()
    counts.outcomes[0] = 2
    scene.board.tally.add(0, counts, (marks, marks + 1), 0)
    scene.settle_dead(Death(-9))
    stats = scene.app.queue("q").inspect()
    assert (stats.ready, stats.unacked, stats.stats["acked"]) == (2, 0, 1)
    # Both have been delivered, counted by the child or not.
    assert [message.receives for message in scene.app.queue("q").peek(10)] == [1, 1]
    assert scene.keeper.stale == 1


def test_what_a_dead_child_had_settled_stays_settled(scene: Scene) -> None:  # noqa: F811
    """It died before it could note that: giving the message back changes nothing."""
    batch = scene.receive(0, [Mark.SETTLING, Mark.SETTLING])
    outcomes = Outcomes(batch.lease_id)
    outcomes.ack_with(2, [result_effect(b"ok\n1", 60_000)])
    scene.app.client.execute(settle(scene.keys, [outcomes]))
    scene.settle_dead(Death(-9))
    stats = scene.app.queue("q").inspect()
    assert (stats.ready, stats.unacked, stats.stats["acked"]) == (1, 0, 1)


def test_a_completion_whose_reply_was_lost_counts_once(store_url: str, namespace: str) -> None:
    """The repetition finds the message acked with this very result."""
    with ChaosProxy(store_url) as proxy:
        client = Client(ConnectionFactory(proxy.url), give_up_s=30)
        queue = Queue(client, namespace, "q")
        queue.send({"n": 1})
        [message] = queue.receive(1)
        proxy.cut_next_reply()
        queue.complete(message, 7, keep="1h")
        assert proxy.replies_cut == 1
        assert queue.inspect().stats["acked"] == 1
        outcome = queue.outcome(message.id)
        assert outcome is not None
        assert outcome.value == b"7"
        client.close()


APP = """
from pathlib import Path

import qworker.consumer.child.connection as connection
import qworker.consumer.child.settle.ack_buffer as ack_buffer

def die(point):
    # Once each, and of the process alone that ran the handler.
    if RUNNING == [point] and not Path("died-" + point).exists():
        Path("died-" + point).touch()
        os.kill(os.getpid(), signal.SIGKILL)

RUNNING = []

class Killer(Middleware):
    def after(self, context, outcome, error):
        die("marked")

app.use(Killer())

settled, begin = ack_buffer.AckBuffer.settled, connection.Connection.begin

def dies_when_answered(self, *args):
    die("answered")
    settled(self, *args)

def dies_when_sent(self, command):
    begin(self, command)
    if any(isinstance(word, bytes) and word.startswith(b"ok\\n") for word in command.args):
        die("sent")

ack_buffer.AckBuffer.settled = dies_when_answered
connection.Connection.begin = dies_when_sent

def run(point):
    RUNNING[:] = [point]
    note("ran", point)
    die("handler")
    return [point, sum(json.loads(line)[2:] == ["ran", point] for line in open(HISTORY_PATH))]

@app.task(result="1h", queue="sync")
def sync_task(point: str) -> list[str | int]:
    return run(point)

@app.task(result="1h", queue="async")
async def async_task(point: str) -> list[str | int]:
    return run(point)
"""


@pytest.mark.slow
def test_a_child_killed_at_any_point_loses_no_result(lab: Lab) -> None:
    """It is in the handler, has marked its end, has sent the settle, or has read the reply; in threads and on a loop.

    The result is that of the run whose ack counted, and there is one.
    """
    lab.app(APP.replace("HISTORY_PATH", repr(str(lab.history))))
    app = QWorker(lab.namespace, url=lab.url)
    tasks = {
        kind: app.task(name=f"{kind}_task", queue=kind, result="1h")(_declared)
        for kind in ("sync", "async")
    }
    points = (
        ("sync", "handler", 2),
        ("async", "marked", 2),
        ("sync", "sent", 1),
        ("async", "answered", 1),
        ("sync", "none", 1),
    )
    with lab.worker("--procs", "1", "--concurrency", "2"):
        for kind, point, runs in points:
            assert tasks[kind].start(point).result("1m") == [point, runs]
            if point != "none":
                until((lab.directory / f"died-{point}").exists)
        until(lambda: all(app.queue(kind).inspect().unacked == 0 for kind in tasks))
    for kind, number in (("sync", 3), ("async", 2)):
        stats = app.queue(kind).inspect().stats
        assert (stats["acked"], stats["sent"], stats.get("dead", 0)) == (number, number, 0)
    app.close()


DISCARDING = """
from pathlib import Path

from qworker import Discard

class Killer(Middleware):
    def after(self, context, outcome, error):
        if outcome == "discarded" and not Path("died").exists():
            Path("died").touch()
            os.kill(os.getpid(), signal.SIGKILL)

app.use(Killer())

@app.task(result="1h", queue="q")
def refuse(point: str) -> list[str | int]:
    raise Discard("not wanted")
"""


@pytest.mark.slow
def test_a_discard_that_dies_with_its_child_is_told_by_the_next_run(lab: Lab) -> None:
    """The supervisor does not ack the message: that would leave its sender waiting."""
    lab.app(DISCARDING)
    app = QWorker(lab.namespace, url=lab.url)
    with lab.worker("--procs", "1"):
        handle = app.task(name="refuse", queue="q", result="1h")(_declared).start("")
        with pytest.raises(TaskEndedError) as caught:
            handle.result("1m")
    assert (lab.directory / "died").exists()
    assert caught.value.state == "discarded"
    assert app.queue("q").inspect().stats.get("acked", 0) == 0
    app.close()


def _declared(point: str) -> list[str | int]:
    raise AssertionError("runs in workers alone")


# -- a full server --------------------------------------------------------------------------------


def test_a_full_server_refuses_large_results_alone(namespace: str) -> None:
    """A small result takes about what its ack frees; an ack with a large one changes nothing, and can be repeated."""
    with servers.start("valkey", far=False) as server:
        client = Client(ConnectionFactory(server.url), give_up_s=1.0)
        queue = Queue(client, namespace, "q")
        queue.send_many([{"n": n} for n in range(3)])
        small, large, plain = queue.receive(3)
        client.ask("CONFIG", "SET", "maxmemory", "1")
        queue.complete(small, "x" * 100, keep="1h")
        assert queue.ack(plain) == [plain]
        with pytest.raises(OutOfMemoryError):
            queue.complete(large, "x" * 10_000, keep="1h")
        assert queue.outcome(large.id) is None
        assert queue.inspect().unacked == 1
        client.ask("CONFIG", "SET", "maxmemory", "0")
        queue.complete(large, "x" * 10_000, keep="1h")
        assert queue.inspect().unacked == 0
        client.close()


@pytest.mark.slow
def test_a_worker_keeps_large_results_until_there_is_memory(own_lab: Lab) -> None:
    """Meanwhile it runs other messages, acks them with small results, and keeps the lease."""
    lab = own_lab
    lab.app("""
import qworker.consumer.child.settle.ack_buffer as ack_buffer

ack_buffer._REFUSED_PAUSE_S = 0.5

@app.task(result="1h")
def make(size: int) -> str:
    note("made", size)
    return "x" * size
""")
    app = QWorker(lab.namespace, url=lab.url)
    make = app.task(name="make", result="1h")(_made)
    handles = {size: make.start(size) for size in (100_000, 10, 20)}
    app.client.ask("CONFIG", "SET", "maxmemory", "1")
    with lab.worker("--procs", "1", "--visibility", "4s"):
        assert len(handles[10].result("1m")) == 10
        assert len(handles[20].result("1m")) == 20
        until(lambda: len(lab.notes("made")) == 3)
        begun = time.monotonic()
        until(lambda: time.monotonic() - begun > 5)
        assert app.queue("default").outcome(handles[100_000].id) is None
        app.client.ask("CONFIG", "SET", "maxmemory", "0")
        assert len(handles[100_000].result("1m")) == 100_000
    assert sorted(lab.noted("made")) == [[10], [20], [100_000]]
    app.close()


def _made(size: int) -> str:
    raise AssertionError("runs in workers alone")


def test_acks_with_results_are_sent_again_after_a_script_failed_midway() -> None:
    """As other acks: they change nothing if they had been applied. What moves messages is not."""
    outcomes = Outcomes("L", acks=[1])
    outcomes.ack_with(2, [result_effect(b"ok\n1", 1000)])
    outcomes.nack(3, 0)
    acks, others = outcomes.only_acks()
    assert (len(acks), acks.effect_bytes, others) == (2, 4, 1)
    expected = Outcomes("L", acks=[1])
    expected.ack_with(2, [result_effect(b"ok\n1", 1000)])
    assert acks.words() == expected.words()
