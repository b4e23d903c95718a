"""The clients: each send is stored once and each receive resumed, whatever happens to connections and processes."""

from __future__ import annotations

import asyncio
import os
import signal
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from qworker.client.aio import AsyncClient
from qworker.client.commands import Attempt, Command
from qworker.client.commands.configuring import configure
from qworker.client.commands.inspecting import inspect
from qworker.client.commands.receiving import Batch, settle_receive
from qworker.client.commands.sending import NewMessage, Sent, send
from qworker.client.commands.settling import Outcomes
from qworker.client.sync import Client
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
)
from qworker.store.connection import ConnectionFactory
from qworker.wire.envelope import tail
from qworker.wire.keys import QueueKeys
from tests import servers
from tests.chaos import ChaosProxy


@pytest.fixture
def keys(namespace: str, queue_name: str) -> QueueKeys:
    """The keys of a queue of its own."""
    return QueueKeys(namespace, queue_name)


@pytest.fixture
def client(store_url: str) -> Iterator[Client]:
    """A client of the shared server."""
    with Client(ConnectionFactory(store_url), give_up_s=20) as client:
        yield client


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
    """The bodies that are ready, with how often each is there."""
    items = client.execute(Command(None, (), ("LRANGE", keys.ready[0], 0, -1), list))
    return Counter(item.partition(b"\n")[2].decode() for item in items)


# -- scripts that the server does not have --------------------------------------------------------


@pytest.mark.parametrize("engine", [name for name, _ in servers.engines()])
def test_script_that_the_server_forgot_is_loaded(engine: str, keys: QueueKeys) -> None:
    """After a restart or a SCRIPT FLUSH the call is made all the same, sync and async."""
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


@pytest.mark.parametrize("engine", [name for name, _ in servers.engines()])
class TestTransientErrors:
    """A call that the server cannot serve now is made again until it can."""

    def sends_after(
        self, url: str, keys: QueueKeys, over: Callable[[], Any], kind: type[ServerError]
    ) -> None:
        """The error is seen at once without patience; with patience the send succeeds when `over` has been called."""
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
        """A script of somebody else that runs for long is waited for."""
        with servers.start(engine, "--busy-reply-threshold", "1") as server:
            admin, spinner = server.redis(), server.redis()
            # A busy Redis 7.0 does not let anybody greet it: the one who ends the script is there before.
            admin.ping()

            def spin() -> None:
                with pytest.raises(Exception, match=r"killed|KILL"):
                    spinner.eval("while true do end", 0)

            thread = threading.Thread(target=spin)
            thread.start()
            time.sleep(0.05)
            self.sends_after(server.url, keys, admin.script_kill, BusyError)
            thread.join()

    def test_loading(self, engine: str, keys: QueueKeys) -> None:
        """A server that reads its data set is waited for."""
        options = ("--enable-debug-command", "yes", "--key-load-delay", "2000",
                   "--loading-process-events-interval-bytes", "1024")  # fmt: skip
        with servers.start(engine, *options) as server:
            admin = server.redis()
            admin.mset({f"k{number}": "x" * 2000 for number in range(200)})
            thread = threading.Thread(target=lambda: admin.execute_command("DEBUG", "RELOAD"))
            thread.start()
            time.sleep(0.05)
            self.sends_after(server.url, keys, lambda: None, LoadingError)
            thread.join()

    def test_cluster_without_slots(self, engine: str, keys: QueueKeys) -> None:
        """A cluster whose slots have no node yet is waited for."""
        port, bus = servers.free_port(), servers.free_port()
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
        """A server that starts later is connected to when it is there."""
        with servers.start(engine) as server:
            socket = tmp_path / "s"
            self.sends_after(
                f"unix://{socket}", keys, lambda: socket.symlink_to(server.socket), UnavailableError
            )

    def test_lasting_trouble_is_told_at_once(self, engine: str, keys: QueueKeys) -> None:
        """What lasts until somebody acts is not waited for: too few replicas, no memory."""
        with servers.start(engine) as server:
            admin = server.redis()
            with Client(ConnectionFactory(server.url), give_up_s=20) as client:
                begin = time.monotonic()
                admin.config_set("min-replicas-to-write", 1)
                with pytest.raises(NoReplicasError):
                    client.send(one(keys, client, "a"))
                admin.config_set("min-replicas-to-write", 0)
                admin.config_set("maxmemory", 1)
                with pytest.raises(OutOfMemoryError):
                    client.send(one(keys, client, "b"))
                admin.config_set("maxmemory", 0)
                assert time.monotonic() - begin < 5
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


def test_lost_request_of_a_send_is_made_up_for(store_url: str, keys: QueueKeys) -> None:
    """A send that never arrived is repeated and stored then."""
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
    """A refusal says nothing about an earlier try: the caller hears that the send is in doubt, and why."""
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


def test_stored_send_is_a_success_whatever_the_queue_says_by_now(
    store_url: str, client: Client, keys: QueueKeys
) -> None:
    """A repetition is asked for before the queue's limits: what was stored stays stored."""
    client.execute(configure(keys, {"maxlen": "1"}))
    with ChaosProxy(store_url) as proxy, through(proxy) as chaotic:
        proxy.cut_next_reply(of=b"EVALSHA")
        assert chaotic.send(one(keys, chaotic, "a")).repeated
    assert bodies(client, keys) == {"a": 1}


