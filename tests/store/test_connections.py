"""Connections: the traps of redis-py's defaults, how ours avoid them, and the errors of failed connects."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import http.server
import os
import signal
import socket
import threading
import time

import pytest
import redis
import redis.asyncio
from structlog.testing import capture_logs

from qworker.errors import (
    InDoubtError,
    InvalidOptionError,
    LoginError,
    UnavailableError,
    UnsupportedServerError,
)
from qworker.store.connections import MAX_BLOCK_S, ConnectionFactory, is_noscript, map_error
from qworker.store.hello import Hello, check_server
from qworker.store.url import ServerURL
from tests import servers
from tests.chaos import ChaosProxy
from tests.store.connecting import aconnect
from tests.tables import each
from tests.timing import DEADLINE_S, Watch, looks

SECRET = "S3CR3T"


@pytest.fixture(scope="module")
def store_url():
    """The URL of a standalone server, whatever the topology of the shared one."""
    with servers.start("valkey", guarded=False) as server:
        yield server.url


@pytest.fixture(scope="module", params=["valkey", "redis"])
def engine_url(request):
    with servers.start(request.param, guarded=False) as server:
        yield server.url


@contextlib.contextmanager
def connected(factory):
    """Open a connection of `factory`, and close it at the end."""
    connection = factory.connect()
    try:
        yield connection
    finally:
        connection.disconnect()


def call(connection, *command):
    """Send one command and read its reply, mapping errors as a caller does."""
    try:
        connection.send_packed_command(connection.pack_command(*command))
        return connection.read_response()
    except (redis.RedisError, OSError) as error:
        raise map_error(error, sent=True) from error


async def acall(connection, *command):
    try:
        await connection.send_packed_command(connection.pack_command(*command))
        return await connection.read_response()
    except (redis.RedisError, OSError) as error:
        raise map_error(error, sent=True) from error


def run(url, *command):
    """Run one command over a new connection."""
    with connected(ConnectionFactory(url)) as connection:
        return call(connection, *command)


@pytest.fixture
def proxy(store_url):
    with ChaosProxy(store_url) as proxy:
        yield proxy


class TestALostReply:
    """Trap: redis-py retries a call up to ten times when its reply is lost."""

    def test_ours_stores_a_push_once(self, store_url, proxy, queue_name):
        """A cut reply leaves the call in doubt; the push is stored once."""
        with connected(ConnectionFactory(proxy.url)) as connection:
            proxy.cut_next_reply(of=b"RPUSH")
            with pytest.raises(InDoubtError, match="may or may not have run"):
                call(connection, "RPUSH", queue_name, "x")
        assert run(store_url, "LLEN", queue_name) == 1

    def test_ours_stores_a_push_once_in_asyncio(self, store_url, proxy, queue_name):
        """The same over an asyncio connection."""

        async def push():
            connection = await aconnect(ConnectionFactory(proxy.url))
            proxy.cut_next_reply(of=b"RPUSH")
            with pytest.raises(InDoubtError):
                await acall(connection, "RPUSH", queue_name, "x")

        asyncio.run(push())
        assert run(store_url, "LLEN", queue_name) == 1

    def test_our_client_stores_a_push_once(self, store_url, proxy, queue_name):
        """The redis-py client that the factory makes does not retry, either."""
        proxy.cut_next_reply(of=b"RPUSH")
        client = ConnectionFactory(proxy.url).redis()
        with pytest.raises(redis.ConnectionError), client:
            client.rpush(queue_name, "x")
        assert run(store_url, "LLEN", queue_name) == 1

    def test_redis_py_stores_it_twice(self, store_url, proxy, queue_name):
        """redis-py's defaults cause no error and two items."""
        proxy.cut_next_reply(of=b"RPUSH")
        with redis.Redis(host="127.0.0.1", port=proxy.port) as client:
            assert client.rpush(queue_name, "x") == 2
        assert run(store_url, "LLEN", queue_name) == 2

    @pytest.mark.slow
    @pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
    def test_redis_py_asyncio_stores_it_twice(self, store_url, proxy, queue_name):
        """redis.asyncio does so, too."""

        async def push():
            async with redis.asyncio.Redis(host="127.0.0.1", port=proxy.port) as client:
                return await client.rpush(queue_name, "x")

        proxy.cut_next_reply(of=b"RPUSH")
        assert asyncio.run(push()) == 2
        gc.collect()  # it also leaves the broken connection open

    def test_a_frozen_server_gets_a_push_once(self):
        """A server that freezes for longer than the reply timeout stores ours once, and redis-py's more than once."""
        with servers.start("valkey", guarded=False) as server:
            theirs = redis.Redis(unix_socket_path=server.socket, socket_timeout=0.1)
            ours = ConnectionFactory(server.url, reply_timeout_s=0.1)
            with theirs, connected(ours) as connection:
                theirs.ping()
                os.kill(server.pid, signal.SIGSTOP)
                with pytest.raises(InDoubtError, match="Timeout reading"):
                    call(connection, "RPUSH", "ours", "x")
                thaw = threading.Timer(0.3, os.kill, (server.pid, signal.SIGCONT))
                thaw.start()
                theirs.rpush("theirs", "x")
                thaw.join()
                assert theirs.llen("ours") == 1
                assert theirs.llen("theirs") > 1


