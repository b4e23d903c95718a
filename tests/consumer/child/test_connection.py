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
from qworker.client.execute.backoff import AwayServers
from qworker.consumer.child.connection import Abandoned, Connection
from qworker.engine.raw import raw
from qworker.engine.receive import settle_receive
from qworker.engine.scripts import load_script
from qworker.engine.settle import Outcomes, settle
from qworker.errors import BrokenQueueError, InDoubtError, ServerError, UnavailableError
from qworker.store.connections import ConnectionFactory
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
    """A connection, and the calls that it has made."""

    def __init__(self, url: str) -> None:
        self.beats = 0
        self.given_up = False
        self.connection = Connection(
            ConnectionFactory(url, reply_timeout_s=1.0),
            SCRIPTS,
            alive=self._beat,
            give_up=lambda: self.given_up,
        )

    def _beat(self) -> None:
        self.beats += 1


@pytest.fixture
def watched(proxy: ChaosProxy) -> Iterator[Watched]:
    """A connection through the proxy."""
    watched = Watched(proxy.url)
    yield watched
    watched.connection.forget()


def ready(app: QWorker, number: int) -> QueueKeys:
    """Fill a queue with plain messages; returns its keys."""
    app.queue("q").send_many([{"n": n} for n in range(number)])
    return QueueKeys(app.namespace, "q")


def test_calls_are_answered_in_the_order_of_asking(app: QWorker, watched: Watched) -> None:
    """Several calls may be in flight; each `finish` reads the reply of the oldest."""
    for n in range(5):
        watched.connection.begin(raw("ECHO", str(n), decode=int))
    assert len(watched.connection) == 5
    assert [watched.connection.finish() for _ in range(5)] == [0, 1, 2, 3, 4]
    assert (len(watched.connection), watched.beats) == (0, 5)


def test_a_call_that_waits_is_not_given_the_reply_of_a_later_one(store_url: str) -> None:
    """One that was held back, from a server that was left alone, is sent before what has gone there meanwhile."""
    away = AwayServers()
    connection = Connection(
        ConnectionFactory(store_url), SCRIPTS, alive=int, give_up=bool, patience_s=5.0, away=away
    )
    connection.call(raw("PING", decode=bytes))
    # In a Cluster all go to the node of their first word.
    calls = [raw("ECHO", f"{{a}}{n}", decode=bytes) for n in range(3)]
    server = connection._factory.locate(calls[0].key)
    away.failed(server, UnavailableError("down"))
    connection.begin(calls[0])
    away.served(server)
    for call in calls[1:]:
        connection.begin(call)
    assert [connection.finish() for _ in calls] == [b"{a}0", b"{a}1", b"{a}2"]
    connection.forget()


def test_a_receive_whose_reply_is_lost_is_resumed(
    app: QWorker, proxy: ChaosProxy, watched: Watched
) -> None:
    """The messages of a lost reply are received once, in the same lease, and are not delivered again."""
    keys = ready(app, 10)
    lease_id = ids.lease_id()
    watched.connection.call(raw("PING", decode=bytes))
    proxy.cut_next_reply(of=b"EVALSHA")

    batch = watched.connection.call(settle_receive(keys, lease_id, 10))

    assert proxy.replies_cut == 1
    assert (len(batch.items), batch.lease_id) == (10, lease_id)
    assert batch.indices == [str(n) for n in range(1, 11)]
    assert history_of(app.queue("q"))["received"] == 10


def test_a_receive_that_never_arrived_is_not_made_up(
    app: QWorker, proxy: ChaosProxy, watched: Watched
) -> None:
    """A receive in doubt that did not run stays without messages: its lease id is burned, the next one gets them."""
    keys = ready(app, 3)
    watched.connection.call(raw("PING", decode=bytes))
    proxy.cut_request(every=1, of=b"EVALSHA", times=1)

    first = watched.connection.call(settle_receive(keys, ids.lease_id(), 3))
    second = watched.connection.call(settle_receive(keys, ids.lease_id(), 3))

    assert (len(first.items), len(second.items)) == (0, 3)


