"""Connections to Redis with settings of our own, and never with redis-py's.

redis-py 8 repeats a call ten times when its reply is lost, which stores an RPUSH twice; it gives every reply
5 seconds, which a longer BLPOP outlives eleven times over; it speaks RESP3. `ConnectionFactory` is the one place
that makes connections, and switches all of that off: a call is sent once, and whoever sent it decides what a lost
reply means (see `qworker.store.server_errors`).

Why RESP2: its replies are bytes, int, list and None only, the shapes that Lua returns. RESP3 turns pairs into dicts
and scores into floats depending on the command, needs HELLO before anything else, and allows pushed messages between
two replies.
"""

from __future__ import annotations

import math
import re
import socket
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
    Connection,
    SSLConnection,
    UnixDomainSocketConnection,
)
from redis.driver_info import DriverInfo
from redis.exceptions import RedisError
from redis.retry import Retry

from qworker.errors import InvalidOptionError, QworkerError, UnsupportedServerError
from qworker.store.server_errors import is_noscript, map_error
from qworker.store.url import ServerURL

__all__ = ["MAX_BLOCK_S", "ConnectionFactory", "ServerURL", "is_noscript", "map_error"]

#: The longest that a blocking command may wait, in seconds. The reply timeout leaves as much again for the way back.
MAX_BLOCK_S: Final = 2.0

_log = structlog.get_logger(__name__)

_OLDEST_SERVER: Final = (7, 0)
_CLIENT_NAME: Final = re.compile(r"[!-~]{1,128}")
_CLASSES: Final[dict[str, tuple[type[AbstractConnection], type[aio.AbstractConnection]]]] = {
    "redis": (Connection, aio.Connection),
    "rediss": (SSLConnection, aio.SSLConnection),
    "unix": (UnixDomainSocketConnection, aio.UnixDomainSocketConnection),
}

# A peer that vanished without a word is noticed after 30 + 3 × 10 s, also while nothing is sent. TCP_KEEPALIVE is
# what macOS calls TCP_KEEPIDLE.
_KEEPALIVE: Final = {
    "TCP_KEEPIDLE": 30,
    "TCP_KEEPALIVE": 30,
    "TCP_KEEPINTVL": 10,
    "TCP_KEEPCNT": 3,
}