class TestBlocking:
    """Trap: a reply timeout shorter than the block, such as redis-py's 5 s with a BLPOP of 6 s."""

    def test_ours_outlives_the_longest_block(self):
        """The default reply timeout is twice the longest block."""
        connection = ConnectionFactory("redis://h")._settings
        assert connection["socket_timeout"] == 2 * MAX_BLOCK_S == 4.0

    def test_ours_waits_for_the_block(self, store_url, queue_name):
        """A block that ends before the reply timeout returns nil."""
        with connected(ConnectionFactory(store_url, reply_timeout_s=10)) as connection:
            started = time.monotonic()
            assert call(connection, "BLPOP", queue_name, "0.1") is None
            assert time.monotonic() - started >= 0.1

    def test_ours_reports_a_block_that_is_too_long(self, store_url, queue_name):
        """A longer block ends at the reply timeout."""
        with connected(ConnectionFactory(store_url, reply_timeout_s=0.1)) as connection:
            started = time.monotonic()
            with pytest.raises(InDoubtError):
                call(connection, "BLPOP", queue_name, "100")
            assert time.monotonic() - started < DEADLINE_S

    def test_redis_py_blocks_again_and_again(self, store_url, proxy, queue_name):
        """redis-py hides the timeout, reconnects and blocks again, with its own 5 s for minutes."""
        with redis.Redis(host="127.0.0.1", port=proxy.port, socket_timeout=0.05) as client:
            waiting = threading.Thread(target=client.blpop, args=(queue_name, 0.1))
            waiting.start()
            deadline = time.monotonic() + DEADLINE_S
            while proxy.accepted < 3:
                assert time.monotonic() < deadline
                time.sleep(0.005)
            assert waiting.is_alive()
            while waiting.is_alive():
                run(store_url, "RPUSH", queue_name, "x")
                waiting.join(0.01)


