"""The clients: each send is stored once and each receive resumed, whatever happens to connections and processes."""

from __future__ import annotations

import asyncio
import os
import re
import signal
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import redis

from qworker.client.execute.aio import AsyncClient
from qworker.client.execute.sync import Client
from qworker.client.queue import AsyncQueue
from qworker.engine.attempt import Attempt
from qworker.engine.attributes import configure
from qworker.engine.command import _READS, Command
from qworker.engine.inspect import inspect
from qworker.engine.raw import raw
from qworker.engine.receive import Batch, settle_receive
from qworker.engine.send import NewMessage, Sent, confirm, send
from qworker.engine.settle import Outcomes
from qworker.errors import (
    BrokenQueueError,
    BusyError,
    InDoubtError,
    LoadingError,
    NoReplicasError,
    OutOfMemoryError,
    QueueFullError,
    QueuePausedError,
    ReadOnlyError,
    ServerError,
    UnavailableError,
    server_refused,
)
from qworker.store.connections import ConnectionFactory
from qworker.wire.envelope import tail
from qworker.wire.keys import QueueKeys
from tests import servers
from tests.chaos import ChaosProxy
from tests.consumer.driving import until
from tests.ports import free_ports
from tests.tables import each
from tests.timing import DEADLINE_S, Watch


@pytest.fixture
def keys(namespace: str, queue_name: str) -> QueueKeys:
    """The keys of a separate queue."""
    return QueueKeys(namespace, queue_name)


@contextmanager
def through(proxy: ChaosProxy, give_up_s: float = 20, **options: Any) -> Iterator[Client]:
    """A client that goes through a proxy."""
    with Client(ConnectionFactory(proxy.url, **options), give_up_s=give_up_s) as client:
        yield client


def one(keys: QueueKeys, client: Client | AsyncClient, body: str) -> Callable[..., Command[Sent]]:
    """A send of one message."""
    message = NewMessage(client.ids.message_id(), tail(body.encode()))

    def make(*, lane: str, sequence: int) -> Command[Sent]:
        return send(keys, [message], lane=lane, sequence=sequence)

    return make


def bodies(client: Client, keys: QueueKeys) -> Counter[str]:
    """The ready bodies, and how often each is stored."""
    items = client.execute(raw("LRANGE", keys.ready[0], 0, -1, decode=list))
    return Counter(item.partition(b"\n")[2].decode() for item in items)


# -- scripts that the server does not have --------------------------------------------------------


@pytest.mark.parametrize("engine", [name for name, _ in servers.engines()])
def test_script_that_the_server_forgot_is_loaded(engine: str, keys: QueueKeys) -> None:
    """After a restart or a SCRIPT FLUSH the call succeeds anyway, sync and async."""
    with servers.start(engine) as server:
        factory = ConnectionFactory(server.url)

        async def send_async() -> None:
            async with AsyncClient(factory) as client:
                server.redis().script_flush()
                await client.send(one(keys, client, "async"))
                server.redis().script_flush()
                await client.send(one(keys, client, "async again"))

        with Client(factory) as client:
            client.send(one(keys, client, "first"))
            server.redis().script_flush()
            client.send(one(keys, client, "second"))
            asyncio.run(send_async())
            assert bodies(client, keys) == dict.fromkeys(
                ("first", "second", "async", "async again"), 1
            )


# -- errors that pass by themselves ---------------------------------------------------------------


def refuses(client: redis.Redis, words: str) -> bool:
    """Whether a server refuses a call with these words."""
    try:
        client.exists("a")
    except redis.RedisError as error:
        return bool(re.search(words, str(error)))
    return False


