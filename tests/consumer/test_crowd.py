"""Many queues and a server that is not on the same machine: every queue of a worker is served in time.

Longer forms: QWORKER_CROWD=2000 sets the number of queues of the largest crowd, QWORKER_CROWD_EXAMPLES=100 how many
crowds are drawn.
"""

from __future__ import annotations

import os
import time
import uuid
from collections.abc import Iterator
from contextlib import ExitStack
from types import SimpleNamespace
from typing import cast
from urllib.parse import quote

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from qworker.wire.keys import QueueKeys
from tests import servers
from tests.consumer.crowds import KINDS, Crowd, crowd
from tests.consumer.driving import HEARD_S, drain, running, until
from tests.effort import examples
from tests.servers import Server
from tests.timing import keep_within

LARGEST = int(os.environ.get("QWORKER_CROWD") or 300)
#: Instead of a few, of a random crowd.
EXAMPLES = int(os.environ.get("QWORKER_CROWD_EXAMPLES") or 0)
NIGHTLY = pytest.mark.nightly("test_an_idle_worker_starts_a_message_of_each_queue_in_time")


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    """A server that is near, whatever the surroundings of the tests."""
    with servers.start("valkey", far=False) as server:
        yield server


def promised_s(rtt_s: float) -> float:
    """Within which a message is started by an idle worker."""
    return 1.0 + 10 * rtt_s


@pytest.mark.slow
@pytest.mark.parametrize(
    "weights",
    [
        pytest.param({}, id="strict"),
        pytest.param({"q1": 3.0}, marks=NIGHTLY, id="weighted"),
    ],
)
@pytest.mark.parametrize(
    ("queues", "rtt_ms"),
    [
        pytest.param(4, 30, marks=NIGHTLY),
        pytest.param(12, 6, marks=NIGHTLY),
        (40, 1),
        pytest.param(LARGEST, 0, marks=NIGHTLY),
    ],
)
def test_an_idle_worker_starts_a_message_of_each_queue_in_time(
    server: Server, namespace: str, queues: int, rtt_ms: float, weights: dict[str, float]
) -> None:
    """Neither the number of queues nor the distance of the server keeps a worker from its last queue."""
    with (
        crowd(server, namespace, queues=queues, rtt_ms=rtt_ms) as some,
        some.worker(weights=weights),
    ):
        keep_within(promised_s(some.rtt_s), lambda: some.served_s(*range(queues)))


@pytest.mark.slow
def test_the_first_messages_of_many_queues_share_their_trips(
    server: Server, namespace: str
) -> None:
    """A new worker with one slot takes several once its first handlers were fast, whatever their queue."""
    with crowd(server, namespace, queues=40, rtt_ms=20) as some:

        def first_s() -> float:
            with some.worker():
                return some.served_s(*range(40))

        keep_within(some.rtt_s * 20, first_s)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("queues", "rtt_ms", "weights"),
    [
        (12, 6, {}),
        pytest.param(12, 6, {"q1": 3.0}, marks=NIGHTLY),
        pytest.param(150, 0, {}, marks=NIGHTLY),
    ],
)
def test_messages_of_every_kind_are_started_in_time(
    server: Server, namespace: str, queues: int, rtt_ms: float, weights: dict[str, float]
) -> None:
    """Priorities, groups, orders, limits and runs, the first of their queues and later ones."""
    with (
        crowd(server, namespace, queues=queues, rtt_ms=rtt_ms, kinds=tuple(KINDS)) as some,
        some.worker(weights=weights),
    ):
        for _ in range(2):
            keep_within(promised_s(some.rtt_s), lambda: some.served_s(*range(queues)))


@pytest.mark.slow
@pytest.mark.parametrize(
    ("queues", "rtt_ms"),
    [
        pytest.param(4, 30, marks=NIGHTLY),
        (40, 1),
        pytest.param(LARGEST, 0, marks=NIGHTLY),
    ],
)
def test_a_burst_ends_whatever_the_number_of_queues(
    server: Server, namespace: str, queues: int, rtt_ms: float
) -> None:
    """A burst handles what the last queue has, and ends."""
    with crowd(server, namespace, queues=queues, rtt_ms=rtt_ms) as some:
        some.send_to(0, queues - 1, queues - 1)
        drain(some.far)
        assert some.started == ["q0", some.names[-1], some.names[-1]]