def test_an_error_after_a_lost_reply_leaves_the_call_in_doubt(
    app: QWorker, proxy: ChaosProxy, watched: Watched
) -> None:
    """The server refuses the repetition; the first sending has run."""
    key, seen = QueueKeys(app.namespace, "q").wake, list[bytes]()
    with redis_of(app) as redis:

        def refuse_second(request: bytes) -> None:
            if b"RPUSH" in request:
                seen.append(redis.type(key))
                if len(seen) == 2:
                    redis.set(key, "not ours")

        watched.connection.call(raw("PING", decode=bytes))
        proxy.on_request = refuse_second
        proxy.cut_next_reply(of=b"RPUSH")
        with pytest.raises(InDoubtError, match="WRONGTYPE"):
            watched.connection.call(raw("RPUSH", key, 1, decode=int))
        assert seen == [b"none", b"list"]
        with pytest.raises(ServerError, match="WRONGTYPE") as refused:
            watched.connection.call(raw("RPUSH", key, 1, decode=int))
        assert not isinstance(refused.value, InDoubtError)


def test_a_call_made_before_the_connection_is_not_a_repetition(
    app: QWorker, watched: Watched
) -> None:
    """What was never sent is sent as it is when the connection is made: a first receive gets its messages."""
    keys = ready(app, 3)
    watched.connection.begin(settle_receive(keys, ids.lease_id(), 3))
    assert watched.connection.fileno() == -1
    assert len(watched.connection.finish().items) == 3
    assert watched.connection.fileno() >= 0


def test_a_settle_whose_reply_is_lost_counts_once(
    app: QWorker, proxy: ChaosProxy, watched: Watched
) -> None:
    """An ack is repeated until it is answered; the messages are gone, and none is acked twice."""
    keys = ready(app, 4)
    lease_id = ids.lease_id()
    watched.connection.call(settle_receive(keys, lease_id, 4))
    proxy.cut_next_reply(of=b"EVALSHA")

    watched.connection.call(settle(keys, [Outcomes(lease_id, acks=["1", "2", "3", "4"])]))

    assert history_of(app.queue("q"))["acked"] == 4


def test_all_calls_in_flight_survive_a_reset(
    app: QWorker, proxy: ChaosProxy, watched: Watched
) -> None:
    """When the connection breaks under several calls, all are repeated in order over the next one."""
    keys = ready(app, 6)
    watched.connection.call(raw("PING", decode=bytes))
    leases = [ids.lease_id() for _ in range(3)]
    proxy.blackhole = True
    for lease_id in leases:
        watched.connection.begin(settle_receive(keys, lease_id, 2))
    proxy.reset_all()
    time.sleep(0.05)
    proxy.blackhole = False

    batches = [watched.connection.finish() for _ in leases]

    taken = sum(len(batch.items) for batch in batches)
    seen = app.queue("q").inspect()
    # Each either ran, and is resumed, or did not, and stays without messages.
    assert taken == seen.unacked
    assert seen.ready == 6 - taken


def test_forgotten_scripts_are_loaded_again(app: QWorker, watched: Watched) -> None:
    """SCRIPT FLUSH is not noticed by any program."""
    keys = ready(app, 2)
    watched.connection.call(settle_receive(keys, ids.lease_id(), 1))
    with redis_of(app) as redis:
        redis.script_flush()

    watched.connection.call(settle_receive(keys, ids.lease_id(), 1))
    after = watched.connection.call(settle_receive(keys, ids.lease_id(), 2))

    assert app.queue("q").inspect().stats["received"] == 2
    assert after.ready_left == 0


def test_an_error_reply_belongs_to_its_own_call(app: QWorker, watched: Watched) -> None:
    """A call that the server refuses raises its error; the one behind it is answered, over the same connection."""
    keys = ready(app, 1)
    with redis_of(app) as redis:
        redis.set(app.namespace + ":a-string", "x")
    watched.connection.call(raw("PING", decode=bytes))
    descriptor = watched.connection.fileno()
    watched.connection.begin(raw("LPOP", app.namespace + ":a-string", decode=bytes))
    watched.connection.begin(settle_receive(keys, ids.lease_id(), 1))

    with pytest.raises(ServerError, match="WRONGTYPE"):
        watched.connection.finish()
    assert len(watched.connection.finish().items) == 1
    assert watched.connection.fileno() == descriptor