@pytest.mark.parametrize("engine", [name for name, _ in servers.engines()])
class TestTransientErrors:
    """A call that the server cannot serve now is retried until it can."""

    def sends_after(
        self, url: str, keys: QueueKeys, over: Callable[[], Any], kind: type[ServerError]
    ) -> None:
        """Without patience the error is raised at once; with patience the send succeeds after `over` was called."""
        with Client(ConnectionFactory(url), give_up_s=0) as client, pytest.raises(kind):
            client.send(one(keys, client, "impatient"))
        timer = threading.Timer(0.15, over)
        timer.start()
        with Client(ConnectionFactory(url), give_up_s=20) as client:
            client.send(one(keys, client, "patient"))
            timer.join()
            assert bodies(client, keys) == {"patient": 1}

    def test_replica(self, engine: str, keys: QueueKeys) -> None:
        """A replica that becomes the master takes the send."""
        with servers.start(engine) as server:
            admin = server.redis()
            admin.replicaof("127.0.0.1", 1)
            self.sends_after(server.url, keys, lambda: admin.replicaof("NO", "ONE"), ReadOnlyError)

    def test_busy_script(self, engine: str, keys: QueueKeys) -> None:
        """A send waits for a long script of another client."""
        with servers.start(engine, "--busy-reply-threshold", "1") as server:
            admin, spinner = server.redis(), server.redis()
            # A busy Redis 7.0 accepts no HELLO: connect before the script runs.
            admin.ping()

            def spin() -> None:
                with pytest.raises(Exception, match=r"killed|KILL"):
                    spinner.eval("while true do end", 0)

            thread = threading.Thread(target=spin)
            thread.start()
            until(lambda: refuses(admin, "BUSY"))
            self.sends_after(server.url, keys, admin.script_kill, BusyError)
            thread.join()

    @pytest.mark.slow
    def test_loading(self, engine: str, keys: QueueKeys) -> None:
        """A send waits for a server that loads its data set."""
        # It would load for ten seconds: time for the first send, until it is told to hurry.
        options = ("--enable-debug-command", "yes", "--key-load-delay", "10000",
                   "--loading-process-events-interval-bytes", "1024")  # fmt: skip
        with servers.start(engine, *options) as server:
            admin = server.redis()
            admin.mset({f"k{number}": "x" * 2000 for number in range(1000)})
            thread = threading.Thread(target=lambda: admin.execute_command("DEBUG", "RELOAD"))
            thread.start()
            until(lambda: refuses(admin, "loading"))
            finish = partial(admin.config_set, "key-load-delay", 0)
            self.sends_after(server.url, keys, finish, LoadingError)
            thread.join()

    @pytest.mark.slow
    def test_cluster_without_slots(self, engine: str, keys: QueueKeys) -> None:
        """A send waits for a cluster whose slots have no node yet."""
        port, bus = free_ports(2)
        options = ("--port", str(port), "--cluster-enabled", "yes", "--cluster-port", str(bus))
        with servers.start(engine, "--bind", "127.0.0.1", *options) as server:
            admin = server.redis()
            self.sends_after(
                f"redis+cluster://127.0.0.1:{port}",
                keys,
                lambda: admin.execute_command("CLUSTER", "ADDSLOTSRANGE", 0, 16383),
                UnavailableError,
            )

    def test_server_that_is_not_there_yet(
        self, engine: str, keys: QueueKeys, tmp_path: Path
    ) -> None:
        """A send waits for a server that starts later."""
        with servers.start(engine) as server:
            socket = tmp_path / "s"
            self.sends_after(
                f"unix://{socket}", keys, lambda: socket.symlink_to(server.socket), UnavailableError
            )

    def test_lasting_errors_are_raised_at_once(self, engine: str, keys: QueueKeys) -> None:
        """Too few replicas and no memory last until an operator acts: the send does not wait."""
        with servers.start(engine) as server:
            admin = server.redis()
            with Client(ConnectionFactory(server.url), give_up_s=20) as client:
                watch = Watch(os.getpid())
                admin.config_set("min-replicas-to-write", 1)
                with pytest.raises(NoReplicasError):
                    client.send(one(keys, client, "a"))
                admin.config_set("min-replicas-to-write", 0)
                admin.config_set("maxmemory", 1)
                with pytest.raises(OutOfMemoryError):
                    client.send(one(keys, client, "b"))
                admin.config_set("maxmemory", 0)
                assert watch.passed_s() < 15
                client.send(one(keys, client, "c"))
                assert bodies(client, keys) == {"c": 1}


# -- doubt ----------------------------------------------------------------------------------------


def test_lost_reply_of_a_send_stores_it_once(store_url: str, keys: QueueKeys) -> None:
    """A send whose reply was lost is repeated, found stored, and is a success."""
    with ChaosProxy(store_url) as proxy, through(proxy) as client:
        client.send(one(keys, client, "warm"))
        proxy.cut_next_reply(of=b"EVALSHA")
        assert client.send(one(keys, client, "a")).repeated
        assert not client.send(one(keys, client, "b")).repeated
        assert proxy.replies_cut == 1
        assert bodies(client, keys) == dict.fromkeys(("warm", "a", "b"), 1)