class TestReplies:
    """Trap: the replies of RESP3 depend on the command, and redis-py's parsers fail on some."""

    def test_ours_are_bytes_and_lists(self, engine_url, queue_name):
        """Replies are bytes, int, list and None."""
        with connected(ConnectionFactory(engine_url)) as connection:
            call(connection, "ZADD", queue_name, "1.5", "a")
            assert call(connection, "ZRANGE", queue_name, "0", "-1", "WITHSCORES") == [b"a", b"1.5"]
            assert call(connection, "ZSCORE", queue_name, "none") is None
            assert call(connection, "EVAL", "return {1, false, 'x'}", "0") == [1, None, b"x"]
            assert call(connection, "CONFIG", "GET", "port") == [b"port", b"0"]

    def test_redis_py_gives_dicts(self, store_url):
        """A raw connection with redis-py's defaults gives a dict for the same command."""
        theirs = redis.UnixDomainSocketConnection(ServerURL.parse(store_url).path)
        theirs.connect()
        try:
            assert call(theirs, "CONFIG", "GET", "port") == {b"port": b"0"}
        finally:
            theirs.disconnect()

    def test_a_user_with_few_rights_can_connect(self):
        """A connection needs the right to CLIENT SETNAME and no other."""
        with servers.start("redis", guarded=False) as server:
            rules = ("on", ">pw", "+ping", "+client|setname")
            server.redis().execute_command("ACL", "SETUSER", "u", *rules)
            assert run(server.url.replace("unix://", "unix://u:pw@"), "PING") == b"PONG"

    def test_ours_reads_command_docs(self, store_url):
        """COMMAND DOCS is a reply like any other; redis-py's client fails on it."""
        assert run(store_url, "COMMAND", "DOCS", "GET")[0] == b"get"
        with (
            redis.Redis(unix_socket_path=ServerURL.parse(store_url).path) as theirs,
            pytest.raises(TypeError),
        ):
            theirs.execute_command("COMMAND", "DOCS", "GET")


class TestCancelling:
    """Trap: a cancelled BLPOP removes its item from the server and loses it."""

    @staticmethod
    async def cancelled(proxy, store_url, queue_name, waiting):
        """Cancel `waiting` once the server has taken the item of the queue, while its reply is on the way."""
        proxy.on_request = lambda data: setattr(proxy, "blackhole", True)
        task = asyncio.ensure_future(waiting)
        for _ in looks():
            await asyncio.sleep(0)
            if run(store_url, "LLEN", queue_name) == 0:
                break
        for _ in range(10):
            await asyncio.sleep(
                0
            )  # it reads by then: asyncio.wait_for of Python 3.11 loses a cancel while it writes
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        proxy.on_request = None
        proxy.heal()

    def test_ours_closes_the_connection(self, store_url, proxy, queue_name):
        """A cancelled call closes its connection, so that its late reply answers no other; BLMOVE keeps the item."""
        run(store_url, "RPUSH", queue_name, "x")

        async def cancel():
            connection = await aconnect(ConnectionFactory(proxy.url))
            move = ("BLMOVE", queue_name, f"{queue_name}:leased", "LEFT", "RIGHT", "1")
            await self.cancelled(proxy, store_url, queue_name, acall(connection, *move))
            assert not connection.is_connected

        asyncio.run(cancel())
        assert run(store_url, "LRANGE", f"{queue_name}:leased", "0", "-1") == [b"x"]

    def test_redis_py_loses_the_item(self, store_url, proxy, queue_name):
        """With redis-py's BLPOP, cancelled at the same moment, the item is gone."""
        run(store_url, "RPUSH", queue_name, "x")

        async def cancel():
            async with redis.asyncio.Redis(host="127.0.0.1", port=proxy.port) as client:
                await client.ping()
                await self.cancelled(
                    proxy, store_url, queue_name, client.blpop(queue_name, timeout=1)
                )

        asyncio.run(cancel())
        assert run(store_url, "LLEN", queue_name) == 0

    def test_a_cancelled_connect_leaves_no_connection(self, proxy):
        """A connect that is cancelled during the handshake closes its connection."""

        async def cancel():
            proxy.delay_s = 0.1
            task = asyncio.ensure_future(aconnect(ConnectionFactory(proxy.url)))
            await asyncio.sleep(0.05)
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task

        asyncio.run(cancel())


