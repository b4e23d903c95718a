"""Connections to Redis that send each call once.

redis-py 8 retries a call ten times when its reply is lost, which stores an RPUSH twice; it waits 5 seconds for a reply,
so that a longer BLPOP runs eleven times; it speaks RESP3. `ConnectionFactory` is the only place that makes connections,
and switches all of that off: the caller decides what a lost reply means (see `qworker.store.server_errors`). For
Sentinel and Cluster, `qworker.store.topology` finds the server: redis-py's clients for them retry as well.

Why RESP2: its replies are bytes, int, list and None, as Lua returns them. RESP3 turns pairs into dicts and scores into
floats depending on the command, needs HELLO first, and can push messages between two replies.
"""

from __future__ import annotations

import math
import re
import time
from collections.abc import Callable, Iterable
from typing import Any, Final, cast

import msgspec
from redis import ConnectionPool, Redis
from redis.asyncio.retry import Retry as AsyncRetry
from redis.backoff import NoBackoff
from redis.connection import (
    AbstractConnection,
)
from redis.driver_info import DriverInfo
from redis.exceptions import RedisError, ResponseError
from redis.retry import Retry

from qworker.errors import (
    InvalidOptionError,
    QworkerError,
    ServerError,
    UnavailableError,
    UnsupportedServerError,
)
from qworker.store.hello import ASK_RUN, ASK_SERVER, Hello, check_server, run_id_of
from qworker.store.nodes import Address
from qworker.store.searching import SharedSearch, search
from qworker.store.server_errors import is_noscript, map_error
from qworker.store.topology import Key, Question, topology_of
from qworker.store.transport import address_settings, connection_classes, transport_settings
from qworker.store.url import ServerURL
from qworker.telemetry.logger import logger

__all__ = [
    "MAX_BLOCK_S",
    "ConnectionFactory",
    "ServerConnection",
    "ServerURL",
    "is_noscript",
    "map_error",
]

#: The longest wait of a blocking command, in seconds. The reply timeout is twice that.
MAX_BLOCK_S: Final = 2.0

_log = logger(__name__)

#: The least time for a question when the time of the whole search is up.
_LEAST_QUESTION_S: Final = 0.05
_CLIENT_NAME: Final = re.compile(r"[!-~]{1,128}")


class ServerConnection(msgspec.Struct, frozen=True):
    """A connection to a server."""

    connection: Any  # most of redis-py's connection has no types
    address: Address
    client_id: int
    """The server's number for the connection; it rises with every connection while the server runs."""
    run_id: str = ""
    """Identifies the run of the server, from its start to its end; '' if the server does not say."""


