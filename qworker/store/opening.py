"""Opens one connection: its settings, the first questions to the server, and the errors of both.

redis-py 8 retries a call ten times when its reply is lost, which stores an RPUSH twice; it waits 5 seconds for a reply,
so that a longer BLPOP runs eleven times; it speaks RESP3. This is the only place that makes connections, and it
switches all of that off: the caller decides what a lost reply means (see `qworker.store.server_errors`).

Why RESP2: its replies are bytes, int, list and None, as Lua returns them. RESP3 turns pairs into dicts and scores into
floats depending on the command, needs HELLO first, and can push messages between two replies.
"""

from __future__ import annotations

import math
import re
from typing import Any, Final

import msgspec
from redis.asyncio.retry import Retry as AsyncRetry
from redis.backoff import NoBackoff
from redis.driver_info import DriverInfo
from redis.exceptions import RedisError, ResponseError
from redis.retry import Retry

from qworker.errors import (
    InvalidOptionError,
    QworkerError,
    UnsupportedServerError,
)
from qworker.store.hello import ASK_RUN, ASK_SERVER, Hello, check_server, run_id_of
from qworker.store.nodes import Address
from qworker.store.server_errors import map_error
from qworker.store.topology import Question
from qworker.store.transport import address_settings, connection_classes, transport_settings
from qworker.store.url import ServerURL
from qworker.telemetry.logger import logger

__all__ = ["MAX_BLOCK_S", "Opener", "ServerConnection"]

#: The longest wait of a blocking command, in seconds. The reply timeout is twice that.
MAX_BLOCK_S: Final = 2.0

_log = logger(__name__)

_CLIENT_NAME: Final = re.compile(r"[!-~]{1,128}")


class ServerConnection(msgspec.Struct, frozen=True):
    """A connection to a server."""

    connection: Any  # most of redis-py's connection has no types
    address: Address
    client_id: int
    """The server's number for the connection; it rises with every connection while the server runs."""
    run_id: str = ""
    """Identifies the run of the server, from its start to its end; '' if the server does not say."""


class Opener:
    """Opens connections to servers of one URL, at given addresses."""

    def __init__(
        self,
        url: str | ServerURL,
        *,
        connect_timeout_s: float = 2.0,
        reply_timeout_s: float = 2 * MAX_BLOCK_S,
        name: str | None = None,
    ) -> None:
        """Check the options of `ConnectionFactory`; does not connect."""
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

    def _ask(self, question: Question, within_s: float | None) -> Any:
        settings = {**self._sync_settings(), **self._asking(question, within_s)}
        server, hello = self._open(question.address, settings)
        connection = server.connection
        try:
            self._check_asked(question, hello)
            connection.send_packed_command(connection.pack_command(*question.words))
            return connection.read_response()
        except (RedisError, OSError) as error:
            raise map_error(error, sent=True, reads=True) from error
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
            raise map_error(error, sent=True, reads=True) from error
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


def _seconds(value: float, field: str) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise InvalidOptionError(field, f"is {type(value).__name__}", "give a number of seconds")
    if not (math.isfinite(value) and value > 0):
        raise InvalidOptionError(field, f"{value} is out of range", "give seconds, more than 0")
    return float(value)