def test_a_refusal_of_a_script_is_raised_and_forgotten(app: QWorker, watched: Watched) -> None:
    """A broken queue raises its named error, and the connection continues."""
    keys = ready(app, 1)
    with redis_of(app) as redis:
        redis.set(keys.dead, "x")
        with pytest.raises(BrokenQueueError):
            watched.connection.call(settle_receive(keys, ids.lease_id(), 1))
        redis.delete(keys.dead)
    assert len(watched.connection.call(settle_receive(keys, ids.lease_id(), 1)).items) == 1


@pytest.mark.slow
def test_a_connection_that_is_to_give_up_does(proxy: ChaosProxy, watched: Watched) -> None:
    """While the server cannot be reached the connection tries forever, until the process is to end."""
    watched.connection.call(raw("PING", decode=bytes))
    proxy.blackhole = True
    proxy.reset_all()
    watched.connection.begin(raw("PING", decode=bytes))
    threading.Timer(0.3, lambda: setattr(watched, "given_up", True)).start()
    begun = time.monotonic()
    with pytest.raises(Abandoned):
        watched.connection.finish()
    assert time.monotonic() - begun < 30
    proxy.blackhole = False


# -- a whole child over a bad line -------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize(
    "concurrency",
    [
        1,
        pytest.param(
            4,
            marks=pytest.mark.nightly("test_lost_replies_cost_neither_messages_nor_double_work"),
        ),
    ],
)
def test_lost_replies_cost_neither_messages_nor_double_work(
    app: QWorker, proxy: ChaosProxy, concurrency: int
) -> None:
    """With every tenth reply lost, each message is handled exactly once and acked once."""
    handled: Counter[int] = Counter()
    worker = QWorker(app.namespace, url=proxy.url)

    @worker.task
    def handle(n: int) -> None:
        handled[n] += 1

    app.queue("default").send_many([{"task": "handle", "args": [n]} for n in range(3000)])
    proxy.cut_reply(every=10, of=b"EVALSHA")

    with running(worker, concurrency=concurrency, max_batch=50):
        until(lambda: app.queue("default").inspect().stored == 0)
    worker.close()

    assert proxy.replies_cut > 3
    assert set(handled.values()) == {1}
    assert len(handled) == 3000
    assert history_of(app.queue("default"))["acked"] == 3000


@pytest.mark.slow
def test_script_flush_under_load_is_not_noticed(app: QWorker) -> None:
    """Scripts that vanish all the time slow a child down and change nothing else."""
    handled: Counter[int] = Counter()

    @app.task
    def handle(n: int) -> None:
        handled[n] += 1

    handle.send_many(handle.call(n) for n in range(1500))
    with redis_of(app) as redis, running(app, max_batch=100):
        # Not by the clock: a child that is slower than the flushes would never come to its call.
        while (before := len(handled)) < 1500:
            redis.script_flush()
            until(lambda before=before: len(handled) > before)
        until(lambda: app.queue("default").inspect().stored == 0)

    assert set(handled.values()) == {1}


@pytest.mark.slow
@pytest.mark.parametrize(
    "engine",
    [
        "valkey",
        pytest.param("redis", marks=pytest.mark.nightly("test_a_frozen_server_is_waited_for")),
    ],
)
def test_a_frozen_server_is_waited_for(engine: str, namespace: str) -> None:
    """A server stopped for longer than any reply may take is found again, and the work continues by itself."""
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
    app.queue("default").send_many([{"task": "task", "args": [n]} for n in range(20)])
    proxy.cut_reply(every=3, of=b"EVALSHA")

    drain(worker)
    worker.close()

    assert sorted(handled) == list(range(20))