class TestProcesses:
    """Forks and signals."""

    def test_a_forked_child_can_drop_an_inherited_connection(self, store_url):
        """The parent's connection still works after a child has dropped its copy."""
        with connected(ConnectionFactory(store_url)) as connection:
            child = os.fork()
            if child == 0:
                connection.disconnect()
                os._exit(0)
            assert os.waitpid(child, 0)[1] == 0
            assert call(connection, "PING") == b"PONG"

    def test_a_factory_works_after_a_fork(self, store_url):
        """A child opens its own connections with the parent's factory."""
        factory = ConnectionFactory(store_url)
        with connected(factory) as connection:
            child = os.fork()
            if child == 0:
                with connected(factory) as own:
                    os._exit(0 if call(own, "PING") == b"PONG" else 1)
            assert os.waitpid(child, 0)[1] == 0
            assert call(connection, "PING") == b"PONG"

    @pytest.mark.bad_input("surroundings: signal in the middle of a receive")
    def test_a_signal_does_not_break_a_blocking_call(self, store_url, queue_name):
        """After a signal handler has returned, the call continues."""
        seen = []
        previous = signal.signal(signal.SIGTERM, lambda *_: seen.append(time.monotonic()))
        try:
            with connected(ConnectionFactory(store_url)) as connection:
                threading.Timer(0.05, os.kill, (os.getpid(), signal.SIGTERM)).start()
                assert call(connection, "BLPOP", queue_name, "0.2") is None
        finally:
            signal.signal(signal.SIGTERM, previous)
        assert len(seen) == 1


class TestSettings:
    """The settings of a connection."""

    def test_client_list_names_us(self, engine_url):
        """CLIENT LIST shows the name, RESP2, and the library if the server records it."""
        factory = ConnectionFactory(engine_url, name="qworker:shop:reaper")
        with connected(factory) as connection:
            fields = dict(
                field.split("=", 1) for field in call(connection, "CLIENT", "INFO").decode().split()
            )
        assert fields["name"] == "qworker:shop:reaper"
        assert fields.get("resp", "2") == "2"
        assert fields.get("lib-name", "qworker") == "qworker"

    def test_keepalive_is_on(self, proxy):
        """A TCP connection probes a silent peer after 30 s, sync and asyncio."""
        with connected(ConnectionFactory(proxy.url)) as connection:
            self.check_keepalive(connection._sock)

        async def check():
            connection = await aconnect(ConnectionFactory(proxy.url))
            self.check_keepalive(connection._writer.get_extra_info("socket"))
            await connection.disconnect()

        asyncio.run(check())

    @staticmethod
    def check_keepalive(sock):
        assert sock.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE)
        idle = getattr(socket, "TCP_KEEPIDLE", getattr(socket, "TCP_KEEPALIVE", None))
        assert sock.getsockopt(socket.IPPROTO_TCP, idle) == 30
        assert sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPCNT) == 3

    def test_the_database_is_selected(self, store_url, queue_name):
        """?db=2 is selected on connect."""
        run(f"{store_url}?db=2", "SET", queue_name, "2")
        assert run(store_url, "GET", queue_name) is None
        assert run(f"{store_url}?db=2", "GET", queue_name) == b"2"

    def test_no_such_database(self, store_url):
        """A database that the server does not have is a wrong URL."""
        message = r"^url: names database 16; the server has fewer; 0 always exists$"
        with pytest.raises(InvalidOptionError, match=message):
            ConnectionFactory(f"{store_url}?db=16").connect()

    @each("value", [0, -1, float("nan"), float("inf"), True, "2", None])
    @each("field", ["connect_timeout_s", "reply_timeout_s"])
    def test_refuses_timeouts(self, field, value):
        """A timeout is a number of seconds above 0."""
        with pytest.raises(InvalidOptionError) as caught:
            ConnectionFactory("redis://h", **{field: value})
        assert caught.value.field == field

    @each("name", ["", "a b", "a\nb", "ä", "x" * 129])
    def test_refuses_names(self, name):
        """A client name is printable ASCII without spaces, as CLIENT SETNAME requires."""
        with pytest.raises(InvalidOptionError, match="is not a client name"):
            ConnectionFactory("redis://h", name=name)

    def test_refuses_an_unresolved_embedded_url(self):
        """`embedded:` names a directory; its socket comes from qworker.store.embedded.store."""
        with pytest.raises(InvalidOptionError, match="pass it through"):
            ConnectionFactory("embedded:/tmp/x")

    def test_warns_of_insecure(self):
        """Every factory logs that verification is off, without the password."""
        with capture_logs() as logs:
            ConnectionFactory(f"rediss://u:{SECRET}@h?insecure=true")
        assert logs == [
            {
                "event": "tls_verification_off",
                "log_level": "warning",
                "url": "rediss://u:***@h:6379/0?insecure=true",
            }
        ]

    def test_never_shows_the_password(self, store_url):
        """Neither the factory nor its clients and connections show a password."""
        factory = ConnectionFactory(store_url.replace("unix://", f"unix://:{SECRET}@"))
        with factory.redis() as client:
            for shown in (factory, client, client.connection_pool):
                assert SECRET not in repr(shown)
                assert SECRET not in str(shown)