def test_lost_request_of_a_send_is_repeated(store_url: str, keys: QueueKeys) -> None:
    """A send that never arrived is repeated and stored."""
    with ChaosProxy(store_url) as proxy, through(proxy) as client:
        client.send(one(keys, client, "warm"))
        proxy.cut_request(every=1, of=b"EVALSHA", times=1)
        assert not client.send(one(keys, client, "a")).repeated
        assert bodies(client, keys) == {"warm": 1, "a": 1}


def test_lost_reply_of_a_receive_is_resumed(store_url: str, keys: QueueKeys) -> None:
    """With every third reply lost each message is delivered in the order of sending, and settled once."""
    with ChaosProxy(store_url) as proxy, through(proxy) as client:
        for number in range(60):
            client.send(one(keys, client, f"{number:02d}"))
        proxy.cut_reply(every=3, of=b"EVALSHA")
        seen: list[str] = []
        outcomes: list[Outcomes] = []
        burned = 0
        while len(seen) < 60:
            batch: Batch = client.execute(
                settle_receive(keys, client.ids.lease_id(), 7, outcomes=outcomes)
            )
            seen += [item.partition(b"\n")[2].decode() for item in batch.items]
            outcomes = [Outcomes(batch.lease_id, acks=list(batch.indices))] if batch.items else []
            burned += not batch.items
            assert burned < 30
        client.execute(settle_receive(keys, client.ids.lease_id(), 0, outcomes=outcomes))
        assert proxy.replies_cut > 3
        proxy.cut_reply(0)
        assert seen == [f"{number:02d}" for number in range(60)]
        seen_in_redis = client.execute(inspect(keys))
        assert (seen_in_redis.stored, seen_in_redis.leases) == (0, 0)
        assert seen_in_redis.stats["acked"] == 60


@pytest.mark.parametrize("refusal", ["paused", "full"])
def test_refusal_after_doubt_is_doubt(
    store_url: str, client: Client, keys: QueueKeys, refusal: str
) -> None:
    """A refusal proves nothing about an earlier attempt: the caller learns that the send is in doubt, and why."""
    attributes = {"paused": "in"} if refusal == "paused" else {"maxlen": "1"}
    client.send(one(keys, client, "warm"))
    client.execute(configure(keys, attributes))
    kind = QueuePausedError if refusal == "paused" else QueueFullError
    with ChaosProxy(store_url) as proxy, through(proxy) as chaotic:
        with pytest.raises(kind):
            chaotic.send(one(keys, chaotic, "refused"))
        proxy.cut_request(every=1, of=b"EVALSHA", times=1)
        with pytest.raises(InDoubtError) as caught:
            chaotic.send(one(keys, chaotic, "doubted"))
        assert isinstance(caught.value.__cause__, kind)
        client.execute(configure(keys, {"paused": "", "maxlen": ""}))
        chaotic.send(one(keys, chaotic, "later"))
    assert bodies(client, keys) == {"warm": 1, "later": 1}


def test_stored_send_is_a_success_even_if_the_queue_is_full_now(
    store_url: str, client: Client, keys: QueueKeys
) -> None:
    """The script checks for a repetition before the limits: a stored message stays stored."""
    client.execute(configure(keys, {"maxlen": "1"}))
    with ChaosProxy(store_url) as proxy, through(proxy) as chaotic:
        proxy.cut_next_reply(of=b"EVALSHA")
        assert chaotic.send(one(keys, chaotic, "a")).repeated
    assert bodies(client, keys) == {"a": 1}


def test_commands_in_one_trip_have_their_own_results(
    client: Client, namespace: str, keys: QueueKeys
) -> None:
    """A refusal or a failure does not affect the others."""
    broken = QueueKeys(namespace, "broken")
    client.execute(raw("SET", broken.dead, "x", decode=bool))
    client.execute(raw("HSET", keys.stats, "sent", 4, decode=int))
    first, refused, failed, last = client.execute_each(
        [
            inspect(keys),
            inspect(broken),
            raw("HGETALL", broken.dead, decode=dict),
            inspect(keys),
        ]
    )
    assert first.sent_total == last.sent_total == 4
    assert isinstance(refused, BrokenQueueError)
    assert server_refused(failed)


def test_a_trip_waits_once_for_a_server_that_is_away(keys: QueueKeys, tmp_path: Path) -> None:
    """Not once per command of a trip."""
    with Client(ConnectionFactory(f"unix://{tmp_path}/none"), give_up_s=0.2) as client:
        watch = Watch(os.getpid())
        errors = client.execute_each([inspect(keys)] * 50)
        assert watch.passed_s() < 8  # of 10
    assert len(errors) == 50
    assert all(isinstance(error, UnavailableError) for error in errors)


