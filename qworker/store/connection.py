"""Connections to Redis with settings of our own, and never with redis-py's.

redis-py 8 repeats a call ten times when its reply is lost, which stores an RPUSH twice; it gives every reply
5 seconds, which a longer BLPOP outlives eleven times over; it speaks RESP3. `ConnectionFactory` is the one place
that makes connections, and switches all of that off: a call is sent once, and whoever sent it decides what a lost
reply means (see `qworker.store.server_errors`). Which server it connects to, `qworker.store.topology` finds out; the
clients for Sentinel and Cluster that redis-py has repeat calls as well.

Why RESP2: its replies are bytes, int, list and None only, the shapes that Lua returns. RESP3 turns pairs into dicts
and scores into floats depending on the command, needs HELLO before anything else, and allows pushed messages between
two replies.
"""

from __future__ import annotations

import math
import re
import time
from collections.abc import Iterable
from typing import Any, Final, cast

import structlog
from redis import ConnectionPool, Redis
from redis.asyncio import ConnectionPool as AsyncConnectionPool
from redis.asyncio import Redis as AsyncRedis
from redis.asyncio import connection as aio
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
from qworker.store.lines import Line
from qworker.store.nodes import Address
from qworker.store.server_errors import is_noscript, map_error
from qworker.store.topology import Key, Question, topology_of
from qworker.store.transport import address_settings, connection_classes, transport_settings
from qworker.store.url import ServerURL

__all__ = ["MAX_BLOCK_S", "ConnectionFactory", "ServerURL", "is_noscript", "map_error"]

#: The longest that a blocking command may wait, in seconds. The reply timeout leaves as much again for the way back.
MAX_BLOCK_S: Final = 2.0

_log = structlog.get_logger(__name__)

#: A server that is asked where another one is has so long to answer: there are others to ask.
_LOOK_S: Final = 1.0
#: The last ones asked get so much at least.
_LEAST_S: Final = 0.05
_CLIENT_NAME: Final = re.compile(r"[!-~]{1,128}")


