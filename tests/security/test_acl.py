"""Roles on the server: each can do its work and nothing else, on Redis and on Valkey.

Nothing that a role does in its work may show in ACL LOG, and what it must not do is refused.
"""

from __future__ import annotations

import os
import shlex
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from itertools import islice
from pathlib import Path

import pytest
import redis
import structlog
from click.testing import CliRunner

from qworker import QWorker, RunStartedError, SyncRun
from qworker.cli.main import cli
from qworker.client.execute.sync import Client
from qworker.client.namespace.owners import note_owner, read_owners
from qworker.client.namespace.paused_tasks import pause_task, read_paused_tasks
from qworker.client.queue import Queue
from qworker.consumer.supervisor.operators.control import Control
from qworker.daemon.preloading import Preloader
from qworker.daemon.reaper import Reaper
from qworker.daemon.schedules import server_now_ms
from qworker.engine.acl_roles import ROLES
from qworker.engine.feed import append_to_feed
from qworker.engine.note import keep_note
from qworker.engine.options import QueueAttributes
from qworker.engine.raw import raw
from qworker.engine.scripts import SCRIPT_NAMES
from qworker.errors import AccessDeniedError, GroupFullError
from qworker.store.connections import ConnectionFactory
from qworker.wire.control import ControlRequest, read_answer, write
from qworker.wire.keys import QueueKeys, answer_key, control_key
from tests.consumer.driving import until
from tests.consumer.forkserver import Order, start_module
from tests.security.guarded import TESTER, GuardedServer, guarded

NAMESPACE = "shop"


