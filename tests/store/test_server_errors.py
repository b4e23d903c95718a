"""Server errors: the named error for a real server's refusal, its text and its retry rule."""

from __future__ import annotations

import contextlib
import ssl
import threading
import time

import pytest
import redis
from redis._parsers import BaseParser
from redis.exceptions import InvalidResponse

from qworker.errors import (
    AccessDeniedError,
    BusyError,
    ClusterMovingError,
    InDoubtError,
    LoadingError,
    LoginError,
    NoReplicasError,
    NotPersistedError,
    OutOfMemoryError,
    ReadOnlyError,
    RetryRule,
    ScriptsNotLoadedError,
    ServerError,
    SlotUnservedError,
    UnavailableError,
    UnfinishedError,
    UnsupportedServerError,
)
from qworker.store.connections import ConnectionFactory, map_error
from qworker.store.nodes import Address
from qworker.store.topology import RedirectedError
from tests import servers
from tests.ports import free_port
from tests.tables import each
from tests.timing import DEADLINE_S


@pytest.fixture(params=["valkey", "redis"])
def server(request):
    """A server that the test can misconfigure."""
    with servers.start(request.param, guarded=False) as server:
        yield server


def refusal(url, *command):
    """Send a command that the server refuses over a new connection; returns the mapped error."""
    connection = ConnectionFactory(url).connect()
    try:
        connection.send_packed_command(connection.pack_command(*command))
        with pytest.raises(redis.RedisError) as caught:
            connection.read_response()
        return map_error(caught.value, sent=True)
    finally:
        connection.disconnect()