def test_commands_in_one_trip_have_results_of_their_own(
    client: Client, namespace: str, keys: QueueKeys
) -> None:
    """What is refused, or fails, spoils nothing beside it."""
    broken = QueueKeys(namespace, "broken")
    client.execute(Command(None, (), ("SET", broken.dead, "x"), bool))
    client.execute(Command(None, (), ("HSET", keys.stats, "sent", 4), int))
    first, refused, failed, last = client.execute_each(
        [
            inspect(keys),
            inspect(broken),
            Command(None, (), ("HGETALL", broken.dead), dict),
            inspect(keys),
        ]
    )
    assert first.sent_total == last.sent_total == 4
    assert isinstance(refused, BrokenQueueError)
    assert type(failed) is ServerError


def test_a_server_that_is_away_is_waited_for_once(keys: QueueKeys, tmp_path: Path) -> None:
    """Not once per command of a trip."""
    with Client(ConnectionFactory(f"unix://{tmp_path}/none"), give_up_s=0.2) as client:
        begun = time.monotonic()
        errors = client.execute_each([inspect(keys)] * 50)
        assert time.monotonic() - begun < 2
    assert len(errors) == 50
    assert all(isinstance(each, UnavailableError) for each in errors)


def test_gives_up_after_its_time(store_url: str, keys: QueueKeys, tmp_path: Path) -> None:
    """A call that cannot be made is given up in time: as unavailable where it never left, else as in doubt."""
    begin = time.monotonic()
    with (
        Client(ConnectionFactory(f"unix://{tmp_path}/none"), give_up_s=0.3) as client,
        pytest.raises(UnavailableError),
    ):
        client.execute(inspect(keys))
    with ChaosProxy(store_url) as proxy, through(proxy, give_up_s=0.3) as client:
        proxy.cut_reply(every=1, of=b"EVALSHA")
        with pytest.raises(InDoubtError):
            client.send(one(keys, client, "a"))
        with pytest.raises(InDoubtError):
            client.execute(inspect(keys))
        proxy.cut_reply(0)
        client.send(one(keys, client, "b"))
        assert bodies(client, keys) == {"a": 1, "b": 1}
    assert time.monotonic() - begin < 5


def test_silent_server_is_noticed(store_url: str, keys: QueueKeys) -> None:
    """A connection on which nothing comes back is given up after the reply timeout, and the call made on another."""
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
            assert client.execute(Command(None, (), ("ECHO", "mine"), bytes)) == b"mine"
        assert not client.send(one(keys, client, "next")).repeated
        found = bodies(client, keys)
        assert found["next"] == found["warm"] == 1
        assert found["interrupted"] <= 1


def greetings(server: servers.Server) -> int:
    """Connections that were opened as the factory opens them: greeted, and checked."""
    stats = server.redis().info("commandstats")
    return int(stats["cmdstat_hello"]["calls"])


def test_an_interrupted_call_ends_its_connection(keys: QueueKeys) -> None:
    """redis-py would open it again by itself, past all checks: the next call opens one of its own, and greets."""
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
    return Attempt(Command(None, (), ("PING",), bytes), give_up_s=60)


def test_pauses_grow_to_half_a_second() -> None:
    """Tries come after pauses that double, with some spread, and are never longer than half a second."""
    tries = attempt()
    pauses = [tries.failed(UnavailableError("no")) for _ in range(12)]
    for number, pause_s in enumerate(pauses):
        longest = min(0.01 * 2**number, 0.5)
        assert longest / 2 <= pause_s <= longest


@pytest.mark.parametrize(
    "error", [OutOfMemoryError("x"), NoReplicasError("x"), ServerError("x"), QueuePausedError("q")]
)
def test_lasting_errors_end_an_attempt(error: Any) -> None:
    """What another try does not change is raised as it is."""
    with pytest.raises(type(error)) as caught:
        attempt().failed(error)
    assert caught.value is error


def test_after_doubt_only_what_may_pass_is_tried_again() -> None:
    """In doubt a try goes on through a full server, and ends in the doubt at what never passes."""
    tries = attempt()
    doubt = InDoubtError("lost")
    assert not tries.in_doubt
    tries.failed(doubt)
    assert tries.in_doubt
    assert tries.failed(OutOfMemoryError("full")) > 0
    with pytest.raises(InDoubtError) as caught:
        tries.failed(ServerError("broken"))
    assert caught.value is doubt
    assert isinstance(caught.value.__cause__, ServerError)


def test_only_doubt_turns_a_receive_into_its_repetition(keys: QueueKeys) -> None:
    """The repetition of a receive asks to resume; a call that surely did not run is made again as it was."""
    command = settle_receive(keys, "L", 5)
    tries = Attempt(command, give_up_s=60)
    tries.failed(UnavailableError("no"))
    assert tries.command.args == command.args
    tries.failed(InDoubtError("lost"))
    assert tries.command.args == (command.args[0], 1, *command.args[2:])
    tries.failed(InDoubtError("lost"))
    assert tries.command.args == (command.args[0], 1, *command.args[2:])


# -- many at once ---------------------------------------------------------------------------------


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


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
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
            assert await client.execute(Command(None, (), ("ECHO", "mine"), bytes)) == b"mine"
            assert not (await client.send(one(keys, client, "next"))).repeated

    with ChaosProxy(store_url) as proxy:
        asyncio.run(work(proxy))


def test_client_may_be_used_after_close(client: Client, keys: QueueKeys) -> None:
    """Closing drops idle connections; the next call makes a new one."""
    client.send(one(keys, client, "a"))
    client.close()
    client.send(one(keys, client, "b"))
    assert bodies(client, keys) == {"a": 1, "b": 1}
