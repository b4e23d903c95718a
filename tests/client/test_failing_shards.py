"""Receive from several queues or shards of which one fails: the others lose nothing and do not wait."""

from __future__ import annotations

import asyncio
import os
import threading
import time
from collections.abc import Callable, Generator
from typing import Any

import pytest
from structlog.testing import capture_logs

from qworker.client.execute.aio import AsyncClient
from qworker.client.execute.backoff import AwayServers, IndexWrites, LeftAloneError
from qworker.client.execute.sync import Client
from qworker.client.message import Message
from qworker.client.queue import AsyncQueue, Queue
from qworker.client.receive.claim import claim
from qworker.client.receive.deliver import NewLeases
from qworker.client.receive.receive import pop, receive
from qworker.client.receive.receive_pass import PATIENCE_S, ReceiveRequest, one_pass
from qworker.client.shard_state import ShardState
from qworker.engine.command import Command, Soon
from qworker.engine.options import QueueAttributes
from qworker.engine.raw import raw
from qworker.errors import (
    AccessDeniedError,
    BrokenQueueError,
    InDoubtError,
    LoadingError,
    QworkerError,
    ReadOnlyError,
    ScriptsNotLoadedError,
    ServerError,
    UnavailableError,
)
from qworker.store.connections import ConnectionFactory
from qworker.store.nodes import Address
from qworker.wire.keyring import Keyring
from qworker.wire.keys import queues_key
from tests.chaos import ChaosProxy
from tests.tables import each
from tests.timing import Clock, Watch


def ask(client: Client, *words: str | int | bytes) -> Any:
    return client.execute(raw(*words))


def break_(client: Client, queue: Queue) -> None:
    """Put a string where the ready list belongs."""
    ask(client, "SET", queue.keys.ready[0], "x")


def repair(client: Client, queue: Queue) -> None:
    ask(client, "DEL", queue.keys.ready[0])


def bodies(messages: list[Message]) -> list[bytes]:
    return [message.body for message in messages]


def command_of(step: Any) -> Command[Any] | None:
    step = step.command if isinstance(step, Soon) else step
    return step if isinstance(step, Command) else None


def with_hook(
    plan: Generator[Any, Any, Any],
    script: str,
    hook: Callable[[Command[Any]], None],
    *,
    after: bool = False,
) -> Generator[Any, Any, Any]:
    """Run a plan, calling `hook` before (or after) each command of a script, where it may raise."""
    try:
        step = next(plan)
        while True:
            command = command_of(step)
            hit = command and command.script and command.script.name == script
            try:
                if command and hit and not after:
                    hook(command)
                result = yield step
                if command and hit and after:
                    hook(command)
            except QworkerError as error:
                step = plan.throw(error)
            else:
                step = plan.send(result)
    except StopIteration as end:
        return end.value
    finally:
        plan.close()


def steps_of(client: Client, plan: Generator[Any, Any, Any]) -> list[Any]:
    """Run a plan, and return its steps."""
    steps: list[Any] = []

    def noted() -> Generator[Any, Any, None]:
        result = None
        while True:
            try:
                steps.append(plan.send(result))
            except StopIteration:
                return
            result = yield steps[-1]

    client.run(noted())
    return steps


# -- receive --------------------------------------------------------------------------------------


def test_a_broken_shard_holds_back_no_message_of_the_others(client: Client, namespace: str) -> None:
    """Whichever shard a receive begins with, it returns the messages of the healthy ones, as first deliveries."""
    queue = Queue(client, namespace, "q")
    queue.divide(3, wait="0s")
    broken = Queue(client, namespace, "q/1")
    break_(client, broken)
    sent = []
    while len(sent) < 4:
        try:
            sent.append(queue.send(len(sent)))
        except BrokenQueueError:
            continue
    messages = [message for _ in range(6) for message in queue.receive(10)]
    assert sorted(message.id for message in messages) == sorted(sent)
    assert {message.receive_count for message in messages} == {1}


def test_a_broken_queue_costs_no_waiter_its_message(client: Client, namespace: str) -> None:
    """A receive that waits for a broken queue and an empty one gets a message that comes to the latter."""
    broken, healthy = Queue(client, namespace, "broken"), Queue(client, namespace, "healthy")
    break_(client, broken)
    healthy.create()
    late = threading.Timer(0.2, healthy.send, ("late",))
    late.start()
    assert bodies(broken.receive(5, wait="20s", then=[healthy])) == [b'"late"']
    late.join()