class TestRealServers:
    """Refusals of both engines; all are definite although the call was sent."""

    def check(self, error, kind, retry, *words):
        assert type(error) is kind
        assert error.retry is retry
        for word in words:
            assert word in str(error)

    def test_out_of_memory(self, server):
        """maxmemory refuses a write, inside a script too."""
        server.redis().config_set("maxmemory", 1)
        for command in (("RPUSH", "l", "x"), ("EVAL", "redis.call('RPUSH', 'l', 'x')", "0")):
            error = refusal(server.url, *command)
            words = ("has reached maxmemory; consume messages, or raise maxmemory", "OOM")
            self.check(error, OutOfMemoryError, RetryRule.LATER, *words)

    def test_read_only(self, server):
        """A replica refuses a write."""
        server.redis().execute_command("REPLICAOF", "127.0.0.1", "1")
        error = refusal(server.url, "RPUSH", "l", "x")
        self.check(error, ReadOnlyError, RetryRule.LATER, "is a replica; connect to its master")

    def test_a_replica_without_its_master(self, server):
        """A replica that does not serve stale data refuses reads, too."""
        client = server.redis()
        client.config_set("replica-serve-stale-data", "no")
        client.execute_command("REPLICAOF", "127.0.0.1", "1")
        error = refusal(server.url, "LLEN", "l")
        self.check(error, ReadOnlyError, RetryRule.LATER, "lost its master", "MASTERDOWN")

    def test_a_wait_ended_by_a_failover(self, server):
        """A BLPOP that waits while the server becomes a replica is ended with UNBLOCKED."""
        client = server.redis()
        turn = threading.Timer(0.1, client.execute_command, ("REPLICAOF", "127.0.0.1", "1"))
        turn.start()
        error = refusal(server.url, "BLPOP", "l", "2")
        turn.join()
        self.check(error, ReadOnlyError, RetryRule.LATER, "became a replica during the call")

    def test_no_replicas(self, server):
        """min-replicas-to-write refuses a write when no replica follows."""
        server.redis().config_set("min-replicas-to-write", 1)
        error = refusal(server.url, "RPUSH", "l", "x")
        self.check(error, NoReplicasError, RetryRule.LATER, "too few replicas", "NOREPLICAS")

    def test_no_disk(self, server):
        """After a failed save the server refuses every write, and PING."""
        client = server.redis()
        (server.directory / "dump.rdb").mkdir()  # the new file cannot have this name
        client.config_set("save", "900 1")
        client.bgsave()
        while client.info("persistence")["rdb_last_bgsave_status"] != "err":
            time.sleep(0.01)
        for command in (("RPUSH", "l", "x"), ("PING",)):
            error = refusal(server.url, *command)
            words = ("cannot write to its disk", "MISCONF")
            self.check(error, NotPersistedError, RetryRule.LATER, *words)

    def test_busy(self, server):
        """While a script runs over the busy threshold, the server refuses every other call, even PING."""
        client, other = server.redis(), server.redis()
        other.ping()
        client.config_set("busy-reply-threshold", 20)
        busy = threading.Thread(target=self.spin, args=(client,))
        connection = ConnectionFactory(server.url).connect()
        busy.start()
        try:
            error = None
            deadline = time.monotonic() + DEADLINE_S
            while error is None and time.monotonic() < deadline:
                connection.send_packed_command(connection.pack_command("PING"))
                try:
                    connection.read_response()
                except redis.RedisError as refused:
                    error = map_error(refused, sent=True)
            self.check(error, BusyError, RetryRule.LATER, "end it with SCRIPT KILL", "BUSY")
        finally:
            connection.disconnect()
            other.script_kill()
            busy.join()

    @staticmethod
    def spin(client):
        with contextlib.suppress(redis.ResponseError):
            client.eval("while true do end", 0)

    def test_access(self, server):
        """A command, a key and a password that the server refuses."""
        rules = ("on", ">pw", "~mine:*", "+@all", "-llen")
        server.redis().execute_command("ACL", "SETUSER", "u", *rules)
        user = server.url.replace("unix://", "unix://u:pw@")
        for command in (("LLEN", "mine:l"), ("RPUSH", "yours:l", "x")):
            error = refusal(user, *command)
            words = ("the user's ACL forbids this command or key; give it the rules that", "NOPERM")
            self.check(error, AccessDeniedError, RetryRule.NEVER, *words)
        error = refusal(server.url, "AUTH", "u", "wrong")
        words = ("wrong user or password; check them in the URL (QWORKER_URL)", "WRONGPASS")
        self.check(error, LoginError, RetryRule.NEVER, *words)

    @pytest.mark.bad_input("server: too old, or another one")
    def test_an_unknown_command(self, server):
        """The error names the command, without the arguments that the server quotes."""
        error = refusal(server.url, "EVALX", "body-of-a-message")
        self.check(
            error,
            UnsupportedServerError,
            RetryRule.NEVER,
            "lacks or has renamed a command",
            "'EVALX'",
        )
        assert "body-of-a-message" not in str(error)
        assert "body-of-a-message" not in str(
            refusal(server.url, "CLIENT", "X", "body-of-a-message")
        )

    def test_anything_else(self, server):
        """A refusal without a rule is a plain ServerError with the server's text."""
        server.redis().set("text", "x")
        error = refusal(server.url, "RPUSH", "text", "x")
        self.check(error, ServerError, RetryRule.NEVER, "the server refused the call (WRONGTYPE")

    @pytest.mark.parametrize(
        ("line", "words"),
        [
            ("redis.call('RPUSH', 'mine:text', 'x')", "WRONGTYPE"),
            ("redis.call('LLEN', 'mine:l')", "ssion"),
            ("redis.call('SET', 'yours:l', 'x')", "key"),
            ("return nil + 1", "arithmetic"),
        ],
        ids=["type", "command", "key", "lua"],
    )
    def test_a_script_that_fails_after_a_write(self, server, line, words):
        """Its first part is done, whatever fails: the error has the line, and is never a plain refusal."""
        client = server.redis()
        client.set("mine:text", "x")
        rules = ("on", ">pw", "~mine:*", "+@all", "-llen")
        client.execute_command("ACL", "SETUSER", "u", *rules)
        source = f"#!lua flags=allow-oom\nredis.call('SET', 'mine:done', '1')\n{line}"
        error = refusal(server.url.replace("unix://", "unix://u:pw@"), "EVAL", source, "0")
        if words == "ssion" and server.engine == "redis" and servers.version_of("redis") < (7, 2):
            words = "can't run this command"
        self.check(error, UnfinishedError, RetryRule.NEVER, "part of the call may have run")
        assert (error.line, error.script) == (3, "")
        assert words in error.problem
        assert client.get("mine:done") == b"1"

    def test_a_script_that_never_began(self, server):
        """Keys that a user has no right to are refused before a script runs: that is definite."""
        server.redis().execute_command("ACL", "SETUSER", "u", "on", ">pw", "~mine:*", "+@all")
        user = server.url.replace("unix://", "unix://u:pw@")
        error = refusal(user, "EVAL", "return redis.call('GET', KEYS[1])", "1", "yours:l")
        self.check(error, AccessDeniedError, RetryRule.NEVER, "NOPERM")

    @pytest.mark.parametrize("engine", ["valkey", "redis"])
    def test_a_cluster_without_slots(self, engine):
        """A node of an incomplete Cluster serves nothing."""
        port = str(free_port())
        options = ("--cluster-enabled", "yes", "--cluster-port", port)
        with servers.start(engine, *options, guarded=False) as server, server.redis() as client:
            with pytest.raises(redis.RedisError) as caught:
                client.rpush("l", "x")
            error = map_error(caught.value, sent=True)
            words = ("no node of the Cluster serves the keys now", "CLUSTERDOWN")
            self.check(error, SlotUnservedError, RetryRule.LATER, *words)

    @pytest.mark.slow
    def test_loading(self):
        """A server that is loading its data has another error than one that is down."""
        with servers.start("valkey", "--enable-debug-command", "local", guarded=False) as server:
            client = server.redis()
            client.execute_command("DEBUG", "POPULATE", "100000")
            client.config_set("key-load-delay", 1000)  # far too long: until it has been seen
            client.config_set("loading-process-events-interval-bytes", 1024)
            other = server.redis()
            other.ping()
            load = threading.Thread(target=self.reload, args=(client,))
            load.start()
            error = None
            deadline = time.monotonic() + DEADLINE_S
            while error is None and time.monotonic() < deadline:
                try:
                    other.llen("l")
                except redis.RedisError as refused:
                    error = map_error(refused, sent=True)
            other.config_set("key-load-delay", 0)
            load.join()
            words = ("is loading its data; try again in a moment", "LOADING")
            self.check(error, LoadingError, RetryRule.LATER, *words)

    @staticmethod
    def reload(client):
        client.execute_command("DEBUG", "RELOAD")