@pytest.mark.slow
def test_a_call_is_given_up_in_time(store_url: str, keys: QueueKeys, tmp_path: Path) -> None:
    """As unavailable if it was never sent or only reads, else as in doubt."""
    watch = Watch(os.getpid())
    with (
        Client(ConnectionFactory(f"unix://{tmp_path}/none"), give_up_s=0.3) as client,
        pytest.raises(UnavailableError),
    ):
        client.execute(inspect(keys))
    with ChaosProxy(store_url) as proxy, through(proxy, give_up_s=0.3) as client:
        # Loads the script; else each reply would say that it is unknown.
        client.send(one(keys, client, "first"))
        proxy.cut_reply(every=1, of=b"EVALSHA")
        with pytest.raises(InDoubtError):
            client.send(one(keys, client, "a"))
        with pytest.raises(UnavailableError, match="only reads, so nothing was changed"):
            client.execute(inspect(keys))
        proxy.cut_reply(0)
        client.send(one(keys, client, "b"))
        assert bodies(client, keys) == {"first": 1, "a": 1, "b": 1}
    assert watch.passed_s() < 15  # of 20


def test_what_counts_as_a_read_writes_nothing(client: Client, keys: QueueKeys) -> None:
    """As the server itself says of plain commands; of scripts their flags do. What takes or waits for more is none."""
    for name, _, flags, *_ in client.ask("COMMAND", "INFO", *sorted(_READS)):
        assert not {b"write", b"blocking"} & {*flags}, name
    reads = (inspect(keys), raw("HGET", keys.meta, "maxsize"))
    others = (
        configure(keys, {"maxlen": "1"}),
        raw("HSET", keys.meta, "maxlen", 1),
        confirm(keys, 1, "1s"),
    )
    assert [command.only_reads for command in (*reads, *others)] == [True] * 2 + [False] * 3


def test_silent_server_is_noticed(store_url: str, keys: QueueKeys) -> None:
    """A connection without a reply is given up after the reply timeout, and the call made on another."""
    with (
        ChaosProxy(store_url) as proxy,
        through(proxy, reply_timeout_s=0.2, connect_timeout_s=0.2) as client,
    ):
        client.send(one(keys, client, "warm"))
        proxy.blackhole = True
        healed = threading.Timer(0.5, setattr, (proxy, "blackhole", False))
        healed.start()
        client.send(one(keys, client, "a"))
        healed.join()
        assert bodies(client, keys) == {"warm": 1, "a": 1}


class _Interruption(BaseException):
    """What a signal handler raises, as Ctrl-C does."""


@contextmanager
def interruption(after_s: float) -> Iterator[None]:
    """Raise `_Interruption` in the main thread after some seconds."""

    def interrupt(*_: object) -> None:
        raise _Interruption

    before = signal.signal(signal.SIGALRM, interrupt)
    signal.setitimer(signal.ITIMER_REAL, after_s)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


def test_interrupted_call_leaves_no_reply_behind(store_url: str, keys: QueueKeys) -> None:
    """After an interrupt between call and reply the next call gets its own reply, and the next send its own lane."""
    with ChaosProxy(store_url) as proxy, through(proxy) as client:
        client.send(one(keys, client, "warm"))
        for call in (
            lambda: client.execute(inspect(keys)),
            lambda: client.send(one(keys, client, "interrupted")),
        ):
            proxy.blackhole = True
            with pytest.raises(_Interruption), interruption(0.1):
                call()
            proxy.blackhole = False
            assert client.execute(raw("ECHO", "mine", decode=bytes)) == b"mine"
        assert not client.send(one(keys, client, "next")).repeated
        stored = bodies(client, keys)
        assert stored["next"] == stored["warm"] == 1
        assert stored["interrupted"] <= 1


def greetings(server: servers.Server) -> int:
    """Count the connections that the factory has opened and checked."""
    stats = server.redis().info("commandstats")
    return int(stats["cmdstat_hello"]["calls"])


def test_an_interrupted_call_ends_its_connection(keys: QueueKeys) -> None:
    """redis-py would reopen it without our checks: the next call opens and checks a new one."""
    with (
        servers.start("valkey") as server,
        ChaosProxy(server.url) as proxy,
        through(proxy) as client,
    ):
        client.send(one(keys, client, "warm"))
        proxy.blackhole = True
        with pytest.raises(_Interruption), interruption(0.1):
            client.execute(inspect(keys))
        proxy.blackhole = False
        before = greetings(server)
        client.execute(inspect(keys))
        assert greetings(server) == before + 1