class ConnectionFactory:
    """Makes connections to the servers of one URL; holds none itself, so it may pass a fork.

    A connection may not: parent and child would read each other's replies. Whoever keeps connections makes new ones
    after a fork and only drops the inherited objects; dropping one in the child leaves the parent's socket alone.
    """

    def __init__(
        self,
        url: str | ServerURL,
        *,
        connect_timeout_s: float = 2.0,
        reply_timeout_s: float = 2 * MAX_BLOCK_S,
        name: str | None = None,
    ) -> None:
        """Check the options; nothing is connected.

        `connect_timeout_s` bounds the connect to each address of the host, `reply_timeout_s` the wait for each piece
        of a reply, both in seconds; a blocking command must end a round trip before the latter. `name` is what
        CLIENT LIST shows (default "qworker"): printable ASCII without spaces. Raises `InvalidOptionError`.
        """
        self.url = ServerURL.parse(url)
        if self.url.scheme == "embedded":
            raise InvalidOptionError(
                "url",
                "names an embedded store, not its socket",
                "pass it through qworker.store.embedded",
            )
        name = "qworker" if name is None else name
        if _CLIENT_NAME.fullmatch(name) is None:
            raise InvalidOptionError(
                "name", f"{name!a} is not a client name", "printable ASCII without spaces"
            )
        self._topology = topology_of(self.url)
        #: Seconds for each piece of a reply.
        self.reply_timeout_s = _seconds(reply_timeout_s, "reply_timeout_s")
        #: Whether the user may be told the server's run, as far as is known.
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
        """Whether the servers are a Cluster: then calls name a key, and keys of two queues need two calls."""
        return self.url.clustered

    # -- which server --------------------------------------------------------------------------

    def place(self, key: Key | None = None) -> Address | None:
        """The server for calls with this key, as far as it is known."""
        return self._topology.place(key)

    def locate(self, key: Key | None = None, within_s: float | None = None) -> Address:
        """The server for calls with this key; asks Sentinels or nodes where it is not known. Raises `ServerError`.

        `within_s`: how long to look for it, about; None for a second with each of those that are asked.
        """
        place = self._topology.place(key)
        if place is not None:
            return place
        search, answer = self._topology.search(key), None
        deadline = None if within_s is None else time.monotonic() + within_s
        while True:
            try:
                question = search.send(answer)
            except StopIteration as found:
                return cast(Address, found.value)
            try:
                answer = self._ask(question, _left_s(deadline))
            except ServerError as error:
                answer = error

    async def alocate(self, key: Key | None = None, within_s: float | None = None) -> Address:
        """The server for calls with this key, as `locate` finds it."""
        place = self._topology.place(key)
        if place is not None:
            return place
        search, answer = self._topology.search(key), None
        deadline = None if within_s is None else time.monotonic() + within_s
        while True:
            try:
                question = search.send(answer)
            except StopIteration as found:
                return cast(Address, found.value)
            try:
                answer = await self._aask(question, _left_s(deadline))
            except ServerError as error:
                answer = error

    def masters(self) -> tuple[Address, ...]:
        """Every server that has slots; the one server where there is but one. Raises `ServerError`."""
        self.locate()
        return self._topology.masters()

    async def amasters(self) -> tuple[Address, ...]:
        """Every server that has slots, as `masters` finds them."""
        await self.alocate()
        return self._topology.masters()

    def failed(self, error: ServerError, address: Address) -> bool:
        """Learn from what a call to a server raised; returns whether its connection is of no more use."""
        return self._topology.failed(error, address)

    def abandoned(self, addresses: Iterable[Address]) -> list[Address]:
        """Those of some servers that calls do not go to any more."""
        masters = self._topology.masters()
        return [each for each in addresses if each not in masters]

    # -- connecting ----------------------------------------------------------------------------

    def connect(self, key: Key | None = None) -> AbstractConnection:
        """Open a connection to the server for a key, authenticated, its database selected; the caller disconnects it.

        Each connect also checks the server's version (`UnsupportedServerError`), and behind Sentinels that it is a
        master. Raises the `ServerError` that fits, mostly `UnavailableError`, and `InvalidOptionError` if the server
        has no such database.

        A connection that broke would open itself again at its next `send_packed_command`, past these errors: drop a
        connection that raised, and call `connect` for another.
        """
        return cast(AbstractConnection, self.open(self.locate(key)).connection)

    async def aconnect(self, key: Key | None = None) -> aio.AbstractConnection:
        """Open a connection for asyncio; all else as in `connect`. Bound to the running loop."""
        address = await self.alocate(key)
        return cast(aio.AbstractConnection, (await self.aopen(address)).connection)

    def open(self, address: Address, within_s: float | None = None) -> Line:
        """Open a connection to one server, as `connect` does; `within_s` bounds each step of that, if it is shorter."""
        try:
            settings = {**self._sync_settings(), **self._timeouts(within_s)}
            line, hello = self._open(address, settings, ask_run=self._asks_run)
            line.connection.socket_timeout = self.reply_timeout_s
            line.connection._sock.settimeout(self.reply_timeout_s)
            try:
                self._accept(hello, address)
            except BaseException:
                line.connection.disconnect()
                raise
        except UnavailableError as error:
            self._topology.failed(error, address)
            raise
        return line

    async def aopen(self, address: Address, within_s: float | None = None) -> Line:
        """Open a connection to one server for asyncio, as `open` does."""
        try:
            settings = {**self._async_settings(), **self._timeouts(within_s)}
            line, hello = await self._aopen(address, settings, ask_run=self._asks_run)
            line.connection.socket_timeout = self.reply_timeout_s
            try:
                self._accept(hello, address)
            except BaseException:
                await line.connection.disconnect(nowait=True)
                raise
        except UnavailableError as error:
            self._topology.failed(error, address)
            raise
        return line

    def redis(self, key: Key | None = None) -> Redis:
        """Make a redis-py client with a pool of its own, for reads such as INFO and SCAN; the caller closes it.

        Same settings, but it raises redis-py's errors (see `map_error`), does not check the server's version, and
        stays with the server that is the one for the key now.
        """
        address = self.locate(key)
        pool = ConnectionPool(
            connection_classes(self.url)[0],
            **self._sync_settings(),
            **address_settings(self.url, address),
        )
        return Redis.from_pool(pool)

    def aredis(self) -> AsyncRedis:
        """Make what `redis` makes, for asyncio; the caller awaits its `aclose`."""
        address = self.locate()
        pool = AsyncConnectionPool(
            connection_classes(self.url)[1],
            **self._async_settings(),
            **address_settings(self.url, address),
        )
        return AsyncRedis.from_pool(pool)

    def _open(
        self, address: Address, settings: dict[str, Any], *, ask_run: bool = False
    ) -> tuple[Line, Hello]:
        # Any: most of redis-py's connection has no types.
        connection: Any = connection_classes(self.url)[0](
            **settings, **address_settings(self.url, address)
        )
        try:
            connection.connect()
            # In one trip: who it is, and which run of it.
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
        return Line(connection, address, hello.client_id, run_id), hello

    async def _aopen(
        self, address: Address, settings: dict[str, Any], *, ask_run: bool = False
    ) -> tuple[Line, Hello]:
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
        return Line(connection, address, hello.client_id, run_id), hello

    def _run_of(self, reply: Any) -> str:
        """Read which run of the server answers. A user who may not know is not asked again: each time is logged."""
        if isinstance(reply, ResponseError):
            self._asks_run = False
            return ""
        return run_id_of(reply)

    def _accept(self, hello: Hello, address: Address) -> None:
        check_server(hello, str(address), clustered=self.clustered)
        self._topology.accept(hello, address)

    def _ask(self, question: Question, within_s: float | None) -> Any:
        settings = {**self._sync_settings(), **self._asking(question, within_s)}
        line, hello = self._open(question.address, settings)
        connection = line.connection
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
        line, hello = await self._aopen(question.address, settings)
        connection = line.connection
        try:
            self._check_asked(question, hello)
            await connection.send_packed_command(connection.pack_command(*question.words))
            return await connection.read_response()
        except (RedisError, OSError) as error:
            raise map_error(error, sent=True) from error
        finally:
            await connection.disconnect(nowait=True)

    def _asking(self, question: Question, within_s: float | None) -> dict[str, Any]:
        """What differs for a connection that asks one question."""
        different = self._timeouts(_LOOK_S if within_s is None else min(_LOOK_S, within_s))
        if question.sentinel:
            user, password = self.url.sentinel_username, self.url.sentinel_password
            different |= {"db": 0, "username": user, "password": password}
        return different

    def _timeouts(self, within_s: float | None) -> dict[str, Any]:
        """The timeouts of a connection, none of them longer than this."""
        names = ("socket_connect_timeout", "socket_timeout")
        if within_s is None:
            return {name: self._settings[name] for name in names}
        return {name: min(within_s, self._settings[name]) for name in names}

    def _check_asked(self, question: Question, hello: Hello) -> None:
        if not question.sentinel:
            check_server(hello, str(question.address), clustered=True)
        elif hello.mode != "sentinel":
            raise UnsupportedServerError(
                f"{question.address} is no Sentinel; redis+sentinel:// takes the addresses of Sentinels"
            )

    def _sync_settings(self) -> dict[str, Any]:
        return {**self._settings, "retry": Retry(NoBackoff(), 0)}

    def _async_settings(self) -> dict[str, Any]:
        return {**self._settings, "retry": AsyncRetry(NoBackoff(), 0)}

    def _connect_error(self, error: Exception, address: Address) -> QworkerError:
        if "DB index is out of range" in str(error):
            return InvalidOptionError(
                "url", f"names database {self.url.db}", "the server has fewer; 0 is always there"
            )
        mapped = map_error(error, sent=False)
        # redis-py says "Timeout connecting to server" without saying to which.
        if str(address) not in str(mapped):
            mapped.args = (f"{address}: {mapped}",)
        return mapped


def _left_s(deadline: float | None) -> float | None:
    return None if deadline is None else max(_LEAST_S, deadline - time.monotonic())


def _seconds(value: float, field: str) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise InvalidOptionError(field, f"is {type(value).__name__}", "a number of seconds")
    if not (math.isfinite(value) and value > 0):
        raise InvalidOptionError(field, f"{value} is out of range", "seconds, more than 0")
    return float(value)