def test_a_broken_queue_beside_an_empty_one_is_not_an_error(client: Client, namespace: str) -> None:
    """A receiver that polls is not stopped by one broken queue."""
    broken, empty = Queue(client, namespace, "broken"), Queue(client, namespace, "empty")
    break_(client, broken)
    assert empty.receive(5, then=[broken]) == []
    assert empty.receive(5, wait="50ms", then=[broken]) == []


def test_a_broken_queue_is_left_alone_for_a_while(client: Client, namespace: str) -> None:
    """Not every receive tries (and logs) it, and it is served again once it is repaired."""
    broken, healthy = Queue(client, namespace, "broken"), Queue(client, namespace, "healthy")
    broken.send("b")
    ask(client, "RENAME", broken.keys.ready[0], f"{broken.keys.ready[0]}:aside")
    break_(client, broken)
    with capture_logs() as lines:
        for _ in range(10):
            healthy.receive(then=[broken])
    assert [line["event"] for line in lines] == ["receive_failed"]
    repair(client, broken)
    ask(client, "RENAME", f"{broken.keys.ready[0]}:aside", broken.keys.ready[0])
    assert bodies(healthy.receive(wait="5s", then=[broken])) == [b'"b"']


def test_a_wait_ends_when_a_queue_that_was_left_alone_is_tried_again(
    client: Client, namespace: str
) -> None:
    """Its messages do not wait for the next ring at another queue."""
    good, bad = Queue(client, namespace, "good"), Queue(client, namespace, "bad")
    state = bad.ref.state
    state.failed(UnavailableError("away"), time.monotonic())
    with NewLeases() as leases:
        result = client.run(one_pass([good.ref, bad.ref], ReceiveRequest(1), leases))
    assert list(result.errors) == ["bad"]
    assert state.rest_ms(time.monotonic()) <= min(result.hints_ms) <= 1000


@pytest.mark.parametrize("verb", ["receive", "pop"])
def test_the_first_error_is_raised_if_all_have_failed(
    client: Client, namespace: str, verb: str
) -> None:
    """At once, since none of the errors passes by itself."""
    queues = [Queue(client, namespace, name) for name in ("a", "b")]
    for queue in queues:
        break_(client, queue)
    started = time.monotonic()
    for _ in range(2):
        with pytest.raises(BrokenQueueError, match=r"\{a\}"):
            getattr(queues[0], verb)(5, wait="60s", then=queues[1:])
    assert time.monotonic() - started < 30


def test_a_receive_waits_if_all_have_failed_for_a_moment(store_url: str, namespace: str) -> None:
    """A server that is away for a moment causes no error, over several queues as over one."""
    with (
        ChaosProxy(store_url) as proxy,
        Client(ConnectionFactory(proxy.url), give_up_s=20.0) as client,
    ):
        queues = [Queue(client, namespace, name) for name in ("a", "b")]
        queues[1].send("b")
        queues[0].receive()
        proxy.blackhole = True
        proxy.reset_all()
        back = threading.Timer(0.3, setattr, (proxy, "blackhole", False))
        back.start()
        assert bodies(queues[0].receive(5, then=queues[1:])) == [b'"b"']
        back.join()


def test_a_server_that_stays_down_is_given_up(store_url: str, namespace: str) -> None:
    """After `give_up_s` the error of the first queue is raised."""
    with (
        ChaosProxy(store_url) as proxy,
        Client(ConnectionFactory(proxy.url), give_up_s=0.3) as client,
    ):
        queues = [Queue(client, namespace, name) for name in "abcdefgh"]
        queues[0].receive(then=queues[1:])
        proxy.blackhole = True
        watch = Watch(os.getpid())
        with pytest.raises((InDoubtError, UnavailableError)):
            queues[0].receive(5, then=queues[1:])
        assert watch.passed_s() < 4