@each("sent", [False, True])
@each(
    "reply, kind",
    [
        ("TRYAGAIN Multiple keys request during rehashing of slot", ClusterMovingError),
        ("CLUSTERDOWN The cluster is down", ClusterMovingError),
        ("CLUSTERDOWN Hash slot not served", SlotUnservedError),
        ("NOAUTH Authentication required.", LoginError),
        ("ERR max number of clients reached", UnavailableError),
        ("ERR invalid password", LoginError),
        ("BUSYGROUP Consumer Group name already exists", ServerError),
        ("NOSCRIPT No matching script. Please use EVAL.", ScriptsNotLoadedError),
        ("", ServerError),
    ],
)
def test_error_replies_are_definite(reply, kind, sent):
    """An error reply is mapped by its code, whether or not the call was sent."""
    error = map_error(BaseParser.parse_error(reply), sent=sent)
    assert type(error) is kind


@each(
    "reply, address, asking",
    [
        ("MOVED 866 10.0.0.1:6379", Address("10.0.0.1", 6379), False),
        ("MOVED 866 :6379", Address("", 6379), False),
        ("MOVED 866 ::1:6379", Address("::1", 6379), False),
        ("ASK 866 node.example:6379", Address("node.example", 6379), True),
    ],
)
def test_redirections_name_the_node(reply, address, asking):
    """MOVED and ASK name a slot and its node; ASK only while the slot moves."""
    error = map_error(BaseParser.parse_error(reply), sent=True)
    assert isinstance(error, RedirectedError)
    assert (error.slot, error.address, error.asking) == (866, address, asking)
    assert error.retry is RetryRule.LATER


@pytest.mark.parametrize(
    "broken",
    [
        redis.ConnectionError("Connection closed by server."),
        redis.TimeoutError("Timeout reading from socket"),
        ConnectionResetError(104, "Connection reset by peer"),
        BrokenPipeError(32, "Broken pipe"),
        TimeoutError("timed out"),
        ssl.SSLEOFError(8, "EOF occurred in violation of protocol"),
        OSError(24, "Too many open files"),
        EOFError(),
    ],
    ids=lambda error: type(error).__name__,
)
def test_a_broken_connection_is_definite_only_before_sending(broken):
    """A call that was not sent did not run and can be retried later; one that was sent is in doubt."""
    before = map_error(broken, sent=False)
    assert type(before) is UnavailableError
    assert before.retry is RetryRule.LATER
    assert "nothing was sent" in str(before)
    after = map_error(broken, sent=True)
    assert type(after) is InDoubtError
    assert after.retry is RetryRule.REPEAT
    assert "repeat only the identical call" in str(after)


def test_bytes_that_are_not_a_reply():
    """Garbage during the handshake means another kind of server; garbage after a call leaves it in doubt."""
    garbage = InvalidResponse("Protocol error, got 'H' as reply type byte")
    assert type(map_error(garbage, sent=False)) is UnsupportedServerError
    assert type(map_error(garbage, sent=True)) is InDoubtError


def test_a_mapped_error_stays_itself():
    """Mapping an error twice changes nothing."""
    error = BusyError("x")
    assert map_error(error, sent=True) is error


def test_texts_are_bounded_and_printable():
    """A reply of any length and content is cut and escaped."""
    error = map_error(redis.ResponseError("ERR \x1b[2J\n" + "x" * 10_000), sent=True)
    assert len(str(error)) < 400
    assert str(error).isprintable()


def test_a_call_that_only_reads_leaves_nothing_in_doubt():
    """Whatever became of it, nothing was changed; a plain command or a script says so itself."""
    error = map_error(redis.TimeoutError("Timeout reading from socket"), sent=True, reads=True)
    assert type(error) is UnavailableError
    assert str(error) == (
        "the server did not answer a call that only reads, so nothing was changed; try again "
        "(Timeout reading from socket)"
    )