class ConnectionFactory:
    """Opens connections to the servers of one URL; keeps none, so you can use it after a fork.

    A connection cannot be used after a fork: parent and child would read each other's replies. Open new ones in the
    child and drop the inherited objects; that does not affect the parent's sockets.
    """

    def __init__(
        self,
        url: str | ServerURL,
        *,
        connect_timeout_s: float = 2.0,
        reply_timeout_s: float = 2 * MAX_BLOCK_S,
        name: str | None = None,
    ) -> None:
        """Check the options; does not connect.

        `connect_timeout_s` bounds the connect to each address of the host, `reply_timeout_s` the wait for each piece
        of a reply; a blocking command must end a round trip earlier. `name` is shown by CLIENT LIST (default
        "qworker"): printable ASCII without spaces. Raises `InvalidOptionError`.
        """
        self.url = ServerURL.parse(url)
        if self.url.scheme == "embedded":
            raise InvalidOptionError(
                "url",
                "names an embedded store, not its socket",
                "pass it through resolve_url of qworker.store.embedded.store",
            )
        name = "qworker" if name is None else name
        if _CLIENT_NAME.fullmatch(name) is None:
            raise InvalidOptionError(
                "name", f"{name!a} is not a client name", "printable ASCII without spaces"
            )
        self._topology = topology_of(self.url)
        self._shared_search = SharedSearch(self._topology)
        #: Seconds for each piece of a reply.
        self.reply_timeout_s = _seconds(reply_timeout_s, "reply_timeout_s")
        #: False once the server has refused INFO to this user.
        self._asks_run = True
        self._settings = {
            **transport_settings(self.url),
            "db": self.url.db,
            "username": self.url.username,
            "password": self.url.password,
            "socket_connect_timeout": _seconds(connect_timeout_s, "connect_timeout_s"),
            "socket_timeout": self.reply_timeout_s,
            "retry_on_timeout": False,
            "retry_on_error": [],
            "health_check_interval": 0,
            "protocol": 2,
            "decode_responses": False,
            "client_name": name,
            # LIB-NAME of CLIENT LIST; a LIB-VER would cost another round trip per connection.
            "driver_info": DriverInfo(name="qworker", lib_version=None),
        }
        if self.url.insecure:
            _log.warning("tls_verification_off", url=str(self.url))

    def __repr__(self) -> str:
        return f"ConnectionFactory({str(self.url)!r})"

    @property
    def clustered(self) -> bool:
        """Whether the servers are a Cluster: then every call names a key, and two queues need two calls."""
        return self.url.clustered

    # -- which server --------------------------------------------------------------------------

    def node(self, key: Key | None = None) -> Address | None:
        """Return the server for calls with this key; None if it is not known yet."""
        return self._topology.node(key)

    def last_node(self, key: Key | None = None) -> Address | None:
        """Return the server that was last known for this key, even if calls have to search for it again.

        Shows which server caused the failure of a call. None only before the first search, and for a master that
        Sentinels have to name again: then all calls share one server.
        """
        return self._topology.last_node(key)

    def locate(self, key: Key | None = None, within_s: float | None = None) -> Address:
        """Return the server for calls with this key; asks Sentinels or nodes if necessary. Raises `ServerError`.

        `within_s`: about how long to search; None for up to 1.25 s per server that is asked.
        """
        node = self._topology.node(key)
        if node is not None:
            return node
        left_s = _time_left(within_s)
        return search(self._topology, key, lambda question: self._ask(question, left_s()))

    async def alocate(self, key: Key | None = None, within_s: float | None = None) -> Address:
        """Return the server for calls with this key, as `locate` does; tasks of an event loop share a search."""
        node = self._topology.node(key)
        if node is not None:
            return node
        left_s = _time_left(within_s)
        return await self._shared_search.find(
            key, lambda question: self._aask(question, left_s()), left_s
        )

    def masters(self) -> tuple[Address, ...]:
        """Return all servers that have slots, or the only server. Raises `ServerError`."""
        self.locate()
        return self._topology.masters()

    async def amasters(self) -> tuple[Address, ...]:
        """Return all servers that have slots, as `masters` does."""
        await self.alocate()
        return self._topology.masters()

    def failed(self, error: ServerError, address: Address) -> bool:
        """Learn from the error of a call to a server; returns whether to drop the connection."""
        return self._topology.failed(error, address)

    def abandoned(self, addresses: Iterable[Address]) -> list[Address]:
        """Return those of `addresses` that get no more calls."""
        masters = self._topology.masters()
        return [address for address in addresses if address not in masters]

    # -- connecting ----------------------------------------------------------------------------

    def connect(self, key: Key | None = None) -> AbstractConnection:
        """Open a connection to the server for a key, authenticated and with its database selected; you disconnect it.

        Raises `UnsupportedServerError` for an old server, `ReadOnlyError` if Sentinels name a replica,
        `InvalidOptionError` if the server has no such database, else the fitting `ServerError`, mostly
        `UnavailableError`.

        Drop a connection that has raised an error, and call `connect` again: redis-py would silently reconnect at its
        next `send_packed_command`, without these checks.
        """
        return cast(AbstractConnection, self.open(self.locate(key)).connection)

    def open(self, address: Address, within_s: float | None = None) -> ServerConnection:
        """Open a connection to one server, as `connect` does; `within_s` can shorten the timeout of each step."""
        try:
            settings = {**self._sync_settings(), **self._timeouts(within_s)}
            server, hello = self._open(address, settings, ask_run=self._asks_run)
            server.connection.socket_timeout = self.reply_timeout_s
            server.connection._sock.settimeout(self.reply_timeout_s)
            try:
                self._accept(hello, address)
            except BaseException:
                server.connection.disconnect()
                raise
        except UnavailableError as error:
            self._topology.failed(error, address)
            raise
        return server

    async def aopen(self, address: Address, within_s: float | None = None) -> ServerConnection:
        """Open a connection to one server for asyncio, as `open` does."""
        try:
            settings = {**self._async_settings(), **self._timeouts(within_s)}
            server, hello = await self._aopen(address, settings, ask_run=self._asks_run)
            server.connection.socket_timeout = self.reply_timeout_s
            try:
                self._accept(hello, address)
            except BaseException:
                await server.connection.disconnect(nowait=True)
                raise
        except UnavailableError as error:
            self._topology.failed(error, address)
            raise
        return server

    def redis(self, key: Key | None = None) -> Redis:
        """Make a redis-py client with its own pool, for reads such as INFO and SCAN; you close it.

        It has the same settings, but raises redis-py's errors (see `map_error`), does not check the server's version,
        and stays with the server that has the key now.
        """
        address = self.locate(key)
        pool = ConnectionPool(
            connection_classes(self.url)[0],
            **self._sync_settings(),
            **address_settings(self.url, address),
        )
        return Redis.from_pool(pool)

    def _open(
        self, address: Address, settings: dict[str, Any], *, ask_run: bool = False
    ) -> tuple[ServerConnection, Hello]:
        # Any: most of redis-py's connection has no types.
        connection: Any = connection_classes(self.url)[0](
            **settings, **address_settings(self.url, address)
        )
        try:
            connection.connect()
            # Version and run in one round trip.
            connection.send_packed_command([ASK_SERVER + ASK_RUN if ask_run else ASK_SERVER])
            hello = Hello.of(connection.read_response())
            run_id = ""
            if ask_run:
                try:
                    run_id = self._run_of(connection.read_response())
                except ResponseError as error:
                    run_id = self._run_of(error)
        except (RedisError, OSError) as error:
            connection.disconnect()
            raise self._connect_error(error, address) from error
        except BaseException:
            connection.disconnect()
            raise
        return ServerConnection(connection, address, hello.client_id, run_id), hello

    async def _aopen(
        self, address: Address, settings: dict[str, Any], *, ask_run: bool = False
    ) -> tuple[ServerConnection, Hello]:
        connection: Any = connection_classes(self.url)[1](
            **settings, **address_settings(self.url, address)
        )
        try:
            await connection.connect()
            await connection.send_packed_command(ASK_SERVER + ASK_RUN if ask_run else ASK_SERVER)
            hello = Hello.of(await connection.read_response())
            run_id = ""
            if ask_run:
                try:
                    run_id = self._run_of(await connection.read_response())
                except ResponseError as error:
                    run_id = self._run_of(error)
        except (RedisError, OSError) as error:
            await connection.disconnect(nowait=True)
            raise self._connect_error(error, address) from error
        except BaseException:
            # A cancelled connect leaves an open socket behind in redis-py.
            await connection.disconnect(nowait=True)
            raise
        return ServerConnection(connection, address, hello.client_id, run_id), hello

    def _run_of(self, reply: Any) -> str:
        """Read the server's run id. After a refusal do not ask again: the server logs every one."""
        if isinstance(reply, ResponseError):
            self._asks_run = False
            return ""
        return run_id_of(reply)

    def _accept(self, hello: Hello, address: Address) -> None:
        check_server(hello, str(address), clustered=self.clustered)
        self._topology.accept(hello, address)

    def _ask(self, question: Question, within_s: float | None) -> Any:
        settings = {**self._sync_settings(), **self._asking(question, within_s)}
        server, hello = self._open(question.address, settings)
        connection = server.connection
        try:
            self._check_asked(question, hello)
            connection.send_packed_command(connection.pack_command(*question.words))
            return connection.read_response()
        except (RedisError, OSError) as error:
            raise map_error(error, sent=True) from error
        finally:
            connection.disconnect()

    async def _aask(self, question: Question, within_s: float | None) -> Any:
        settings = {**self._async_settings(), **self._asking(question, within_s)}
        server, hello = await self._aopen(question.address, settings)
        connection = server.connection
        try:
            self._check_asked(question, hello)
            await connection.send_packed_command(connection.pack_command(*question.words))
            return await connection.read_response()
        except (RedisError, OSError) as error:
            raise map_error(error, sent=True) from error
        finally:
            await connection.disconnect(nowait=True)

    def _asking(self, question: Question, within_s: float | None) -> dict[str, Any]:
        """Return the settings that differ for a connection that asks one question."""
        settings = self._timeouts(
            min(question.within_s, math.inf if within_s is None else within_s)
        )
        if question.sentinel:
            user, password = self.url.sentinel_username, self.url.sentinel_password
            settings |= {"db": 0, "username": user, "password": password}
        return settings

    def _timeouts(self, within_s: float | None) -> dict[str, Any]:
        """Return the timeouts of a connection, capped at `within_s`."""
        names = ("socket_connect_timeout", "socket_timeout")
        if within_s is None:
            return {name: self._settings[name] for name in names}
        return {name: min(within_s, self._settings[name]) for name in names}

    def _check_asked(self, question: Question, hello: Hello) -> None:
        if not question.sentinel:
            check_server(hello, str(question.address), clustered=True)
        elif hello.mode != "sentinel":
            raise UnsupportedServerError(
                f"{question.address} is not a Sentinel; redis+sentinel:// takes the addresses of Sentinels"
            )

    def _sync_settings(self) -> dict[str, Any]:
        return {**self._settings, "retry": Retry(NoBackoff(), 0)}

    def _async_settings(self) -> dict[str, Any]:
        return {**self._settings, "retry": AsyncRetry(NoBackoff(), 0)}

    def _connect_error(self, error: Exception, address: Address) -> QworkerError:
        if "DB index is out of range" in str(error):
            return InvalidOptionError(
                "url", f"names database {self.url.db}", "the server has fewer; 0 always exists"
            )
        mapped = map_error(error, sent=False)
        # redis-py says "Timeout connecting to server" without its name.
        if str(address) not in str(mapped):
            mapped.args = (f"{address}: {mapped}",)
        return mapped


def _time_left(within_s: float | None) -> Callable[[], float | None]:
    """Return what says how many of the seconds from now are left, at least those of a question."""
    if within_s is None:
        return lambda: None
    deadline = time.monotonic() + within_s
    return lambda: max(_LEAST_QUESTION_S, deadline - time.monotonic())


def _seconds(value: float, field: str) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise InvalidOptionError(field, f"is {type(value).__name__}", "give a number of seconds")
    if not (math.isfinite(value) and value > 0):
        raise InvalidOptionError(field, f"{value} is out of range", "give seconds, more than 0")
    return float(value)
