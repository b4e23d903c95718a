"""Receiving from several queues or shards of which one fails: the others neither lose, wait, nor are blamed."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable, Generator, Iterator
from typing import Any

import pytest
from structlog.testing import capture_logs

from qworker.client.aio import AsyncClient
from qworker.client.aqueue import AsyncQueue
from qworker.client.away import AwayServers, LeftAloneError
from qworker.client.commands.command import Command, Soon
from qworker.client.message import Message
from qworker.client.options import QueueAttributes
from qworker.client.place_state import PlaceState
from qworker.client.queue import Queue
from qworker.client.receiving import pop, receive
from qworker.client.sync import Client
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
from qworker.store.connection import ConnectionFactory
from qworker.store.nodes import Address
from tests.chaos import ChaosProxy


@pytest.fixture
def client(store_url: str) -> Iterator[Client]:
    with Client(ConnectionFactory(store_url), give_up_s=5.0) as made:
        yield made


def ask(client: Client, *words: str | int | bytes) -> Any:
    return client.execute(Command(None, (), words, lambda reply: reply))


def break_(client: Client, queue: Queue) -> None:
    """Put a string where the ready list belongs."""
    ask(client, "SET", queue.keys.ready[0], "x")


def mend(client: Client, queue: Queue) -> None:
    ask(client, "DEL", queue.keys.ready[0])


def bodies(messages: list[Message]) -> list[bytes]:
    return [each.body for each in messages]


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
    """Run a plan, calling `hook` before (or after) each command of a script; what it raises is raised there."""
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


# -- receive --------------------------------------------------------------------------------------


def test_a_broken_shard_keeps_nothing_of_the_others_back(client: Client, namespace: str) -> None:
    """Whichever shard a receive begins with, all that the healthy ones hold is returned, and blamed for nothing."""
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
    found = [message for _ in range(6) for message in queue.receive(10)]
    assert sorted(each.id for each in found) == sorted(sent)
    assert {each.receive_count for each in found} == {1}


def test_a_broken_queue_costs_no_waiter_its_message(client: Client, namespace: str) -> None:
    """A receive that waits over a broken queue and an empty one gets what comes to the latter meanwhile."""
    broken, healthy = Queue(client, namespace, "broken"), Queue(client, namespace, "healthy")
    break_(client, broken)
    healthy.create()
    late = threading.Timer(0.2, healthy.send, ("late",))
    late.start()
    assert bodies(broken.receive(5, wait="20s", then=[healthy])) == [b'"late"']
    late.join()


def test_no_message_beside_a_broken_queue_is_no_error(client: Client, namespace: str) -> None:
    """A receiver that asks again and again is not stopped by one queue for as long as that is broken."""
    broken, empty = Queue(client, namespace, "broken"), Queue(client, namespace, "empty")
    break_(client, broken)
    assert empty.receive(5, then=[broken]) == []
    assert empty.receive(5, wait="50ms", then=[broken]) == []


def test_a_broken_queue_is_left_alone_for_a_while(client: Client, namespace: str) -> None:
    """It is not asked (nor logged) by each receive, and served again once it is mended."""
    broken, healthy = Queue(client, namespace, "broken"), Queue(client, namespace, "healthy")
    broken.send("b")
    ask(client, "RENAME", broken.keys.ready[0], f"{broken.keys.ready[0]}:aside")
    break_(client, broken)
    with capture_logs() as lines:
        for _ in range(10):
            healthy.receive(then=[broken])
    assert [each["event"] for each in lines] == ["receive_failed"]
    mend(client, broken)
    ask(client, "RENAME", f"{broken.keys.ready[0]}:aside", broken.keys.ready[0])
    assert bodies(healthy.receive(wait="5s", then=[broken])) == [b'"b"']


@pytest.mark.parametrize("verb", ["receive", "pop"])
def test_the_first_error_is_raised_where_all_have_failed(
    client: Client, namespace: str, verb: str
) -> None:
    """Nothing else can come of it; and at once, since none of the errors passes by itself."""
    queues = [Queue(client, namespace, name) for name in ("a", "b")]
    for queue in queues:
        break_(client, queue)
    started = time.monotonic()
    for _ in range(2):
        with pytest.raises(BrokenQueueError, match=r"\{a\}"):
            getattr(queues[0], verb)(5, wait="20s", then=queues[1:])
    assert time.monotonic() - started < 5


def test_what_passes_is_waited_for_where_all_have_failed(store_url: str, namespace: str) -> None:
    """A server that is away for a moment costs a receive over several queues no error, as it costs one queue none."""
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


def test_a_server_that_stays_away_is_given_up(store_url: str, namespace: str) -> None:
    """After `give_up_s` the error of the first queue is raised."""
    with (
        ChaosProxy(store_url) as proxy,
        Client(ConnectionFactory(proxy.url), give_up_s=0.3) as client,
    ):
        queues = [Queue(client, namespace, name) for name in "abcdefgh"]
        queues[0].receive(then=queues[1:])
        proxy.blackhole = True
        started = time.monotonic()
        with pytest.raises((InDoubtError, UnavailableError)):
            queues[0].receive(5, then=queues[1:])
        assert time.monotonic() - started < 4


def test_async_goes_on_as_well(client: Client, store_url: str, namespace: str) -> None:
    """The async client runs the same plans: a broken queue costs it neither messages nor a wait."""
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


def test_a_claim_returns_what_the_healthy_shards_gave(client: Client, namespace: str) -> None:
    """A shard that breaks after others were claimed from costs them nothing."""
    queue = Queue(client, namespace, "q")
    queue.divide(3, wait="0s")
    for number in range(6):
        queue.send(number)
    received = [message for _ in range(3) for message in queue.receive(10)]
    assert len(received) == 6
    break_(client, Queue(client, namespace, "q/1"))
    claimed = queue.claim(10, elapsed="0s")
    assert {each.receipt.shard for each in claimed} == {0, 2}
    for name in ("q", "q/2"):
        break_(client, Queue(client, namespace, name))
    with pytest.raises(BrokenQueueError):
        queue.claim(10, elapsed="0s")


# -- pop ------------------------------------------------------------------------------------------


def test_a_pop_returns_the_messages_whose_ack_counted(client: Client, namespace: str) -> None:
    """Another caller claims one of ten between receive and ack: the other nine are not lost."""
    queue = Queue(client, namespace, "q")
    queue.send_all([b"%d" % number for number in range(10)])
    taken: list[Message] = []
    plan = with_hook(
        pop(queue.ref, 10), "settle", lambda _: taken.extend(queue.claim(1, elapsed="0s"))
    )
    popped = client.run(plan)
    assert bodies(taken) == [b"0"]
    assert bodies(popped) == [b"%d" % number for number in range(1, 10)]


def test_a_pop_keeps_unique_keys_apart_from_other_acks(client: Client, namespace: str) -> None:
    """The script answers acks with a unique key first: which message was acked is not confused by that."""
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


def test_a_pop_returns_what_was_acked_before_another_queue_failed(
    client: Client, namespace: str
) -> None:
    """Messages of the queue that fails come back, uncounted, as nobody has seen them."""
    first, second = Queue(client, namespace, "first"), Queue(client, namespace, "second")
    first.send_all(range(3))
    second.send_all(range(3, 5))

    def breaks(command: Command[Any]) -> None:
        if command.keys[0] == second.keys.ready[0]:
            break_(client, second)

    with capture_logs() as lines:
        popped = client.run(with_hook(pop(first.ref, 9, then=[second]), "settle", breaks))
    assert bodies(popped) == [b"0", b"1", b"2"]
    assert first.inspect().stored == 0
    assert [(each["event"], each["queue"]) for each in lines] == [("pop_failed", "second")]
    mend(client, second)
    again = second.receive(9)
    assert [(each.body, each.receive_count) for each in again] == [(b"3", 1), (b"4", 1)]


def test_a_pop_that_acked_nothing_raises(client: Client, namespace: str) -> None:
    """The error of the ack is told, and its messages are given back."""
    queue = Queue(client, namespace, "q")
    queue.send("a")
    plan = with_hook(pop(queue.ref), "settle", lambda _: break_(client, queue))
    with pytest.raises(BrokenQueueError):
        client.run(plan)
    mend(client, queue)
    assert [each.receive_count for each in queue.receive()] == [1]


# -- what nobody has seen -------------------------------------------------------------------------


class _Interrupted(BaseException):
    """What a signal handler raises, as Ctrl-C does."""


def _interrupt(_: Command[Any]) -> None:
    raise _Interrupted


def test_an_interrupted_receive_gives_back_what_it_has(client: Client, namespace: str) -> None:
    """The messages are ready again at once, uncounted, whichever call the interrupt came in."""
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
    assert [each.receive_count for each in first.receive()] == [1]


def test_a_receive_whose_reply_is_lost_for_good_is_given_back(
    store_url: str, namespace: str
) -> None:
    """What it may have received comes with the next receive, as if for the first time; not after its visibility."""
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
        assert [(each.body, each.receive_count) for each in queue.receive()] == [(b'"a"', 1)]
        assert queue.inspect().stats.get("timeouts", 0) == 0


def test_a_cancelled_receive_gives_back_what_it_has(store_url: str, namespace: str) -> None:
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
        assert [each.receive_count for each in queue.receive()] == [1]


def test_messages_that_were_returned_are_not_given_back(client: Client, namespace: str) -> None:
    """A lease belongs to its caller from the moment the call has returned, whatever is interrupted afterwards."""
    queue, other = Queue(client, namespace, "q"), Queue(client, namespace, "other")
    queue.send_all(range(2))
    held = queue.receive(1)
    plan = with_hook(receive(queue.ref), "settle_receive", _interrupt, after=True)
    with pytest.raises(_Interrupted):
        client.run(plan)
    other.receive()
    assert queue.ack(*held) == held


def test_a_lost_split_gives_the_message_back(store_url: str, namespace: str) -> None:
    """Where it is not known which of two leases holds a message with a visibility of its own, neither keeps it."""
    with Client(ConnectionFactory(store_url), give_up_s=0.3) as client:
        queue = Queue(client, namespace, "q")
        queue.send("own", visibility="1h")
        queue.send("plain")

        def lost(_: Command[Any]) -> None:
            raise InDoubtError("the reply is lost")

        messages = client.run(with_hook(receive(queue.ref, 2), "split", lost, after=True))
        assert bodies(messages) == [b'"plain"']
        assert [(each.body, each.receive_count) for each in queue.receive(2)] == [(b'"own"', 1)]


# -- messages that expired ------------------------------------------------------------------------


def test_a_receive_looks_past_many_expired_messages(client: Client, namespace: str) -> None:
    """One call of a script looks at 256 of them at most; a receive that does not wait goes on until it finds one."""
    queue = Queue(client, namespace, "q")
    queue.send_all(range(900), ttl="1ms")
    queue.send("fresh")
    time.sleep(0.005)
    assert bodies(queue.receive()) == [b'"fresh"']


#: Errors that pass by themselves, by whether the server answers; and for how long it is left alone each time.
RESTS: dict[type[ServerError], list[float]] = {
    UnavailableError: [0.5, 1.0, 2.0, 4.0, 5.0, 5.0],
    InDoubtError: [0.5, 1.0, 2.0, 4.0, 5.0, 5.0],
    ScriptsNotLoadedError: [0.5] * 6,
    LoadingError: [0.5] * 6,
    ReadOnlyError: [0.5] * 6,
}


@pytest.mark.parametrize("kind", RESTS)
def test_a_server_that_answers_is_asked_again_soon(kind: type[ServerError]) -> None:
    """One that is silent is left alone for longer each time; one that lacks scripts yet has them in a second."""
    now = 100.0
    away, place = AwayServers(clock=lambda: now), PlaceState()
    address = Address("a", 1)
    rests = []
    for _ in range(6):
        away.failed(address, kind("not yet"))
        with pytest.raises(LeftAloneError) as caught:
            away.check(address, float("-inf"))
        rests.append(caught.value.seconds)
        assert place.failed(kind("not yet"), now) == rests[-1]
        now += rests[-1]
        away.check(address, float("-inf"))
        assert place.resting(now) is None
    assert rests == RESTS[kind]


def test_what_somebody_must_change_rests_longer_each_time() -> None:
    """A right that is missing is about one place: its server is asked for others, it itself ever less."""
    away, place = AwayServers(clock=lambda: 0.0), PlaceState()
    error = AccessDeniedError("no")
    away.failed(None, error)
    away.check(None, float("-inf"))
    assert [place.failed(error, 0.0) for _ in range(5)] == [0.5, 1.0, 2.0, 4.0, 5.0]