@pytest.fixture(scope="module", params=["valkey", "redis"])
def shops(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[GuardedServer]:
    """A server whose producers, consumers and metrics are for the queue `mail`."""
    directory = tmp_path_factory.mktemp("acl")
    more = ["producer+results"]
    with guarded(request.param, NAMESPACE, directory, queues=["mail"], more=more) as server:
        yield server


@pytest.fixture
def shop(shops: GuardedServer) -> GuardedServer:
    """The shared server, with nothing in its log of refusals."""
    shops.refused()
    return shops


Open = Callable[..., Queue]


@pytest.fixture
def open_queue(shop: GuardedServer) -> Iterator[Open]:
    """Open a queue as a role."""
    clients: list[Client] = []

    def as_role(role: str, queue: str = "mail") -> Queue:
        client = Client(ConnectionFactory(shop.url(role)), give_up_s=2.0)
        clients.append(client)
        return Queue(client, NAMESPACE, queue)

    yield as_role
    for client in clients:
        client.close()


@pytest.mark.slow
def test_each_role_does_its_work_and_the_log_stays_empty(
    shop: GuardedServer, open_queue: Open
) -> None:
    """Send, delay, receive, ack, nack, bury, extend, release, reap, redrive, look: each by the role that it is for."""
    producer, consumer, operator = (
        open_queue(role) for role in ("producer", "consumer", "operator")
    )
    operator.configure(QueueAttributes(journal="all"))
    producer.send_many([{"n": n} for n in range(20)])
    producer.send({"n": 20}, delay="1h")
    producer.send({"n": 21}, unique="once", priority=5, ttl="1h")
    first, second, third, fourth, *others = consumer.receive(20)
    consumer.ack(*others)
    consumer.nack(first, delay="1m", error="no")
    consumer.bury(second)
    consumer.release(third)
    consumer.ack(consumer.extend(fourth, "1m"))
    late = producer.send("late", delay="3d")
    operator.client.ask("ZADD", operator.keys.cancelled, 1, late)
    reaper = Reaper(open_queue("daemon").client, NAMESPACE, tick_ms=1000)
    reaper.tick()
    assert operator.show(late) is None
    [dead_letter] = operator.dead(10)
    operator.redrive(dead_letter.entry_id)
    assert operator.inspect().stored == len(operator.peek(20)) + 2
    operator.pause("in")
    operator.resume()
    operator.purge("ready")
    with shop.redis("metrics") as metrics:
        keys = QueueKeys(NAMESPACE, "mail")
        assert metrics.llen(keys.ready[0]) == 0
        assert metrics.zcard(keys.delayed) == 2
        assert metrics.hgetall(keys.stats)[b"sent"] == b"23"
    assert shop.refused() == []


def test_commands_make_the_users_of_the_file(shop: GuardedServer) -> None:
    """What `--commands` writes is accepted, and each user has the rights that its line in the aclfile gives it."""
    arguments = [
        "--namespace",
        NAMESPACE,
        "acl",
        "--commands",
        "--prefix",
        "typed-",
        "--queue",
        "mail",
    ]
    arguments += ["--server-version", shop.server.version]
    combined = [word for role in ROLES if not ROLES[role].every_queue for word in ("--role", role)]
    for more in ([], [*combined, "--role", "producer+results"]):
        written = CliRunner().invoke(cli, [*arguments, *more]).output.splitlines()
        with shop.redis() as tester:
            for command in written:
                words = shlex.split(command)
                tester.execute_command(*words)
                typed, filed = (
                    tester.acl_getuser(name)
                    for name in (words[2], words[2].replace("typed-", "qworker-"))
                )
                tester.acl_deluser(words[2])
                assert typed | {"passwords": []} == filed | {"passwords": []}
        assert len(written) == (len(more) // 2 or len(ROLES))


@pytest.mark.slow
def test_a_user_of_one_queue_reaps_it(shop: GuardedServer, open_queue: Open) -> None:
    """It may not look into the outboxes of others: their messages for it do not keep its tombstones."""
    with shop.redis() as tester:
        tester.execute_command(
            "ACL", "SETUSER", "qworker-alone", "on", ">alone", "~shop:{mail}:*", "+@all", "-@admin"
        )
        shop.passwords["qworker-alone"] = "alone"
        queue = open_queue("alone")
        tester.zadd(queue.keys.cancelled, {"gone": 1})
        for _ in range(100):
            queue.reap()
            if not tester.exists(queue.keys.cancelled):
                break
        else:
            pytest.fail("the tombstone was not forgotten")
        tester.execute_command("ACL", "DELUSER", "qworker-alone")
    assert shop.refused()


@pytest.fixture(params=["with room", "full"])
def memory(request: pytest.FixtureRequest, shop: GuardedServer) -> Iterator[None]:
    """The server with room in its memory, and over its maxmemory."""
    with shop.redis() as tester:
        if request.param == "full":
            tester.config_set("maxmemory", 1)
        yield
        tester.config_set("maxmemory", 0)
        tester.delete(f"{NAMESPACE}:paused_tasks", f"{NAMESPACE}:owners")


@pytest.mark.usefixtures("memory")
@pytest.mark.slow
def test_operators_speak_with_workers(shop: GuardedServer, open_queue: Open) -> None:
    """A worker reads its requests and the paused tasks, answers, and tells that its app is there."""
    operator, consumer = open_queue("operator").client, open_queue("consumer").client
    now_ms = server_now_ms(operator.execute)
    request = write(ControlRequest("r1", "echo", now_ms))
    operator.execute(keep_note("RPUSH", control_key(NAMESPACE, "w"), request))
    operator.execute(raw("PEXPIRE", control_key(NAMESPACE, "w"), 30_000, decode=int))
    pause_task(operator.execute, NAMESPACE, "slow", now_ms)

    Control(consumer, NAMESPACE, "w", {"echo": lambda _, reply: reply(True, "here")}).check(now_ms)
    note_owner(consumer.execute, NAMESPACE, "app", now_ms)

    words = ("BLPOP", answer_key(NAMESPACE, "r1"), 1)
    _, written = operator.execute(raw(*words, decode=list))
    answer = read_answer(written)
    assert answer is not None
    assert (answer.worker, answer.text) == ("w", "here")
    assert read_paused_tasks(consumer.execute, NAMESPACE) == {"slow": now_ms}
    assert read_owners(open_queue("daemon").client.execute, NAMESPACE) == {"app": now_ms}
    assert shop.refused() == []


def test_runs_are_started_once_by_producers_that_read_results(
    shop: GuardedServer, open_queue: Open
) -> None:
    """And that read feeds. A producer alone may not read what a run was started with, nor what its steps returned."""
    with closing(QWorker(NAMESPACE, url=shop.url("producer-results"))) as app:

        @app.workflow(queue="mail")
        def order(run: SyncRun, number: int) -> int:
            return number

        named = order.options(id="order-17", delay="1h")
        assert named.start(1) == named.start(1)
        with pytest.raises(RunStartedError):
            named.start(2)
        keys = app.queue("mail").keys
        worker = open_queue("consumer").client
        worker.execute(append_to_feed(keys, "order-17", 60_000, [b"\n5"]))
        assert [entry.value for entry in islice(named.start(1).feed(), 1)] == [5]
    assert shop.refused() == []


#: What a role must not do: who, and the command.
FORBIDDEN = {
    "producer reads no message": ("producer", ["LRANGE", "shop:{mail}:ready", 0, -1]),
    "producer gives workers no orders": ("producer", ["RPUSH", "shop:control:w", "x"]),
    "consumer gives workers no orders": ("consumer", ["RPUSH", "shop:control:w", "x"]),
    "consumer pauses no task": ("consumer", ["HSET", "shop:paused_tasks", "t", 1]),
    "producer takes none": ("producer", ["LPOP", "shop:{mail}:ready"]),
    "producer reads no delayed one": ("producer", ["ZRANGE", "shop:{mail}:delayed", 0, -1]),
    "producer settles nothing": ("producer", ["HDEL", "shop:{mail}:lease:x", "1"]),
    "producer makes no lease": ("producer", ["ZADD", "shop:{mail}:unacked", 1, "x"]),
    "producer buries nothing": ("producer", ["XADD", "shop:{mail}:dead", "*", "a", "b"]),
    "producer touches no other queue": ("producer", ["RPUSH", "shop:{pay}:ready", "x"]),
    "producer touches no queue of a longer name": ("producer", ["RPUSH", "shop:{mail2}:ready", "x"]),
    "producer reads no step of a run": ("producer", ["HGET", "shop:{mail}:run:a", "charge"]),
    "producer deletes nothing": ("producer", ["DEL", "shop:{mail}:ready"]),
    "consumer touches no other queue": ("consumer", ["LPOP", "shop:{pay}:ready"]),
    "consumer leaves the namespace alone": ("consumer", ["DEL", "other:{mail}:ready"]),
    "metrics reads no message": ("metrics", ["LRANGE", "shop:{mail}:ready", 0, -1]),
    "metrics reads no lease": ("metrics", ["HGETALL", "shop:{mail}:lease:x"]),
    "metrics writes nothing": ("metrics", ["HSET", "shop:{mail}:stats", "sent", 0]),
    "metrics calls no script": ("metrics", ["EVALSHA", "0" * 40, 0]),
    "daemon leaves other namespaces alone": ("daemon", ["HGETALL", "other:{mail}:stats"]),
    "daemon changes no setting": ("daemon", ["CONFIG", "SET", "maxmemory", "1gb"]),
    "operator leaves other namespaces alone": ("operator", ["UNLINK", "other:{mail}:ready"]),
    "operator ends no server": ("operator", ["SHUTDOWN", "NOSAVE"]),
}  # fmt: skip
#: What only the admin may do (the last three: not even it).
DANGEROUS = [
    ["EVAL", "return 1", 0], ["SCRIPT", "FLUSH"], ["FUNCTION", "LIST"], ["KEYS", "*"], ["FLUSHALL"],
    ["FLUSHDB"], ["CONFIG", "SET", "maxmemory", "1gb"], ["DEBUG", "SLEEP", "0"], ["MONITOR"],
    ["SUBSCRIBE", "x"], ["CLIENT", "KILL", "TYPE", "normal"], ["ACL", "LIST"], ["SHUTDOWN", "NOSAVE"],
]  # fmt: skip


@pytest.mark.parametrize("case", FORBIDDEN)
def test_a_role_must_not(case: str, shop: GuardedServer) -> None:
    """Refused by the server, whatever the client says."""
    role, words = FORBIDDEN[case]
    with shop.redis(role) as client, pytest.raises(redis.exceptions.NoPermissionError):
        client.execute_command(*words)


@pytest.mark.parametrize("role", [role for role in ROLES if role != "admin"])
def test_no_role_has_dangerous_commands(role: str, shop: GuardedServer) -> None:
    """No EVAL, no look at all keys, no change of the server: in no role but the admin's."""
    for words in DANGEROUS:
        # MONITOR and SUBSCRIBE have their own clients in redis-py; the server is what is asked here.
        with shop.redis(role) as client:
            connection = client.connection_pool.get_connection()
            connection.send_command(*words)
            with pytest.raises(redis.exceptions.NoPermissionError):
                connection.read_response()


def test_admin_may_do_anything_in_its_namespace(shop: GuardedServer) -> None:
    """But not to the server, nor elsewhere."""
    with shop.redis("admin") as client:
        client.execute_command("EVAL", "return redis.call('SET', KEYS[1], 'x')", 1, "shop:any")
        client.delete("shop:any")
        assert shop.refused() == []
        for words in (
            ["CONFIG", "SET", "maxmemory", "1gb"], ["FLUSHALL"], ["GET", "other:key"], ["FUNCTION", "FLUSH"],
            ["FUNCTION", "DELETE", "lib"], ["FUNCTION", "LOAD", "#!lua name=lib"], ["FUNCTION", "RESTORE", "x"],
        ):  # fmt: skip
            with pytest.raises(redis.exceptions.NoPermissionError):
                client.execute_command(*words)


def test_without_a_name_access_is_denied(shop: GuardedServer) -> None:
    """The default user is off."""
    with (
        redis.Redis(unix_socket_path=shop.server.socket, retry=None) as client,
        pytest.raises(redis.exceptions.AuthenticationError),
    ):
        client.ping()


def test_a_refusal_names_the_command(shop: GuardedServer, open_queue: Open) -> None:
    """A producer that receives learns that its rights do not reach, and nothing has happened."""
    with pytest.raises(AccessDeniedError, match="ACL forbids"):
        open_queue("producer").receive(1)
    with pytest.raises(AccessDeniedError):
        open_queue("producer", "pay").send({"n": 1})
    assert shop.refused()


@pytest.mark.slow
def test_callers_may_be_given_the_right_to_load(tmp_path: Path) -> None:
    """With `--loading callers`, scripts that the server has forgotten are loaded by their callers."""
    with guarded("valkey", NAMESPACE, tmp_path, loading="callers") as server:
        with server.redis() as tester:
            tester.script_flush()
        with (
            Client(ConnectionFactory(server.url("producer"))) as producer,
            Client(ConnectionFactory(server.url("consumer"))) as consumer,
        ):
            Queue(producer, NAMESPACE, "mail").send({"n": 1})
            [message] = Queue(consumer, NAMESPACE, "mail").receive(1)
            Queue(consumer, NAMESPACE, "mail").ack(message)
        assert server.refused() == []


@pytest.mark.parametrize(
    "engine",
    [
        "valkey",
        pytest.param("redis", marks=pytest.mark.nightly("test_scripts_are_loaded_by_the_daemon")),
    ],
)
@pytest.mark.slow
def test_scripts_are_loaded_by_the_daemon(engine: str, tmp_path: Path) -> None:
    """Only daemon and operator load code: a caller that finds a script missing waits until it is loaded."""
    with guarded(engine, NAMESPACE, tmp_path) as server:
        for role in ("producer", "consumer", "metrics"):
            with server.redis(role) as raw, pytest.raises(redis.exceptions.NoPermissionError):
                raw.script_load("return 1")
        with server.redis() as tester:
            tester.script_flush()
        server.refused()
        with (
            Client(ConnectionFactory(server.url("producer"))) as client,
            Client(ConnectionFactory(server.url("daemon"))) as daemon,
            ThreadPoolExecutor() as pool,
        ):
            sent = pool.submit(Queue(client, NAMESPACE, "mail").send, {"n": 1})
            # It has been refused what it lacks at least once before anything is loaded.
            until(server.has_refused)
            assert Preloader(daemon).keep() == len(SCRIPT_NAMES)
            assert sent.result(60)
            server.refused()
            Queue(client, NAMESPACE, "mail").send({"n": 2})
            assert server.refused() == []


APP = """
from qworker import QWorker, every
app = QWorker("shop")

@app.task(queue="mail")
def done(n: int) -> None: ...

@app.schedule(every("1s"), name="often")
@app.task(queue="mail")
def often() -> None: ...
"""
#: What an operator looks at and does, in its order.
OPERATING = [
    "queue ls", "queue show mail", "queue stat mail", "queue peek mail", "queue set mail journal=outcomes",
    "queue pause mail", "queue resume mail", "dead ls mail", "dead redrive mail --all --yes", "worker ls",
    "schedule ls", "top --once --every 200ms", "doctor", "fsck", "fsck mail", "message pending mail",
    "queue purge mail --yes",
]  # fmt: skip


@pytest.mark.slow
def test_groups_by_role(tmp_path: Path) -> None:
    """Producers send to groups, whose messages they may not read: within limits, and when numbers have gone round.

    `doctor` reads limits, groups, slots and leases of a group that waits for a lost delivery.
    """
    with guarded("redis", NAMESPACE, tmp_path) as server:
        with (
            Client(ConnectionFactory(server.url("producer"))) as producer,
            Client(ConnectionFactory(server.url("consumer"))) as consumer,
            server.redis() as redis,
        ):
            groups = QueueKeys(NAMESPACE, "mail").groups
            mail = Queue(producer, NAMESPACE, "mail")
            mail.send(b"1", group="a")  # before any receive
            redis.hset(groups, "@number", 0)
            mail.send_many([b"2", b"3"], group="b")
            redis.hset(QueueKeys(NAMESPACE, "mail").limits, "a", "m=2")
            mail.send(b"4", group="a")
            with pytest.raises(GroupFullError):
                mail.send(b"5", group="a")
            redis.delete(QueueKeys(NAMESPACE, "mail").limits)
            receiver = Queue(consumer, NAMESPACE, "mail")
            # The numbers of a and b are next: a receive sees that.
            redis.hset(groups, "@number", 2**21)
            received = receiver.receive(1)
            mail.send(b"6", group="c")
            received += receiver.receive(10)
            assert sorted(each.body for each in received) == [b"1", b"2", b"3", b"4", b"6"]
            redis.hset(groups, "@number", 2**22)  # so far none has looked
            mail.send(b"7", group="d")
            assert redis.llen(QueueKeys(NAMESPACE, "mail").ready[0]) == 1
        with Client(ConnectionFactory(server.url(TESTER))) as client:
            crm = Queue(client, NAMESPACE, "crm")
            crm.send_many([b"1", b"2"], group="acme", ordered=True)
            (message,) = crm.receive(1)
            keys = QueueKeys(NAMESPACE, "crm")
            client.execute(raw("DEL", keys.unacked, keys.lease(message.receipt.lease_id)))
        environ = {"QWORKER_URL": server.url("operator"), "QWORKER_NAMESPACE": NAMESPACE}
        ran = CliRunner().invoke(cli, ["doctor"], env=environ)
        assert "groups.gone: " in ran.output
        assert server.refused() == []


@pytest.mark.slow
def test_processes_run_as_their_roles(tmp_path: Path) -> None:
    """Daemon, worker and every look of an operator, all at once: the server has refused nothing."""
    (tmp_path / "jobs.py").write_text(APP)
    kept = {name: value for name, value in os.environ.items() if not name.startswith("QWORKER")}
    environ = {**kept, "QWORKER_NAMESPACE": NAMESPACE, "PYTHONPATH": str(Path(__file__).parents[2])}
    # The older one of the two: it knows fewer commands.
    with guarded("redis", NAMESPACE, tmp_path, queues=["mail"]) as server:
        words = {"daemon": ["daemon"], "consumer": ["run", "jobs", "--procs", "1", "--no-reaper"]}
        with (tmp_path / "log").open("wb") as log:
            started = [
                start_module(
                    Order(
                        "qworker",
                        [*each, "--metrics-port", "0"],
                        str(tmp_path),
                        {**environ, "QWORKER_URL": server.url(role)},
                        nursery=True,
                    ),
                    log,
                )
                for role, each in words.items()
            ]
        try:
            with (
                Client(ConnectionFactory(server.url("producer"))) as client,
                Client(ConnectionFactory(server.url("operator"))) as looking,
            ):
                mail = Queue(client, NAMESPACE, "mail")
                mail.send_many([{"task": "done", "args": [n]} for n in range(50)])
                mail.send({"task": "done", "args": [50]}, delay="1s")
                mail.send({"task": "done", "args": ["no number"]})
                seen = Queue(looking, NAMESPACE, "mail")
                # 51 calls, and of the schedule two at least: the daemon fires and promotes, the worker acks.
                until(lambda: seen.inspect().stats.get("acked", 0) >= 53)
            for line in OPERATING:
                ran = CliRunner().invoke(
                    cli,
                    line.split(),
                    env={"QWORKER_URL": server.url("operator"), "QWORKER_NAMESPACE": NAMESPACE},
                )
                structlog.reset_defaults()
                assert ran.exit_code in (0, 3), (line, ran.output)
        finally:
            for process in started:
                process.terminate()
            codes = [process.wait(60) for process in started]
        assert codes == [0, 0], (tmp_path / "log").read_text()
        assert server.refused() == []