def test_a_cancelled_call_ends_its_connection(keys: QueueKeys) -> None:
    """As an interrupt does in the sync client."""

    async def work(server: servers.Server, proxy: ChaosProxy) -> None:
        async with AsyncClient(ConnectionFactory(proxy.url), give_up_s=20) as client:
            await client.send(one(keys, client, "warm"))
            proxy.blackhole = True
            with pytest.raises(TimeoutError):
                await asyncio.wait_for(client.execute(inspect(keys)), 0.1)
            proxy.blackhole = False
            before = greetings(server)
            await client.execute(inspect(keys))
            assert greetings(server) == before + 1

    with servers.start("valkey") as server, ChaosProxy(server.url) as proxy:
        asyncio.run(work(server, proxy))


# -- attempts, without a server -------------------------------------------------------------------


def attempt() -> Attempt[Any]:
    """An attempt with plenty of time."""
    return Attempt(raw("PING", decode=bytes), give_up_s=60)


def test_pauses_grow_to_half_a_second() -> None:
    """Pauses between attempts double, with some spread, up to half a second."""
    attempts = attempt()
    pauses = [attempts.failed(UnavailableError("no")) for _ in range(12)]
    for number, pause_s in enumerate(pauses):
        longest = min(0.01 * 2**number, 0.5)
        assert longest / 2 <= pause_s <= longest


def test_the_last_attempt_is_made_when_the_time_is_over() -> None:
    """A server that is back just before is not missed: however long the pauses are, the last ends there."""
    begun = time.monotonic()
    attempts, waited_s = Attempt(raw("PING", decode=bytes), give_up_s=0.4), 0.0

    def fail() -> None:
        nonlocal waited_s
        while True:
            time.sleep(attempts.failed(UnavailableError("no")))
            waited_s = time.monotonic() - begun

    with pytest.raises(UnavailableError):
        fail()
    assert waited_s >= 0.399


def test_a_call_without_time_is_tried_once() -> None:
    """It is not repeated at all."""
    with pytest.raises(UnavailableError):
        Attempt(raw("PING", decode=bytes), give_up_s=0).failed(UnavailableError("no"))


@each(
    "error", [OutOfMemoryError("x"), NoReplicasError("x"), ServerError("x"), QueuePausedError("q")]
)
def test_lasting_errors_end_an_attempt(error: Any) -> None:
    """An error that another attempt does not change is raised as it is."""
    with pytest.raises(type(error)) as caught:
        attempt().failed(error)
    assert caught.value is error


def test_after_doubt_only_transient_errors_are_retried() -> None:
    """In doubt, attempts continue while the server is full, and end in the doubt at an error that never passes."""
    attempts = attempt()
    doubt = InDoubtError("lost")
    attempts.failed(doubt)
    assert attempts.failed(OutOfMemoryError("full")) > 0
    with pytest.raises(InDoubtError) as caught:
        attempts.failed(ServerError("broken"))
    assert caught.value is doubt
    assert isinstance(caught.value.__cause__, ServerError)


def test_only_doubt_turns_a_receive_into_its_repetition(keys: QueueKeys) -> None:
    """The repetition of a receive resumes; a call that certainly did not run is repeated unchanged."""
    command = settle_receive(keys, "L", 5)
    attempts = Attempt(command, give_up_s=60)
    attempts.failed(UnavailableError("no"))
    assert attempts.command.args == command.args
    attempts.failed(InDoubtError("lost"))
    assert attempts.command.args == (command.args[0], 1, *command.args[2:])
    attempts.failed(InDoubtError("lost"))
    assert attempts.command.args == (command.args[0], 1, *command.args[2:])


# -- many at once ---------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.nightly(
    "app/test_sending.py::test_threads_coroutines_and_forked_children_of_one_app_store_each_message_once"
)
def test_threads_store_each_message_once(store_url: str, client: Client, keys: QueueKeys) -> None:
    """Four threads on one client, every tenth reply lost: nothing twice, nothing missing."""
    with ChaosProxy(store_url) as proxy, through(proxy) as chaotic:
        proxy.cut_reply(every=10, of=b"EVALSHA")

        def work(name: str) -> None:
            for number in range(250):
                chaotic.send(one(keys, chaotic, f"{name}{number}"))

        threads = [threading.Thread(target=work, args=(name,)) for name in "abcd"]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert proxy.replies_cut >= 100
    assert bodies(client, keys) == {f"{name}{n}": 1 for name in "abcd" for n in range(250)}


