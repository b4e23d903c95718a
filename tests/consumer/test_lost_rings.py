"""A token of a doorbell that dies with the process that took it: others start the message all the same."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable, Iterator

import psutil
import pytest
from redis import Redis

from qworker.client.execute.sync import Client
from qworker.consumer.supervisor.leases.lease_keeper import LeaseKeeper
from qworker.store.connections import ConnectionFactory
from qworker.wire.keys import QueueKeys
from tests import servers
from tests.consumer.crowds import crowd
from tests.consumer.driving import HEARD_S, until
from tests.consumer.workers import Lab, Worker
from tests.servers import Server
from tests.timing import Watch, keep_within

#: The message whose token is lost.
LAST = -1
#: An app of many queues. A child that starts while the file `slow` is there takes long to import it.
QUEUES = """
from pathlib import Path
if Path("slow").exists():
    time.sleep(600)

{word} handle(n: int) -> None:
    note("handled", n)

for number in range({queues}):
    app.task(name=f"t{{number}}", queue=f"q{{number}}")(handle)
"""


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    """A server that is near, whatever the surroundings of the tests."""
    with servers.start("valkey", far=False) as server:
        yield server


@pytest.fixture
def keeper(server: Server) -> Iterator[LeaseKeeper]:
    """The keeper of a supervisor."""
    with Client(ConnectionFactory(server.url)) as client:
        yield LeaseKeeper(client)


@pytest.mark.parametrize("queues", [1, 2, 130])
@pytest.mark.parametrize("weights", [{}, {"q0": 3.0}], ids=["strict", "weighted"])
def test_a_supervisor_rings_for_others_after_the_death_of_a_child(
    server: Server,
    namespace: str,
    only_bells: dict[str, int],
    keeper: LeaseKeeper,
    queues: int,
    weights: dict[str, float],
) -> None:
    """A push without a ring stands for one whose token was lost, at the head of the queue or of a new priority."""
    with crowd(server, namespace, queues=queues) as some, server.redis() as redis:
        keys = [QueueKeys(namespace, name) for name in some.names]
        with some.worker(**only_bells, weights=weights):
            for number in {0, queues - 1}:
                some.push_plainly(number)
                keeper.ring_again(keys)
                until(lambda number=number: f"q{number}" in some.started, HEARD_S)
            redis.hset(keys[-1].meta, "levels", "7")
            redis.rpush(keys[-1].ready[7], f'{{"task": "{some.names[-1]}"}}')
            some.started.clear()
            keeper.ring_again(keys)
            until(lambda: some.names[-1] in some.started, HEARD_S)


def test_it_rings_only_where_messages_wait_and_no_token_is(
    server: Server, namespace: str, keeper: LeaseKeeper
) -> None:
    """Tokens do not pile up while children crash in a row; a broken or paused queue keeps none from the others."""
    with crowd(server, namespace, queues=6) as some, server.redis() as redis:
        keys = [QueueKeys(namespace, name) for name in some.names]
        some.push_plainly(1)
        some.send_to(2, 3)
        some.near.queue("q3").pause("out")
        redis.delete(keys[3].wake)
        some.break_queue(4, "ready")
        some.break_queue(5, "wake")
        for _ in range(3):
            keeper.ring_again(keys)
        assert [redis.llen(each.wake) for each in keys[:5]] == [0, 1, 1, 0, 0]


@pytest.mark.slow
def test_a_server_that_is_away_is_given_up_soon(namespace: str, keeper: LeaseKeeper) -> None:
    """After one call without a reply: the supervisor has leases to extend."""
    with servers.start("valkey", far=False) as own, Client(ConnectionFactory(own.url)) as client:
        away = LeaseKeeper(client)
        away.ring_again([QueueKeys(namespace, "q")])
        os.kill(own.pid, signal.SIGSTOP)
        keep_within(6.0, lambda: _rung_s(away, QueueKeys(namespace, "q")))
        os.kill(own.pid, signal.SIGCONT)


def _rung_s(keeper: LeaseKeeper, keys: QueueKeys) -> float:
    watch = Watch(os.getpid())
    keeper.ring_again([keys])
    return watch.passed_s()


@pytest.mark.slow
@pytest.mark.parametrize(
    "word",
    [
        "def",
        pytest.param(
            "async def",
            marks=pytest.mark.nightly(
                "test_a_message_whose_ring_died_with_a_child_is_started_at_once"
            ),
        ),
    ],
)
@pytest.mark.parametrize(
    "queues",
    [
        12,
        *(
            pytest.param(
                number,
                marks=pytest.mark.nightly(
                    "test_a_message_whose_ring_died_with_a_child_is_started_at_once"
                ),
            )
            for number in (1, 300)
        ),
    ],
)
def test_a_message_whose_ring_died_with_a_child_is_started_at_once(
    own_lab: Lab, queues: int, word: str
) -> None:
    """By its sibling: another child takes long to import the app. The message is the first of its priority."""
    lab = own_lab
    lab.app(QUEUES.format(word=word, queues=queues))
    with lab.worker("--procs", "2", "--no-reaper") as worker:
        _until_ready(worker)
        with ConnectionFactory(lab.url).redis() as redis:
            victim = _take_a_ring(lab, worker.children, redis, queues)
        (lab.directory / "slow").touch()
        watch = Watch(*worker.pids(), lab.server_pid)
        os.kill(victim, signal.SIGKILL)
        until(lambda: lab.noted("handled")[-1] == [LAST])
        assert watch.passed_s() < 1.0
        assert lab.notes("handled")[-1].pid != victim


@pytest.mark.slow
@pytest.mark.parametrize(
    ("queues", "within_s"),
    [
        (12, 11.0),
        pytest.param(
            300,
            22.0,
            marks=pytest.mark.nightly(
                "test_a_message_whose_ring_died_with_a_host_is_started_by_another"
            ),
        ),
    ],
)
def test_a_message_whose_ring_died_with_a_host_is_started_by_another(
    own_lab: Lab, queues: int, within_s: float
) -> None:
    """By a poll: no process is left that could ring again. An idle child polls all of many queues every 20 s."""
    lab = own_lab
    lab.app(QUEUES.format(word="def", queues=queues))
    hosts = [lab.start("--no-reaper", "--visibility", "10s") for _ in range(2)]
    for host in hosts:
        _until_ready(host)
    with ConnectionFactory(lab.url).redis() as redis:
        victim = _take_a_ring(
            lab, lambda: [pid for host in hosts for pid in host.children()], redis, queues
        )
    (dead,) = (host for host in hosts if victim in host.children())
    watch = Watch(lab.server_pid, *(pid for host in hosts for pid in host.pids()))
    for pid in dead.pids():
        os.kill(pid, signal.SIGKILL)
    until(lambda: lab.noted("handled")[-1] == [LAST])
    assert watch.passed_s() < within_s


def _until_ready(worker: Worker) -> None:
    until(lambda: worker.events("worker_ready"))


def _take_a_ring(lab: Lab, children: Callable[[], list[int]], redis: Redis, queues: int) -> int:
    """Send the message `LAST`, whose token goes to a child that does not run; returns the pid of that child."""

    def both_wait() -> bool:
        return sum(client["cmd"] == "blpop" for client in redis.client_list()) >= 2

    for n in range(50):
        number = 7 * n % queues
        keys = QueueKeys(lab.namespace, f"q{number}")
        until(both_wait)
        lab.send(f"t{number}", n, queue=keys.queue)
        until(lambda n=n: lab.noted("handled")[-1:] == [[n]])
        # The other one has waited for longer, and so is the next to be given a token.
        (other,) = {*children()} - {lab.notes("handled")[-1].pid}
        until(both_wait)
        os.kill(other, signal.SIGSTOP)
        until(lambda other=other: psutil.Process(other).status() == psutil.STATUS_STOPPED)
        lab.send(f"t{number}", LAST, queue=keys.queue, priority=n % 9 + 1)
        until(lambda keys=keys: not redis.exists(keys.wake))
        time.sleep(0.1)
        if lab.noted("handled")[-1] != [LAST]:
            return other
        os.kill(other, signal.SIGCONT)
    raise AssertionError("no token went to the child that does not run")