def test_async_continues_as_well(client: Client, store_url: str, namespace: str) -> None:
    """The async client runs the same plans: a broken queue costs it neither messages nor waits."""
    break_(client, Queue(client, namespace, "broken"))
    Queue(client, namespace, "healthy").send("h")

    async def work() -> None:
        async with AsyncClient(ConnectionFactory(store_url)) as aclient:
            healthy, broken = (
                AsyncQueue(aclient, namespace, name) for name in ("healthy", "broken")
            )
            assert bodies(await healthy.receive(5, then=[broken])) == [b'"h"']
            await healthy.send("p")
            assert bodies(await broken.pop(5, then=[healthy])) == [b'"p"']
            waiting = asyncio.create_task(broken.receive(5, wait="20s", then=[healthy]))
            await healthy.send("late")
            assert bodies(await waiting) == [b'"late"']

    asyncio.run(work())


# -- claim ----------------------------------------------------------------------------------------


def test_a_claim_returns_the_messages_of_healthy_shards(client: Client, namespace: str) -> None:
    """A shard that breaks after others were claimed from costs them nothing."""
    queue = Queue(client, namespace, "q")
    queue.divide(3, wait="0s")
    for number in range(6):
        queue.send(number)
    received = [message for _ in range(3) for message in queue.receive(10)]
    assert len(received) == 6
    break_(client, Queue(client, namespace, "q/1"))
    claimed = queue.claim(10, elapsed="0s")
    assert {message.receipt.shard for message in claimed} == {0, 2}
    for name in ("q", "q/2"):
        break_(client, Queue(client, namespace, name))
    with pytest.raises(BrokenQueueError):
        queue.claim(10, elapsed="0s")


def test_a_claim_goes_on_after_a_call_in_which_messages_only_ended(
    client: Client, namespace: str
) -> None:
    """A call ends after 1 MiB, also of cancelled messages; the next one asks for the leases that it left."""
    queue = Queue(client, namespace, "q")
    for body in (*[b"x" * 250_000] * 5, b"last"):
        queue.send(body)
        [message] = queue.receive(1)
        if body != b"last":
            ask(client, "ZADD", queue.keys.cancelled, 2**53, message.id)
    assert bodies(queue.claim(5, elapsed="0s")) == [b"last"]


def test_a_claim_returns_what_it_took_before_it_failed(client: Client, namespace: str) -> None:
    """A message that was alone in its lease comes alone, so a claim takes a call for each."""
    queue = Queue(client, namespace, "q")
    queue.send_many(["a", "b"])
    assert bodies(queue.receive() + queue.receive()) == [b'"a"', b'"b"']
    calls: list[Command[Any]] = []

    def fail_later(command: Command[Any]) -> None:
        calls.append(command)
        if len(calls) == 2:
            raise BrokenQueueError(queue.keys.ready[0], "string")

    assert bodies(client.run(with_hook(claim(queue.ref, 2, elapsed=0), "claim", fail_later))) == [
        b'"a"'
    ]


def test_a_claim_whose_reply_one_shard_lost_gives_that_lease_back(
    client: Client, namespace: str
) -> None:
    """The messages of the other shard are returned; those that no caller has seen are ready again."""
    queue = Queue(client, namespace, "q")
    queue.divide(2, wait="0s")
    queue.send_many(range(2))
    queue.send_many(range(2, 4))
    assert len([message for _ in range(2) for message in queue.receive(10)]) == 4

    def lose(command: Command[Any]) -> None:
        if command.keys[0] == queue.keys.ready[0]:
            raise InDoubtError("lost")

    claimed = client.run(with_hook(claim(queue.ref, 10, elapsed=0), "claim", lose, after=True))
    assert [message.receipt.shard for message in claimed] == [1, 1]
    assert [keys.queue for keys in client.unreturned.queues()] == ["q"]
    assert [message.receipt.shard for _ in range(2) for message in queue.receive(10)] == [0, 0]


def test_every_call_of_a_claim_from_several_shards_is_given_up_soon(
    client: Client, namespace: str
) -> None:
    """A shard whose node stands still holds up the others for half a second, not for the client's minute."""
    queue = Queue(client, namespace, "q")
    queue.divide(2, wait="0s")
    queue.send("x")
    queue.receive()
    client.run(queue.ref.every_shard())
    steps = steps_of(client, claim(queue.ref, 9, elapsed=0))
    assert steps
    assert all(isinstance(step, Soon) and step.within_s == PATIENCE_S for step in steps)


# -- pop ------------------------------------------------------------------------------------------