@pytest.mark.slow
@pytest.mark.nightly(
    "app/test_sending.py::test_threads_coroutines_and_forked_children_of_one_app_store_each_message_once"
)
def test_coroutines_store_each_message_once(
    store_url: str, client: Client, keys: QueueKeys
) -> None:
    """A hundred coroutines on one client, every tenth reply lost: nothing twice, nothing missing."""

    async def work(url: str) -> None:
        async with AsyncClient(ConnectionFactory(url), give_up_s=20) as chaotic:

            async def one_of_them(name: int) -> None:
                for number in range(10):
                    await chaotic.send(one(keys, chaotic, f"{name}.{number}"))

            await asyncio.gather(*(one_of_them(name) for name in range(100)))

    with ChaosProxy(store_url) as proxy:
        proxy.cut_reply(every=10, of=b"EVALSHA")
        asyncio.run(work(proxy.url))
        assert proxy.replies_cut >= 100
    assert bodies(client, keys) == {f"{name}.{n}": 1 for name in range(100) for n in range(10)}


@pytest.mark.slow
@pytest.mark.bad_input("time or host: cloned container, forked process")
@pytest.mark.filterwarnings("ignore::DeprecationWarning")
@pytest.mark.nightly(
    "app/test_sending.py::test_threads_coroutines_and_forked_children_of_one_app_store_each_message_once"
)
def test_forked_children_store_each_message_once(
    store_url: str, client: Client, keys: QueueKeys
) -> None:
    """Four children forked from a client in use, and their parent, every tenth reply lost: all have their own lanes."""
    with ChaosProxy(store_url) as proxy, through(proxy) as chaotic:
        chaotic.send(one(keys, chaotic, "before"))
        proxy.cut_reply(every=10, of=b"EVALSHA")
        children = []
        for name in "abcd":
            pid = os.fork()
            if pid == 0:
                code = 1
                try:
                    for number in range(100):
                        chaotic.send(one(keys, chaotic, f"{name}{number}"))
                    code = 0
                finally:
                    os._exit(code)
            children.append(pid)
        for number in range(100):
            chaotic.send(one(keys, chaotic, f"p{number}"))
        codes = [os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) for pid in children]
        assert codes == [0] * 4
        assert proxy.replies_cut >= 50
    expected = {f"{name}{n}": 1 for name in "abcdp" for n in range(100)} | {"before": 1}
    assert bodies(client, keys) == expected


def test_cancelled_coroutine_leaves_no_reply_behind(store_url: str, keys: QueueKeys) -> None:
    """A call that is cancelled between sending and reply takes its connection along."""

    async def work(proxy: ChaosProxy) -> None:
        async with AsyncClient(ConnectionFactory(proxy.url), give_up_s=20) as client:
            await client.send(one(keys, client, "warm"))
            proxy.blackhole = True
            with pytest.raises(TimeoutError):
                await asyncio.wait_for(client.send(one(keys, client, "cancelled")), 0.1)
            proxy.blackhole = False
            assert await client.execute(raw("ECHO", "mine", decode=bytes)) == b"mine"
            assert not (await client.send(one(keys, client, "next"))).repeated

    with ChaosProxy(store_url) as proxy:
        asyncio.run(work(proxy))


def test_a_coroutine_is_cancelled_at_any_step(store_url: str, namespace: str) -> None:
    """Whichever step of a call the cancellation meets, the call ends; it does not continue to wait."""

    async def work() -> None:
        async with AsyncClient(ConnectionFactory(store_url)) as client:
            queue = AsyncQueue(client, namespace, "q")
            await queue.send("warm")
            await queue.pop()
            for steps in (*range(20), *range(20, 400, 20)):
                receiving = asyncio.create_task(queue.receive(wait="20s"))
                for _ in range(steps):
                    await asyncio.sleep(0)
                receiving.cancel()
                await asyncio.wait([receiving], timeout=DEADLINE_S)
                assert receiving.cancelled(), steps

    asyncio.run(work())


def test_client_may_be_used_after_close(client: Client, keys: QueueKeys) -> None:
    """Closing drops idle connections; the next call makes a new one."""
    client.send(one(keys, client, "a"))
    client.close()
    client.send(one(keys, client, "b"))
    assert bodies(client, keys) == {"a": 1, "b": 1}