class ConnectionFactory:
    """Makes connections to the server of one URL; holds none itself, so it may pass a fork.

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
        self._settings = {
            **_address(self.url),
            "db": self.url.db,
            "username": self.url.username,
            "password": self.url.password,
            "socket_connect_timeout": _seconds(connect_timeout_s, "connect_timeout_s"),
            "socket_timeout": _seconds(reply_timeout_s, "reply_timeout_s"),
            "retry_on_timeout": False,
            "retry_on_error": [],
            "health_check_interval": 0,
            "protocol": 2,
            "decode_responses": False,
            "client_name": name,
            # LIB-NAME of CLIENT LIST; a LIB-VER would cost another round trip per connection.
            "driver_info": DriverInfo(name="qworker", lib_version=None),
        }
        #: Set to True by whichever thread connects first; a second check at the same time does no harm.
        self._server_checked = False
        if self.url.insecure:
            _log.warning("tls_verification_off", url=str(self.url))

    def __repr__(self) -> str:
        return f"ConnectionFactory({str(self.url)!r})"

    def connect(self) -> AbstractConnection:
        """Open a connection, authenticated, with its database selected; the caller disconnects it.

        The factory's first connection also checks the server's version (`UnsupportedServerError`). Raises the
        `ServerError` that fits, mostly `UnavailableError`, and `InvalidOptionError` if the server has no such database.

        A connection that broke would open itself again at its next `send_packed_command`, past these errors: drop a
        connection that raised, and call `connect` for another.
        """
        # Any: most of redis-py's connection has no types.
        connection: Any = _CLASSES[self.url.scheme][0](**self._sync_settings())
        try:
            connection.connect()
            if not self._server_checked:
                # HELLO and not INFO: it needs no right (Redis checks no ACL for it).
                connection.send_packed_command(connection.pack_command("HELLO"))
                _check_server(connection.read_response(), self.url.address)
                self._server_checked = True
        except (RedisError, OSError) as error:
            connection.disconnect()
            raise self._connect_error(error) from error
        except BaseException:
            connection.disconnect()
            raise
        return cast(AbstractConnection, connection)

    async def aconnect(self) -> aio.AbstractConnection:
        """Open a connection for asyncio; all else as in `connect`. Bound to the running loop."""
        connection: Any = _CLASSES[self.url.scheme][1](**self._async_settings())
        try:
            await connection.connect()
            if not self._server_checked:
                await connection.send_packed_command(connection.pack_command("HELLO"))
                _check_server(await connection.read_response(), self.url.address)
                self._server_checked = True
        except (RedisError, OSError) as error:
            await connection.disconnect(nowait=True)
            raise self._connect_error(error) from error
        except BaseException:
            # A cancelled connect leaves an open socket behind in redis-py.
            await connection.disconnect(nowait=True)
            raise
        return cast(aio.AbstractConnection, connection)

    def redis(self) -> Redis:
        """Make a redis-py client with a pool of its own, for reads such as INFO and SCAN; the caller closes it.

        Same settings, but it raises redis-py's errors (see `map_error`) and does not check the server's version.
        """
        pool = ConnectionPool(_CLASSES[self.url.scheme][0], **self._sync_settings())
        return Redis.from_pool(pool)

    def aredis(self) -> AsyncRedis:
        """Make what `redis` makes, for asyncio; the caller awaits its `aclose`."""
        pool = AsyncConnectionPool(_CLASSES[self.url.scheme][1], **self._async_settings())
        return AsyncRedis.from_pool(pool)

    def _sync_settings(self) -> dict[str, Any]:
        return {**self._settings, "retry": Retry(NoBackoff(), 0)}

    def _async_settings(self) -> dict[str, Any]:
        return {**self._settings, "retry": AsyncRetry(NoBackoff(), 0)}

    def _connect_error(self, error: Exception) -> QworkerError:
        if "DB index is out of range" in str(error):
            return InvalidOptionError(
                "url", f"names database {self.url.db}", "the server has fewer; 0 is always there"
            )
        mapped = map_error(error, sent=False)
        # redis-py says "Timeout connecting to server" without saying to which.
        if self.url.address not in str(mapped):
            mapped.args = (f"{self.url.address}: {mapped}",)
        return mapped


def _address(url: ServerURL) -> dict[str, Any]:
    if url.scheme == "unix":
        return {"path": url.path}
    options = {
        getattr(socket, option): value
        for option, value in _KEEPALIVE.items()
        if hasattr(socket, option)
    }
    address: dict[str, Any] = {
        "host": url.host,
        "port": url.port,
        "socket_keepalive": True,
        "socket_keepalive_options": options,
    }
    if url.scheme == "rediss":
        address |= {
            "ssl_ca_certs": url.ssl_ca_certs,
            "ssl_certfile": url.ssl_certfile,
            "ssl_keyfile": url.ssl_keyfile,
            "ssl_cert_reqs": "none" if url.insecure else "required",
            "ssl_check_hostname": url.ssl_check_hostname and not url.insecure,
        }
    return address


def _check_server(hello: Any, address: str) -> None:
    """Raise `UnsupportedServerError` unless the reply of HELLO is that of a Redis or Valkey from 7.0 on.

    KeyDB names the Redis it descends from, one before 7.0. DragonflyDB says that it is a Redis and adds its own
    version; our scripts have not been tried on it.
    """
    fields = dict(zip(hello[::2], hello[1::2], strict=False))
    server, version = _ascii(fields.get(b"server")), _ascii(fields.get(b"version"))
    needs = "qworker needs Redis 7.0, Valkey 7.2, or newer"
    if b"dragonfly_version" in fields:
        version = _ascii(fields[b"dragonfly_version"])
        raise UnsupportedServerError(f"{address} is DragonflyDB {version}; {needs}")
    if fields.get(b"mode") == b"sentinel":
        raise UnsupportedServerError(
            f"{address} is a Sentinel, which stores nothing; give the URL of the master"
        )
    match = re.match(r"([0-9]+)\.([0-9]+)", version)
    if match is None or (int(match[1]), int(match[2])) < _OLDEST_SERVER:
        raise UnsupportedServerError(f"{address} is {server} {version}; {needs}")


def _ascii(value: Any) -> str:
    text = value.decode("ascii", "replace") if isinstance(value, bytes) else str(value)
    return text[:40]


def _seconds(value: float, field: str) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise InvalidOptionError(field, f"is {type(value).__name__}", "a number of seconds")
    if not (math.isfinite(value) and value > 0):
        raise InvalidOptionError(field, f"{value} is out of range", "seconds, more than 0")
    return float(value)