def test_a_pop_returns_the_messages_whose_ack_counted(client: Client, namespace: str) -> None:
    """Another receiver claims one of ten between receive and ack: the other nine are not lost."""
    queue = Queue(client, namespace, "q")
    queue.send_many([b"%d" % number for number in range(10)])
    taken: list[Message] = []
    plan = with_hook(
        pop(queue.ref, 10), "settle", lambda _: taken.extend(queue.claim(1, elapsed="0s"))
    )
    popped = client.run(plan)
    assert bodies(taken) == [b"0"]
    assert bodies(popped) == [b"%d" % number for number in range(1, 10)]


def test_a_pop_matches_acks_with_and_without_unique_keys(client: Client, namespace: str) -> None:
    """The script replies acks with a unique key first: each result still belongs to its message."""
    queue = Queue(client, namespace, "q")
    for number in range(4):
        queue.send(number, unique=f"k{number}" if number % 2 else None)
    taken: list[Message] = []
    plan = with_hook(
        pop(queue.ref, 4), "settle", lambda _: taken.extend(queue.claim(1, elapsed="0s"))
    )
    assert bodies(client.run(plan)) == [b"1", b"2", b"3"]
    assert bodies(taken) == [b"0"]
    queue.send("again", unique="k1")
    assert queue.inspect().ready == 1


def test_a_pop_keeps_the_order_of_messages_with_and_without_unique_keys(
    client: Client, namespace: str
) -> None:
    """However many they are."""
    queue = Queue(client, namespace, "q")
    for number in range(12):
        queue.send(number, unique=f"k{number}" if number % 3 else None)
    assert bodies(queue.pop(12)) == [b"%d" % number for number in range(12)]


def test_a_pop_matches_acks_beside_a_forged_message(client: Client, namespace: str) -> None:
    """The forged one is buried in the same call, and is not returned."""
    keyring = Keyring(signing={"k": bytes(range(32))})
    with Client(client.factory, keyring=keyring) as signing:
        queue = Queue(signing, namespace, "q")
        queue.send("a", unique="a")
        Queue(client, namespace, "q").send("forged")
        queue.send("b")
        assert bodies(queue.pop(9)) == [b'"a"', b'"b"']
    inspection = queue.inspect()
    assert (inspection.stored, inspection.dead) == (0, 1)


def test_acks_of_a_pop_from_several_queues_have_longer_than_its_receives(
    client: Client, namespace: str
) -> None:
    """An ack that is given up leaves its messages in doubt; a receive costs nothing."""
    first, second = Queue(client, namespace, "first"), Queue(client, namespace, "second")
    first.send("a")
    second.send("b")
    limits: dict[str, set[float]] = {}
    for step in steps_of(client, pop(first.ref, 9, then=[second])):
        command = command_of(step)
        if isinstance(step, Soon) and command is not None and command.script is not None:
            limits.setdefault(command.script.name, set()).add(step.within_s)
    assert max(limits["settle_receive"]) < min(limits["settle"])


def test_a_pop_returns_messages_acked_before_another_queue_failed(
    client: Client, namespace: str
) -> None:
    """Messages of the queue that fails come back uncounted, since no caller has seen them."""
    first, second = Queue(client, namespace, "first"), Queue(client, namespace, "second")
    first.send_many(range(3))
    second.send_many(range(3, 5))

    def breaks(command: Command[Any]) -> None:
        if command.keys[0] == second.keys.ready[0]:
            ask(client, "SET", second.keys.stats, "x")

    with capture_logs() as lines:
        popped = client.run(with_hook(pop(first.ref, 9, then=[second]), "settle", breaks))
    assert bodies(popped) == [b"0", b"1", b"2"]
    assert first.inspect().stored == 0
    assert [(line["event"], line["queue"]) for line in lines] == [("pop_failed", "second")]
    ask(client, "DEL", second.keys.stats)
    again = second.receive(9)
    assert [(message.body, message.receive_count) for message in again] == [(b"3", 1), (b"4", 1)]


def test_a_pop_that_acked_nothing_raises(client: Client, namespace: str) -> None:
    """The error of the ack is raised, and its messages are given back."""
    queue = Queue(client, namespace, "q")
    queue.send("a")
    # The ack of one message asks only of the keys that it writes.
    stats = queue.keys.stats
    plan = with_hook(pop(queue.ref), "settle", lambda _: ask(client, "SET", stats, "x"))
    with pytest.raises(BrokenQueueError):
        client.run(plan)
    ask(client, "DEL", stats)
    assert [message.receive_count for message in queue.receive()] == [1]


