"""How an app reaches its server: URL, keys, connections, clients and queues."""

from __future__ import annotations

import os
import threading
from collections.abc import AsyncIterator, Iterator
from typing import TYPE_CHECKING, Final

from qworker.client.execute.aio import AsyncClient
from qworker.client.execute.sync import Client
from qworker.client.inspect.pages import aiterate, iterate
from qworker.client.inspect.scan import QueueLength, scan_queues
from qworker.client.namespace.queues import list_queues
from qworker.client.queue import AsyncQueue, Queue
from qworker.config.files import ConfigFile, file_for_apps
from qworker.errors import InvalidOptionError
from qworker.store.connections import ConnectionFactory
from qworker.store.options import check_give_up, url_of_file
from qworker.store.same_server import same_server
from qworker.store.url import ServerURL
from qworker.telemetry.logger import logger
from qworker.wire.key_options import keys_of_environment
from qworker.wire.keyring import Keyring
from qworker.wire.names import check_namespace

if TYPE_CHECKING:
    from qworker.durations import Duration

__all__ = ["ConnectedApp"]

_log = logger(__name__)
_NO_FILE: Final = ConfigFile()
#: A queue's name, and how many seconds to try its calls; None: as long as the app's.
_QueueKey = tuple[str, float | None]


class ConnectedApp:
    """The queues of a namespace, on the server that the app, the environment or the configuration file names."""

    def __init__(
        self,
        namespace: str,
        *,
        url: str | None = None,
        keys: Keyring | None = None,
        give_up: Duration | None = None,
    ) -> None:
        self.namespace = check_namespace(namespace)
        self._url = url
        self._keys = keys
        self._give_up_s = None if give_up is None else check_give_up(give_up, {})
        #: The configuration file, once it is read; none for an app with given connections.
        self._config: ConfigFile | None = None
        self._lock = threading.Lock()
        self._factory: ConnectionFactory | None = None
        self._client: Client | None = None
        self._queues: dict[_QueueKey, Queue] = {}
        #: Per event loop, by its id.
        self._async: dict[int, tuple[AsyncClient, dict[_QueueKey, AsyncQueue]]] = {}

    @property
    def given_url(self) -> str | None:
        """The `url` of the constructor; None if the environment or the configuration file decides."""
        return self._url or None

    @property
    def url(self) -> str:
        """The URL of the server. Raises `InvalidOptionError` if none is set."""
        url = (
            self.given_url
            or os.environ.get("QWORKER_URL")
            or url_of_file(self._file())
            or os.environ.get("REDIS_URL")
        )
        if not url:
            raise InvalidOptionError(
                "url",
                "is not set",
                "set QWORKER_URL to a Redis or Valkey URL such as redis://localhost:6379, or to embedded:, "
                "or start in the directory of your qworker.toml",
            )
        return url

    @property
    def keyring(self) -> Keyring:
        """The keys that sign and encrypt messages; empty by default. Raises `InvalidOptionError` for wrong keys."""
        if self._keys is None:
            self._keys = keys_of_environment(file=self._file())
        return self._keys

    @property
    def give_up_s(self) -> float:
        """For how many seconds a call is retried. Raises `InvalidOptionError` for a wrong QWORKER_GIVE_UP."""
        if self._give_up_s is None:
            self._give_up_s = check_give_up(None, os.environ, self._file())
        return self._give_up_s

    def connect_with(self, factory: ConnectionFactory | None) -> None:
        """Use this factory's connections from now on instead of the URL; None goes back to the URL."""
        with self._lock:
            self._factory = factory
            self._config = None if factory is None else _NO_FILE
            self._client = None
            self._queues = {}
            self._async = {}

    @property
    def client(self) -> Client:
        """The sync client, created on first use."""
        with self._lock:
            if self._client is None:
                self._client = Client(
                    self._connections(), give_up_s=self.give_up_s, keyring=self.keyring
                )
            return self._client

    def queue(self, name: str, *, give_up: Duration | None = None) -> Queue:
        """Return a queue. `give_up`: how long its calls are tried, default as long as the app's (100 ms to a day)."""
        key = (name, None if give_up is None else check_give_up(give_up, {}))
        queue = self._queues.get(key)
        if queue is None:
            new = Queue(self.client, self.namespace, name, give_up_s=key[1])
            queue = self._queues.setdefault(key, new)
        return queue

    def aqueue(self, name: str, *, give_up: Duration | None = None) -> AsyncQueue:
        """Return a queue for the running event loop; `give_up` as for `queue`. Raises `RuntimeError` without one."""
        import asyncio

        try:
            loop_id = id(asyncio.get_running_loop())
        except RuntimeError as error:
            raise RuntimeError(
                f"aqueue({name!r}): no event loop is running; call it inside async code, "
                f"or use app.queue({name!r}) in sync code"
            ) from error
        if loop_id not in self._async:
            for other, (client, _) in list(self._async.items()):
                if client.loop_closed():
                    del self._async[other]
            self._async[loop_id] = (
                AsyncClient(self._connections(), give_up_s=self.give_up_s, keyring=self.keyring),
                {},
            )
        client, queues = self._async[loop_id]
        key = (name, None if give_up is None else check_give_up(give_up, {}))
        if key not in queues:
            queues[key] = AsyncQueue(client, self.namespace, name, give_up_s=key[1])
        return queues[key]

    def queues(self) -> list[str]:
        """List the names of the queues in the namespace, sorted: created, sent to, or found by a reaper."""
        return self.client.run(list_queues(self.namespace))

    def scan_queues(
        self, *, minlen: int = 0, maxlen: int | None = None, count: int = 100
    ) -> Iterator[QueueLength]:
        """Iterate over queues with `minlen` to `maxlen` ready messages, about `count` queues per call."""
        return iterate(
            self.client,
            lambda cursor: scan_queues(
                self.namespace, cursor, count=count, minlen=minlen, maxlen=maxlen
            ),
        )

    def ascan_queues(
        self, *, minlen: int = 0, maxlen: int | None = None, count: int = 100
    ) -> AsyncIterator[QueueLength]:
        """Iterate over queues as `scan_queues` does, with `async for`."""
        return aiterate(
            self.aqueue("default").client,
            lambda cursor: scan_queues(
                self.namespace, cursor, count=count, minlen=minlen, maxlen=maxlen
            ),
        )

    def pause(self, direction: str = "all", *, strict: bool = False) -> dict[str, str]:
        """Pause all queues as `Queue.pause` does, one by one; returns the pauses by queue."""
        return {name: self.queue(name).pause(direction, strict=strict) for name in self.queues()}

    async def apause(self, direction: str = "all", *, strict: bool = False) -> dict[str, str]:
        """Pause all queues as `pause` does."""
        return {
            name: await self.aqueue(name).pause(direction, strict=strict)
            for name in await self.aqueues()
        }

    async def aqueues(self) -> list[str]:
        """List the names of the queues in the namespace, as `queues` does."""
        return await self.aqueue("default").client.run(list_queues(self.namespace))

    def close(self) -> None:
        """Close the idle connections of the sync client. You can keep using the app."""
        if self._client is not None:
            self._client.close()

    async def aclose(self) -> None:
        """Close the connections of the running event loop."""
        import asyncio

        client, _ = self._async.pop(id(asyncio.get_running_loop()), (None, None))
        if client is not None:
            await client.close()

    def _file(self) -> ConfigFile:
        if self._config is None:
            self._config = file_for_apps()
            for warning in self._config.warnings if self._config.path is None else ():
                _log.warning("config_file_ignored", problem=warning)
        return self._config

    def _connections(self) -> ConnectionFactory:
        if self._factory is None:
            # Imported late: most processes never need the embedded store.
            from qworker.store.embedded.store import resolve_url

            url = self.url
            self._warn_of_redis_url(url)
            self._factory = ConnectionFactory(resolve_url(url))
        return self._factory

    def _warn_of_redis_url(self, url: str) -> None:
        """Log `redis_url_not_used` if the configuration file decides, and REDIS_URL names another server."""
        other = os.environ.get("REDIS_URL")
        if not other or self._config is None or url != self._config.values.get("url"):
            return
        try:
            if same_server(ServerURL.parse(url), ServerURL.parse(other)):
                return
        except InvalidOptionError:
            pass  # it names no usable server
        _log.warning(
            "redis_url_not_used", server=str(ServerURL.parse(url)), server_from=self._config.name
        )