class TestAFailedConnect:
    """The errors of connecting, the same for sync and asyncio."""

    @staticmethod
    def both(url, kind, match, **options):
        for connect in (
            lambda: ConnectionFactory(url, **options).connect(),
            lambda: asyncio.run(aconnect(ConnectionFactory(url, **options))),
        ):
            with pytest.raises(kind, match=match) as caught:
                connect()
            error = caught.value
            while error is not None:
                assert SECRET not in f"{error}{error!r}"
                error = error.__cause__ or error.__context__

    def test_no_server_listens(self):
        """The error of a port without a server, or of a missing socket, names the address."""
        with socket.socket() as unused:
            unused.bind(("127.0.0.1", 0))
            port = unused.getsockname()[1]
            self.both(
                f"redis://:{SECRET}@127.0.0.1:{port}",
                UnavailableError,
                f"not reached, nothing was sent.*127.0.0.1:{port}",
            )
        self.both("unix:///nowhere/s", UnavailableError, "/nowhere/s")
        self.both("redis://no.such.host.invalid", UnavailableError, "no.such.host.invalid")

    def test_a_server_that_never_accepts(self):
        """A connect that hangs ends at the connect timeout."""
        with contextlib.ExitStack() as stack:
            listener = stack.enter_context(socket.socket())
            listener.bind(("127.0.0.1", 0))
            listener.listen(0)
            address = listener.getsockname()
            for _ in range(3):  # fill the queue of connections to accept
                filler = stack.enter_context(socket.socket())
                filler.setblocking(False)
                filler.connect_ex(address)
            watch = Watch(os.getpid())
            self.both(
                f"redis://127.0.0.1:{address[1]}",
                UnavailableError,
                f"^127.0.0.1:{address[1]}: .*Timeout connecting",
                connect_timeout_s=0.1,
            )
            # The two connects would take 4 s with the default.
            assert watch.passed_s() < 3

    def test_a_server_that_never_answers(self):
        """A handshake without replies ends at the reply timeout; no call was sent, so none is in doubt."""
        with socket.create_server(("127.0.0.1", 0)) as silent:
            port = silent.getsockname()[1]
            self.both(
                f"redis://:{SECRET}@127.0.0.1:{port}",
                UnavailableError,
                "Timeout reading",
                reply_timeout_s=0.1,
            )

    @pytest.mark.bad_input("server: too old, or another one")
    def test_another_kind_of_server(self):
        """The error of an HTTP server is another than that of a server that is down."""
        server = http.server.HTTPServer(("127.0.0.1", 0), http.server.BaseHTTPRequestHandler)
        server.RequestHandlerClass.log_message = lambda *_: None
        thread = threading.Thread(target=server.serve_forever, args=(0.01,))
        thread.start()
        try:
            self.both(
                f"redis://127.0.0.1:{server.server_port}",
                UnsupportedServerError,
                "does not speak the Redis protocol",
            )
        finally:
            server.shutdown()
            thread.join()
            server.server_close()

    def test_passwords(self):
        """A wrong and a missing password have different errors."""
        with servers.start("valkey", "--requirepass", "right") as server:
            wrong = server.url.replace("unix://", f"unix://:{SECRET}@")
            self.both(wrong, LoginError, "wrong user or password.*WRONGPASS")
            self.both(server.url, LoginError, "put user:password@ into the URL.*NOAUTH")
            assert run(server.url.replace("unix://", "unix://:right@"), "PING") == b"PONG"

    def test_a_password_for_a_server_without_one(self, store_url):
        """The error says that the server has no password."""
        url = store_url.replace("unix://", f"unix://:{SECRET}@")
        self.both(url, LoginError, "without any password configured|WRONGPASS")

    def test_a_server_that_quotes_the_password(self):
        """A server with a renamed AUTH quotes its arguments in the error; ours does not, nor does its cause."""
        with servers.start("redis", "--rename-command", "AUTH", "HIDDEN") as server:
            url = server.url.replace("unix://", f"unix://:{SECRET}@")
            self.both(url, UnsupportedServerError, "lacks or has renamed a command")

    def test_too_many_clients(self):
        """A server at its limit of clients is not reached; the broken connection may hide its error."""
        with servers.start("valkey", "--maxclients", "1", guarded=False) as server:
            client = server.redis()
            client.ping()
            self.both(server.url, UnavailableError, "maxclients|not reached")