# -- messages that no caller has seen -------------------------------------------------------------


class _Interrupted(BaseException):
    """What a signal handler raises, as Ctrl-C does."""


def _interrupt(_: Command[Any]) -> None:
    raise _Interrupted


def test_an_interrupted_receive_gives_its_messages_back(client: Client, namespace: str) -> None:
    """They are ready again at once, uncounted, whichever call the interrupt came in."""
    first, second = Queue(client, namespace, "first"), Queue(client, namespace, "second")
    first.create(max_receives=1)
    first.send("a")
    second.send("b")
    plan = with_hook(receive(first.ref, 5, then=[second]), "settle_receive", _interrupt, after=True)
    with pytest.raises(_Interrupted):
        client.run(plan)
    seen = first.inspect()
    assert (seen.ready, seen.unacked, seen.stats["released"]) == (1, 0, 1)
    assert not client.unreturned
    assert [message.receive_count for message in first.receive()] == [1]


def test_a_queue_that_takes_no_message_back_keeps_none_from_another(
    client: Client, namespace: str
) -> None:
    """The next receive from it gives its messages back."""
    first, second = Queue(client, namespace, "first"), Queue(client, namespace, "second")
    first.send("a")
    second.send("b")

    def interrupt(command: Command[Any]) -> None:
        if command.keys[0] == second.keys.ready[0]:
            ask(client, "SET", first.keys.stats, "x")
            raise _Interrupted

    with pytest.raises(_Interrupted):
        client.run(
            with_hook(receive(first.ref, 5, then=[second]), "settle_receive", interrupt, after=True)
        )
    assert second.inspect().ready == 1
    assert [keys.queue for keys in client.unreturned.queues()] == ["first"]
    ask(client, "DEL", first.keys.stats)
    assert bodies(first.receive() + first.receive()) == [b'"a"']


def test_messages_of_a_receive_whose_reply_is_lost_for_good_are_given_back(
    store_url: str, namespace: str
) -> None:
    """The next receive returns them as first deliveries, not only after their visibility."""
    with (
        ChaosProxy(store_url) as proxy,
        Client(ConnectionFactory(proxy.url), give_up_s=0.3) as client,
    ):
        queue = Queue(client, namespace, "q")
        queue.configure(QueueAttributes(max_receives=1))
        queue.send("a")
        queue.pending()
        proxy.cut_reply(every=1)
        with pytest.raises((InDoubtError, UnavailableError)):
            queue.receive()
        proxy.heal()
        assert [(message.body, message.receive_count) for message in queue.receive()] == [
            (b'"a"', 1)
        ]
        assert queue.inspect().stats.get("timeouts", 0) == 0


def test_a_cancelled_receive_gives_its_messages_back(store_url: str, namespace: str) -> None:
    """A coroutine that is cancelled while its reply is on the way leaves the message ready, and uncounted."""

    async def work(proxy: ChaosProxy) -> None:
        async with AsyncClient(ConnectionFactory(proxy.url)) as client:
            queue = AsyncQueue(client, namespace, "q")
            await queue.send("a")
            await queue.inspect()
            proxy.delay_s = 0.1
            with pytest.raises(TimeoutError):
                await asyncio.wait_for(queue.receive(), 0.15)
            proxy.delay_s = 0

    with ChaosProxy(store_url) as proxy:
        asyncio.run(work(proxy))
    with Client(ConnectionFactory(store_url)) as client:
        queue = Queue(client, namespace, "q")
        assert queue.inspect().unacked == 0
        assert [message.receive_count for message in queue.receive()] == [1]


def test_returned_messages_are_not_given_back(client: Client, namespace: str) -> None:
    """Once the call has returned, a lease belongs to its caller, whatever is interrupted afterwards."""
    queue, other = Queue(client, namespace, "q"), Queue(client, namespace, "other")
    queue.send_many(range(2))
    held = queue.receive(1)
    plan = with_hook(receive(queue.ref), "settle_receive", _interrupt, after=True)
    with pytest.raises(_Interrupted):
        client.run(plan)
    other.receive()
    assert queue.ack(*held) == held