def test_a_message_is_heard_of_among_many_queues(
    server: Server, namespace: str, only_bells: dict[str, int]
) -> None:
    """It is the bell of its queue that wakes the worker, not the next look at all of them."""
    with crowd(server, namespace, queues=40) as some, some.worker(**only_bells) as child:
        for number in (39, 0, 17):
            until(lambda: child.waiting)
            some.send_to(number)
            until(lambda number=number: f"q{number}" in some.started, HEARD_S)


@pytest.mark.slow
def test_a_message_whose_ring_is_lost_with_a_wait_is_started(
    server: Server, namespace: str, only_bells: dict[str, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A worker of many queues cuts its waits off when a handler is slow; the server may have just answered one."""
    rung = "q7"
    with crowd(server, namespace, queues=130) as some, server.redis() as redis:

        @some.far.task(queue="q0")
        def doze() -> None:
            time.sleep(0.1)

        with some.worker(**only_bells) as child:
            bells = child.broker._fetcher.doorbells
            until(lambda: some.served_s(0) >= 0 and bells.patient)
            close, lost = bells.close, list[str]()

            def lose_a_ring() -> bool:
                if not lost:
                    keys = QueueKeys(namespace, rung)
                    lost.append(some.near.queue(rung).send({"task": rung, "args": []}, priority=5))
                    until(lambda: not redis.exists(keys.wake))
                return close()

            monkeypatch.setattr(bells, "close", lose_a_ring)
            some.near.task(name="doze", queue="q0")(doze.function).send()
            until(lambda: rung in some.started, HEARD_S)
        assert lost


def test_a_message_whose_ring_is_lost_with_a_worker_that_stops_is_started_by_another(
    server: Server, namespace: str, only_bells: dict[str, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The server may have just answered a wait of the one that stops."""
    with crowd(server, namespace, queues=3) as some, server.redis() as redis, ExitStack() as stack:
        first = stack.enter_context(some.worker(**only_bells))
        bells = first.broker._fetcher.doorbells
        with some.worker(**only_bells):
            close, lost = bells.close, list[bool]()

            def lose_a_ring() -> bool:
                if not lost:
                    some.send_to(1)
                    until(lambda: not redis.exists(QueueKeys(namespace, "q1").wake))
                    lost.append(not some.started)
                return close()

            monkeypatch.setattr(bells, "close", lose_a_ring)
            first.broker.stop("test")
            until(lambda: some.started == ["q1"], HEARD_S)
            assert lost == [True]


@pytest.mark.slow
def test_what_others_push_is_found_in_any_queue(server: Server, namespace: str) -> None:
    """A plain RPUSH rings nothing: the next look at all queues finds it, two seconds later at most."""
    with crowd(server, namespace, queues=40, rtt_ms=1) as some, some.worker():

        def found_s() -> float:
            some.started.clear()
            some.push_plainly(39)
            return some.until_started(["q39"])

        keep_within(2 + promised_s(some.rtt_s), found_s)


@pytest.mark.slow
@pytest.mark.parametrize("queues", [12, pytest.param(150, marks=NIGHTLY)])
def test_what_others_push_is_found_beside_queues_that_may_not_be_read(
    server: Server, namespace: str, queues: int
) -> None:
    """The server refuses a look at all queues for one of them: its halves are looked at, and theirs."""
    refused = {1, queues - 2}
    with server.redis() as redis:
        shared = [f"~{namespace}:[a-z]*"]
        own = [f"~{namespace}:{{q{number}}}:*" for number in {*range(queues)} - refused]
        rights = ["on", ">pw", "&*", "+@all", *shared, *own]
        redis.execute_command("ACL", "SETUSER", namespace, *rights)
    guarded = SimpleNamespace(
        url=f"unix://{namespace}:pw@{quote(server.socket)}", redis=server.redis, pid=server.pid
    )
    with crowd(cast(Server, guarded), namespace, queues=queues) as some, running(some.far):

        def found_s() -> float:
            some.started.clear()
            for number in (0, queues // 2, queues - 1):
                some.push_plainly(number)
            return some.until_started(["q0", f"q{queues // 2}", f"q{queues - 1}"])

        until(lambda: some.served_s(0) >= 0)
        keep_within(2 + promised_s(some.rtt_s), found_s)


@pytest.mark.slow
def test_idle_queues_cost_next_to_nothing(server: Server, namespace: str) -> None:
    """An idle worker looks at all of its queues in one call every two seconds, ten queues in a command."""
    with crowd(server, namespace, queues=100) as some, some.worker():
        some.send_to_each()
        some.until_started()
        until(lambda: some.commands_per_s(0.5) < 40)


@pytest.mark.slow
def test_a_later_queue_is_served_only_when_earlier_ones_are_empty(
    server: Server, namespace: str
) -> None:
    """Without weights order is order, also from far away and with little in each queue."""
    with crowd(server, namespace, queues=12, rtt_ms=2) as some:
        for _ in range(3):
            some.send_to(*reversed(range(12)))
        drain(some.far)
        assert some.started == [name for name in some.names for _ in range(3)]


@pytest.mark.slow
@pytest.mark.parametrize(
    "part",
    [
        "ready",
        *(
            pytest.param(part, marks=pytest.mark.nightly("test_a_broken_queue_harms_no_other"))
            for part in ("suspect", "wake", "meta", "stats", "unacked")
        ),
    ],
)
def test_a_broken_queue_harms_no_other(server: Server, namespace: str, part: str) -> None:
    """The first and the best of forty queues cannot be received from; the others are served in time."""
    with crowd(server, namespace, queues=40, rtt_ms=1) as some:
        some.send_to(0)
        some.break_queue(0, part)
        with running(some.far):
            keep_within(promised_s(some.rtt_s), lambda: some.served_s(*range(1, 40)))
            time.sleep(0.2)
            keep_within(1 + promised_s(some.rtt_s), lambda: some.served_s(39, 20))
        assert "q0" not in some.started


@pytest.mark.slow
def test_paused_queues_harm_no_other(server: Server, namespace: str) -> None:
    """Queues that may not be received from are not asked again and again, whatever lies in them."""
    with crowd(server, namespace, queues=40, rtt_ms=5) as some:
        for name in some.names[:30]:
            some.near.queue(name).pause("out")
        some.send_to(*range(30))
        with some.worker():
            keep_within(promised_s(some.rtt_s), lambda: some.served_s(*range(30, 40)))
            assert len(some.started) == 10
            until(lambda: some.commands_per_s(0.5) < 60)

            def resumed_s() -> float:
                queue = some.near.queue("q7")
                queue.pause("out")
                some.send_to(7)
                some.started.clear()
                queue.resume()
                return some.until_started(["q7"])

            keep_within(promised_s(some.rtt_s), resumed_s)


@pytest.mark.slow
@pytest.mark.parametrize(
    "number", [5, pytest.param(10, marks=pytest.mark.nightly("test_every_message_starts_in_time"))]
)
def test_every_message_starts_in_time(server: Server, number: int) -> None:
    """Whatever the queues, the distance, the workers and the order of sends: nothing waits beside an idle worker."""

    @settings(max_examples=EXAMPLES or examples(number), deadline=None, database=None)
    @given(
        queues=st.integers(1, 60),
        rtt_ms=st.sampled_from([0, 1, 5, 20]),
        concurrency=st.sampled_from([1, 1, 4, 30]),
        weighted=st.booleans(),
        workers=st.sampled_from([1, 1, 2]),
        data=st.data(),
    )
    def send_and_await(
        queues: int,
        rtt_ms: float,
        concurrency: int,
        weighted: bool,
        workers: int,
        data: st.DataObject,
    ) -> None:
        numbers = data.draw(st.lists(st.integers(0, queues - 1), min_size=1, max_size=40))
        weights = {f"q{n}": float(1 + n % 5) for n in range(queues)} if weighted else {}
        namespace = f"t{uuid.uuid4().hex[:12]}"
        config = {"concurrency": concurrency, "weights": weights}
        with crowd(server, namespace, queues=queues, rtt_ms=rtt_ms) as some, some.worker(**config):
            _send_and_await(some, numbers, workers, config)

    send_and_await()


def _send_and_await(
    some: Crowd, numbers: list[int], workers: int, config: dict[str, object]
) -> None:
    if workers > 1:
        with some.worker(**config):
            return _send_and_await(some, numbers, workers - 1, config)
    # The second time the worker knows how long handlers take, and has old tokens to get rid of.
    expected = len(numbers)
    for _ in range(2):
        # Serial work at a distance: a receive and an ack for each message of a handler that runs alone.
        more_s = expected * 4 * some.rtt_s
        keep_within(promised_s(some.rtt_s) + more_s, lambda: some.served_s(*numbers))
        assert len(some.started) == expected
    return None
