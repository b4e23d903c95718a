"""Sending calls of a task: now, later, many, with other options, from sync and async code."""

from __future__ import annotations

import asyncio
import os
import threading
from collections import Counter
from contextlib import closing

import pytest

from qworker import QWorker
from qworker.errors import ArgumentsError, InvalidOptionError
from qworker.wire.keys import QueueKeys
from tests.chaos import ChaosProxy


def bodies(app: QWorker) -> list[bytes]:
    """Return the ready bodies of the default queue, in order."""
    ready = QueueKeys(app.namespace, "default").ready[0]
    with closing(app.client.factory.redis(ready)) as redis:
        items = redis.lrange(ready, 0, -1)
    return [item.partition(b"\n")[2] for item in items]


def call_of(*args: object) -> bytes:
    """Return the body of a call of `add` with numbers as arguments."""
    return b'{"task":"add","args":[%s]}' % b",".join(b"%d" % number for number in args)


def test_a_decorated_function_stays_a_function(app: QWorker) -> None:
    """Calling a task runs its function and sends nothing; name and docstring are the function's."""

    @app.task
    def add(a: int, b: int = 1) -> int:
        """Add."""
        return a + b

    assert add(2, b=3) == 5
    assert (add.__name__, add.__doc__) == ("add", "Add.")
    assert bodies(app) == []


def test_every_way_to_send_returns_the_ids_of_its_messages(app: QWorker) -> None:
    """Now, later and many, from sync and async code: ids in the order of the calls."""

    @app.task
    def add(a: int, b: int) -> int:
        return a + b

    async def from_async_code() -> list[str]:
        sent = [await add.asend(5, 6), await add.asend_later("1h", 7, 8)]
        sent += await add.asend_many(add.call(n, n) for n in (9, 10))
        await app.aclose()
        return sent

    ids = [add.send(1, 2), add.send_later("1h", 3, 4)]
    ids += asyncio.run(from_async_code())
    ids += add.send_many(add.call(n, n) for n in (11, 12))

    queue = app.queue("default")
    assert bodies(app) == [
        call_of(*args) for args in ((1, 2), (5, 6), (9, 9), (10, 10), (11, 11), (12, 12))
    ]
    delayed = list(queue.peek(10, state="delayed"))
    assert [message.body for message in delayed] == [call_of(3, 4), call_of(7, 8)]
    assert {message.id for message in (*queue.peek(10), *delayed)} == set(ids)
    assert [message.id for message in queue.peek(10)] == [ids[n] for n in (0, 2, 4, 5, 6, 7)]


def test_many_calls_are_checked_before_one_is_sent(app: QWorker) -> None:
    """If one call does not fit or is of another task, none is sent."""

    @app.task
    def add(a: int) -> None: ...

    @app.task
    def other(a: int) -> None: ...

    with pytest.raises(ArgumentsError):
        add.send_many(add.call(n) for n in [1, 2, "three"])  # type: ignore[arg-type]
    with pytest.raises(
        InvalidOptionError, match=r"include 1, which is not a call; make each by add\.call\(…\)"
    ):
        add.send_many([1])  # type: ignore[list-item]
    with pytest.raises(
        InvalidOptionError, match="include a call of task 'other'; send only calls of 'add'"
    ):
        add.send_many([add.call(1), other.call(2)])

    with pytest.raises(
        InvalidOptionError, match="include one with priority=9, and many calls share their options"
    ):
        add.send_many([add.call(1), add.options(priority=9).call(2)])

    assert bodies(app) == []


def test_options_of_many_calls_are_those_of_their_sender(app: QWorker) -> None:
    """Calls may be made with them or without; the group of each is its own."""

    @app.task
    def add(a: int) -> None: ...

    brief = add.options(ttl="1h")
    brief.send_many([add.call(1), brief.call(2), add.options(ttl="1h", group="ann").call(3)])

    sent = app.queue("default").peek(10)
    assert [message.flags.get("g", "") for message in sent] == ["", "", "ann"]
    assert all(b" x=" in message.item.partition(b"\n")[0] for message in sent)


def test_more_calls_than_a_chunk_holds_are_sent_in_order(app: QWorker) -> None:
    """2,500 calls are sent in three atomic chunks."""

    @app.task
    def add(a: int) -> None: ...

    ids = add.send_many(add.call(n) for n in range(2500))

    assert len(set(ids)) == 2500
    assert bodies(app) == [call_of(n) for n in range(2500)]


def test_options_of_a_send_win_over_those_of_the_task(app: QWorker) -> None:
    """Priority, time to live, max receives and unique key of one send; the task does not change."""

    @app.task(priority=2, ttl="1h")
    def add(a: int) -> None: ...

    urgent = add.options(priority=9, unique="a", max_receives=1)
    first = urgent.send(1)
    assert urgent.send(1) == first
    add.send(2)

    urgent_one, usual = app.queue("default").peek(10)
    assert urgent_one.id == first
    assert {name: urgent_one.flags.get(name) for name in "pmu"} == {"p": "9", "m": "1", "u": "a"}
    assert {name: usual.flags.get(name) for name in "pmu"} == {"p": "2", "m": None, "u": None}
    assert urgent_one.flags.keys() & usual.flags.keys() >= {"x"}


@pytest.mark.slow
def test_threads_coroutines_and_forked_children_of_one_app_store_each_message_once(
    app: QWorker,
) -> None:
    """Four forked children, four threads and a hundred coroutines send at once, while every tenth reply is lost."""
    with ChaosProxy(app.url) as proxy, closing(QWorker(app.namespace, url=proxy.url)) as chaotic:

        @chaotic.task
        def add(who: int, n: int) -> None: ...

        add.send(0, 0)  # opens a connection that forks inherit
        proxy.cut_reply(every=10, of=b"EVALSHA")
        children = [
            forked(lambda who=who: [add.send(who, n) for n in range(50)]) for who in range(1, 5)
        ]
        threads = [
            threading.Thread(target=lambda who=who: [add.send(who, n) for n in range(50)])
            for who in range(5, 9)
        ]

        async def coroutines() -> None:
            async def send(who: int) -> None:
                for n in range(5):
                    await add.asend(who, n)

            await asyncio.gather(*(send(who) for who in range(100, 200)))
            await chaotic.aclose()

        for thread in threads:
            thread.start()
        asyncio.run(coroutines())
        for thread in threads:
            thread.join()
        assert [os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) for pid in children] == [0] * 4
        assert proxy.replies_cut >= 50

    expected = [(0, 0), *((who, n) for who in range(1, 9) for n in range(50))]
    expected += [(who, n) for who in range(100, 200) for n in range(5)]
    assert Counter(bodies(app)) == Counter(call_of(*args) for args in expected)


def forked(work: object) -> int:
    """Run `work` in a forked child, which exits with 0 if it succeeds; returns its pid."""
    pid = os.fork()
    if pid == 0:
        code = 1
        try:
            work()  # type: ignore[operator]
            code = 0
        finally:
            os._exit(code)
    return pid


def test_an_async_queue_outside_of_an_event_loop_is_refused_with_what_to_do() -> None:
    """As at the top of a module, where a sync queue may stand."""
    with pytest.raises(RuntimeError, match=r"aqueue\('q'\).*inside async code.*app\.queue\('q'\)"):
        QWorker("shop").aqueue("q")