def test_a_lost_split_gives_the_message_back(store_url: str, namespace: str) -> None:
    """If either of two leases may hold a message with its own visibility, neither keeps it."""
    with Client(ConnectionFactory(store_url), give_up_s=0.3) as client:
        queue = Queue(client, namespace, "q")
        queue.send("own", visibility="1h")
        queue.send("plain")

        def lost(_: Command[Any]) -> None:
            raise InDoubtError("the reply is lost")

        messages = client.run(with_hook(receive(queue.ref, 2), "split", lost, after=True))
        assert bodies(messages) == [b'"plain"']
        assert [(message.body, message.receive_count) for message in queue.receive(2)] == [
            (b'"own"', 1)
        ]


# -- messages that expired ------------------------------------------------------------------------


@pytest.mark.parametrize("then", [[], ["empty"]])
def test_a_receive_reads_past_many_expired_messages(
    client: Client, namespace: str, then: list[str]
) -> None:
    """One call of a script reads at most 256 of them; a receive that does not wait continues until it finds one."""
    queue = Queue(client, namespace, "q")
    queue.send_many(range(900), ttl="1ms")
    queue.send("fresh")
    time.sleep(0.005)
    others = [Queue(client, namespace, name) for name in then]
    assert bodies(queue.receive(then=others)) == [b'"fresh"']


#: Errors that pass by themselves, and the seconds for which the server is left alone after each.
RESTS: dict[type[ServerError], list[float]] = {
    UnavailableError: [0.5, 1.0, 2.0, 4.0, 5.0, 5.0],
    InDoubtError: [0.5, 1.0, 2.0, 4.0, 5.0, 5.0],
    ScriptsNotLoadedError: [0.5] * 6,
    LoadingError: [0.5] * 6,
    ReadOnlyError: [0.5] * 6,
}


@each("kind", RESTS)
def test_a_server_that_answers_is_tried_again_soon(kind: type[ServerError]) -> None:
    """A silent server is left alone for longer each time; one that still lacks scripts has them in a second."""
    now = 100.0
    away, shard = AwayServers(clock=lambda: now), ShardState()
    address = Address("a", 1)
    rests = []
    for _ in range(6):
        away.failed(address, kind("not yet"))
        with pytest.raises(LeftAloneError) as caught:
            away.check(address, float("-inf"))
        rests.append(caught.value.seconds)
        assert shard.failed(kind("not yet"), now) == rests[-1]
        now += rests[-1]
        away.check(address, float("-inf"))
        assert shard.resting(now) is None
    assert rests == RESTS[kind]


def test_an_answer_to_an_older_call_does_not_end_the_first_pause() -> None:
    """It may have come before the server froze: each further call would wait for the server as long as the first."""
    now, address = 100.0, Address("a", 1)
    away = AwayServers(clock=lambda: now)
    away.failed(address, UnavailableError("silent"))
    away.served(address, 99.9)
    with pytest.raises(LeftAloneError):
        away.check(address, float("-inf"))
    away.served(address, 100.1)
    away.check(address, float("-inf"))
    for _ in range(2):
        away.failed(address, UnavailableError("silent"))
    # A wait that was there before it froze is answered when it goes on: its queues need not wait for seconds.
    away.served(address, 99.9)
    away.check(address, float("-inf"))


def test_an_index_that_cannot_be_written_is_left_alone_by_all_queues(
    client: Client, namespace: str
) -> None:
    """One that is slow to fail would hold up the first send to each of them."""
    index = queues_key(namespace)
    ask(client, "SET", index, "x")
    Queue(client, namespace, "first").send(1)
    ask(client, "DEL", index)
    Queue(client, namespace, "second").send(1)
    assert ask(client, "EXISTS", index) == 0


def test_failures_of_writes_that_were_under_way_pause_the_index_no_longer() -> None:
    """Many threads fail at once: the index is written again after a minute."""
    clock = Clock()
    index = IndexWrites(clock=clock)
    for _ in range(3):
        index.failed(UnavailableError("away"))
    clock.now_s += 59
    assert index.paused
    clock.now_s += 1
    assert not index.paused


def test_a_shard_with_a_lasting_error_is_left_alone_longer_each_time() -> None:
    """A missing right concerns one shard: its server is tried for others, the shard itself less and less."""
    away, shard = AwayServers(clock=lambda: 0.0), ShardState()
    error = AccessDeniedError("no")
    away.failed(None, error)
    away.check(None, float("-inf"))
    assert [shard.failed(error, 0.0) for _ in range(5)] == [0.5, 1.0, 2.0, 4.0, 5.0]
