"""The connection of a child, through replies that are lost, servers that restart and scripts that are forgotten."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections import Counter
from collections.abc import Iterator

import pytest

from qworker import QWorker
from qworker.client.away import AwayServers
from qworker.client.commands.command import Command
from qworker.client.commands.receiving import settle_receive
from qworker.client.commands.settling import Outcomes, settle
from qworker.consumer.link import Abandoned, Link
from qworker.errors import BrokenQueueError, ServerError, UnavailableError
from qworker.store.connection import ConnectionFactory
from qworker.store.scripts import load_script
from qworker.wire.ids import IdSource
from qworker.wire.keys import QueueKeys
from tests import servers
from tests.chaos import ChaosProxy
from tests.consumer.driving import drain, history_of, redis_of, running, until

SCRIPTS = (load_script("settle_receive"), load_script("settle"))
ids = IdSource()


@pytest.fixture
def proxy(store_url: str) -> Iterator[ChaosProxy]:
    """A proxy in front of the shared server."""
    with ChaosProxy(store_url) as proxy:
        yield proxy


class Watched:
    """A link, and what it called."""

    def __init__(self, url: str) -> None:
        self.beats = 0
        self.given_up = False
        self.link = Link(
            ConnectionFactory(url, reply_timeout_s=1.0),
            SCRIPTS,
            alive=self._beat,
            give_up=lambda: self.given_up,
        )

    def _beat(self) -> None:
        self.beats += 1


@pytest.fixture
def watched(proxy: ChaosProxy) -> Iterator[Watched]:
    """A link through the proxy."""
    watched = Watched(proxy.url)
    yield watched
    watched.link.forget()


def ready(app: QWorker, number: int) -> QueueKeys:
    """Fill a queue with plain messages; returns its keys."""
    app.queue("q").send_all([{"n": n} for n in range(number)])
    return QueueKeys(app.namespace, "q")


def test_calls_are_answered_in_the_order_of_asking(app: QWorker, watched: Watched) -> None:
    """Several calls may be in flight; each `finish` reads the reply of the oldest."""
    for n in range(5):
        watched.link.begin(Command(None, (), ("ECHO", str(n)), int))
    assert len(watched.link) == 5
    assert [watched.link.finish() for _ in range(5)] == [0, 1, 2, 3, 4]
    assert (len(watched.link), watched.beats) == (0, 5)


def test_a_call_that_waits_is_not_given_the_reply_of_a_later_one(store_url: str) -> None:
    """One that was held back, from a server that was left alone, is sent before what has gone there meanwhile."""
    away = AwayServers()
    link = Link(
        ConnectionFactory(store_url), SCRIPTS, alive=int, give_up=bool, patience_s=5.0, away=away
    )
    link.call(Command(None, (), ("PING",), bytes))
    (server,) = link._factory.masters()
    away.failed(server, UnavailableError("down"))
    link.begin(Command(None, (), ("ECHO", "0"), int))
    away.served(server)
    for n in (1, 2):
        link.begin(Command(None, (), ("ECHO", str(n)), int))
    assert [link.finish() for _ in range(3)] == [0, 1, 2]
    link.forget()


def test_a_receive_whose_reply_is_lost_is_resumed(
    app: QWorker, proxy: ChaosProxy, watched: Watched
) -> None:
    """The messages of a lost reply are received once, in the same lease, and are not delivered again."""
    keys = ready(app, 10)
    lease_id = ids.lease_id()
    watched.link.call(Command(None, (), ("PING",), bytes))
    proxy.cut_next_reply(of=b"EVALSHA")

    batch = watched.link.call(settle_receive(keys, lease_id, 10))

    assert proxy.replies_cut == 1
    assert (len(batch.items), batch.lease_id) == (10, lease_id)
    assert batch.indices == [str(n) for n in range(1, 11)]
    assert history_of(app.queue("q"))["received"] == 10


def test_a_receive_that_never_arrived_is_not_made_up(
    app: QWorker, proxy: ChaosProxy, watched: Watched
) -> None:
    """A receive in doubt that did not run stays without messages: its lease id is burned, the next one gets them."""
    keys = ready(app, 3)
    watched.link.call(Command(None, (), ("PING",), bytes))
    proxy.cut_request(every=1, of=b"EVALSHA", times=1)

    first = watched.link.call(settle_receive(keys, ids.lease_id(), 3))
    second = watched.link.call(settle_receive(keys, ids.lease_id(), 3))

    assert (len(first.items), len(second.items)) == (0, 3)


def test_a_call_made_before_there_is_a_connection_is_no_repetition(
    app: QWorker, watched: Watched
) -> None:
    """What was never sent is sent as it is when the connection comes to be: a first receive gets its messages."""
    keys = ready(app, 3)
    watched.link.begin(settle_receive(keys, ids.lease_id(), 3))
    assert watched.link.fileno() == -1
    assert len(watched.link.finish().items) == 3
    assert watched.link.fileno() >= 0


def test_a_settle_whose_reply_is_lost_counts_once(
    app: QWorker, proxy: ChaosProxy, watched: Watched
) -> None:
    """An ack is repeated until it is answered; the messages are gone, and none is acked twice."""
    keys = ready(app, 4)
    lease_id = ids.lease_id()
    watched.link.call(settle_receive(keys, lease_id, 4))
    proxy.cut_next_reply(of=b"EVALSHA")

    watched.link.call(settle(keys, [Outcomes(lease_id, acks=["1", "2", "3", "4"])]))

    assert history_of(app.queue("q"))["acked"] == 4


def test_all_calls_in_flight_survive_a_reset(
    app: QWorker, proxy: ChaosProxy, watched: Watched
) -> None:
    """When the connection breaks under several calls, all are repeated in order over the next one."""
    keys = ready(app, 6)
    watched.link.call(Command(None, (), ("PING",), bytes))
    leases = [ids.lease_id() for _ in range(3)]
    proxy.blackhole = True
    for lease_id in leases:
        watched.link.begin(settle_receive(keys, lease_id, 2))
    proxy.reset_all()
    time.sleep(0.05)
    proxy.blackhole = False

    batches = [watched.link.finish() for _ in leases]

    taken = sum(len(batch.items) for batch in batches)
    seen = app.queue("q").inspect()
    # Each either ran, and is resumed, or did not, and stays without messages.
    assert taken == seen.unacked
    assert seen.ready == 6 - taken


def test_forgotten_scripts_are_loaded_again(app: QWorker, watched: Watched) -> None:
    """SCRIPT FLUSH is not noticed by anybody."""
    keys = ready(app, 2)
    watched.link.call(settle_receive(keys, ids.lease_id(), 1))
    with redis_of(app) as redis:
        redis.script_flush()

    watched.link.call(settle_receive(keys, ids.lease_id(), 1))
    after = watched.link.call(settle_receive(keys, ids.lease_id(), 2))

    assert app.queue("q").inspect().stats["received"] == 2
    assert after.ready_left == 0


def test_an_error_reply_is_the_answer_of_its_own_call(app: QWorker, watched: Watched) -> None:
    """A call that the server refuses raises its error; the one behind it is answered, over the same connection."""
    keys = ready(app, 1)
    with redis_of(app) as redis:
        redis.set(app.namespace + ":a-string", "x")
    watched.link.call(Command(None, (), ("PING",), bytes))
    descriptor = watched.link.fileno()
    watched.link.begin(Command(None, (), ("LPOP", app.namespace + ":a-string"), bytes))
    watched.link.begin(settle_receive(keys, ids.lease_id(), 1))

    with pytest.raises(ServerError, match="WRONGTYPE"):
        watched.link.finish()
    assert len(watched.link.finish().items) == 1
    assert watched.link.fileno() == descriptor


def test_a_refusal_of_a_script_is_raised_and_forgotten(app: QWorker, watched: Watched) -> None:
    """A broken queue raises its named error, and the link goes on."""
    keys = ready(app, 1)
    with redis_of(app) as redis:
        redis.set(keys.dead, "x")
        with pytest.raises(BrokenQueueError):
            watched.link.call(settle_receive(keys, ids.lease_id(), 1))
        redis.delete(keys.dead)
    assert len(watched.link.call(settle_receive(keys, ids.lease_id(), 1)).items) == 1


def test_a_link_that_is_to_give_up_does(proxy: ChaosProxy, watched: Watched) -> None:
    """While the server cannot be reached the link tries for ever, until it is told that the process is to end."""
    watched.link.call(Command(None, (), ("PING",), bytes))
    proxy.blackhole = True
    proxy.reset_all()
    watched.link.begin(Command(None, (), ("PING",), bytes))
    threading.Timer(0.3, lambda: setattr(watched, "given_up", True)).start()
    begun = time.monotonic()
    with pytest.raises(Abandoned):
        watched.link.finish()
    assert time.monotonic() - begun < 30
    proxy.blackhole = False


# -- a whole child over a bad line -------------------------------------------------------------


@pytest.mark.parametrize("concurrency", [1, 4])
def test_lost_replies_cost_neither_messages_nor_double_work(
    app: QWorker, proxy: ChaosProxy, concurrency: int
) -> None:
    """With every tenth reply lost, each message is handled exactly once and acked once."""
    handled: Counter[int] = Counter()
    worker = QWorker(app.namespace, url=proxy.url)

    @worker.task
    def handle(n: int) -> None:
        handled[n] += 1

    app.queue("default").send_all([{"task": "handle", "args": [n]} for n in range(3000)])
    proxy.cut_reply(every=10, of=b"EVALSHA")

    with running(worker, concurrency=concurrency, max_batch=50):
        until(lambda: app.queue("default").inspect().stored == 0)
    worker.close()

    assert proxy.replies_cut > 3
    assert set(handled.values()) == {1}
    assert len(handled) == 3000
    assert history_of(app.queue("default"))["acked"] == 3000


def test_script_flush_under_load_is_not_noticed(app: QWorker) -> None:
    """Scripts that vanish all the time slow a child down and change nothing else."""
    handled: Counter[int] = Counter()

    @app.task
    def handle(n: int) -> None:
        handled[n] += 1

    handle.send_many(handle.call(n) for n in range(4000))
    with redis_of(app) as redis, running(app, max_batch=100):
        # Not by the clock: a child that is slower than the flushes would never come to its call.
        while (before := len(handled)) < 4000:
            redis.script_flush()
            until(lambda before=before: len(handled) > before)
        until(lambda: app.queue("default").inspect().stored == 0)

    assert set(handled.values()) == {1}


@pytest.mark.slow
@pytest.mark.parametrize("engine", ["valkey", "redis"])
def test_a_server_that_stands_still_is_waited_for(engine: str, namespace: str) -> None:
    """A server stopped for longer than any reply may take is found again, and the work goes on by itself."""
    with servers.start(engine) as server:
        app = QWorker(namespace, url=server.url)
        handled: Counter[int] = Counter()

        @app.task
        def handle(n: int) -> None:
            handled[n] += 1

        with running(app):
            handle.send(1)
            until(lambda: 1 in handled)
            os.kill(server.pid, signal.SIGSTOP)
            time.sleep(5)
            os.kill(server.pid, signal.SIGCONT)
            handle.send(2)
            until(lambda: 2 in handled)
        app.close()

    assert handled == {1: 1, 2: 1}


def test_a_burst_over_a_bad_line_handles_everything(app: QWorker, proxy: ChaosProxy) -> None:
    """A burst does not take a lost reply for an empty queue."""
    handled = []
    worker = QWorker(app.namespace, url=proxy.url)
    worker.task(name="task")(lambda n: handled.append(n))
    app.queue("default").send_all([{"task": "task", "args": [n]} for n in range(20)])
    proxy.cut_reply(every=3, of=b"EVALSHA")

    drain(worker)
    worker.close()

    assert sorted(handled) == list(range(20))