class TestServerVersion:
    """Supported servers: Redis and Valkey from 7.0 on."""

    @pytest.mark.bad_input("server: too old, or another one")
    @each(
        "hello, message",
        [
            ([b"server", b"redis", b"version", b"6.2.14", b"proto", 2], "is redis 6.2.14; qworker"),
            # KeyDB 6.3.4 reports the Redis that it descends from.
            ([b"server", b"redis", b"version", b"6.3.4", b"proto", 2], "is redis 6.3.4; qworker"),
            (
                [b"server", b"redis", b"version", b"7.4.0", b"dragonfly_version", b"df-v1.27.1"],
                "is DragonflyDB df-v1.27.1; qworker needs Redis 7.0, Valkey 7.2, or newer",
            ),
            (
                [b"server", b"redis", b"version", b"7.0.0", b"mode", b"sentinel"],
                "is a Sentinel, which stores nothing; write redis.sentinel://h:1/<service>",
            ),
            (
                [b"server", b"redis", b"version", b"7.0.0", b"mode", b"cluster"],
                "is a node of a Cluster; write redis.cluster://h:1",
            ),
            ([b"server", b"thing", b"version", b"none"], "is thing none; qworker needs"),
        ],
    )
    def test_refuses(self, hello, message):
        """The error of an unsupported server names it."""
        with pytest.raises(UnsupportedServerError, match=f"^h:1 {message}"):
            check_server(Hello.of(hello), "h:1")

    def test_refuses_a_server_that_is_not_in_a_cluster(self):
        """A Cluster URL does not work for a standalone server."""
        hello = Hello.of([b"server", b"redis", b"version", b"7.0.0", b"mode", b"standalone"])
        with pytest.raises(
            UnsupportedServerError, match=r"^h:1 is not in a Cluster; write redis://"
        ):
            check_server(hello, "h:1", clustered=True)

    @pytest.mark.bad_input("server: too old, or another one")
    def test_a_refused_server_is_refused_at_every_connect(self, store_url, monkeypatch):
        """Every connect checks the server again, and closes the refused connection."""
        monkeypatch.setattr("qworker.store.hello.OLDEST_SERVER", (99, 0))
        factory = ConnectionFactory(store_url)
        for _ in range(2):
            with pytest.raises(UnsupportedServerError, match="is valkey 9"):
                factory.connect()
        with pytest.raises(UnsupportedServerError):
            asyncio.run(aconnect(factory))


def test_is_noscript(store_url):
    """Only NOSCRIPT is recognised: the caller loads the script and calls again."""
    with connected(ConnectionFactory(store_url)) as connection:
        for command, expected in (("EVALSHA", True), ("NOSUCH", False)):
            connection.send_packed_command(connection.pack_command(command, "f" * 40, "0"))
            with pytest.raises(redis.ResponseError) as caught:
                connection.read_response()
            assert is_noscript(caught.value) is expected
