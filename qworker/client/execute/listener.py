"""One subscription of a process for all results that it waits for, over sharded channels.

A message on a channel is a hint that there may be something to read; so is the loss of a connection. Waits read after
each hint, and now and then without one: hints can be lost. In a Cluster there is a connection to each node that has
such channels.
"""

from __future__ import annotations

import os
import selectors
import socket
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Any, Final

from redis.exceptions import RedisError

from qworker.client.execute.backoff import Backoff
from qworker.errors import QworkerError, ServerError
from qworker.store.connection_set import ConnectionSet
from qworker.store.server_errors import map_error
from qworker.telemetry.logger import logger

if TYPE_CHECKING:
    from qworker.store.connections import ConnectionFactory
    from qworker.store.nodes import Address

__all__ = [
    "IDLE_S",
    "HintWait",
    "Listener",
    "channel_of",
    "end_pauses",
    "new_backoff",
    "pause_after",
]

_log = logger(__name__)

#: Seconds after which an unused subscription is closed.
IDLE_S: Final = 10.0
_FIRST_PAUSE_S, _LONGEST_PAUSE_S = 0.1, 10.0


def pause_after(error: Exception, backoff: Backoff) -> None:
    """Try later to subscribe again, longer from one failure to the next."""
    pause_s = backoff.failed(time.monotonic())
    _log.debug("results_not_heard", error=str(error), again_in_s=pause_s)


def end_pauses(backoff: Backoff) -> None:
    """Begin with the shortest pause again. What comes during a pause comes from another server than the failed one."""
    if not backoff.left_s(time.monotonic()):
        backoff.succeeded()


def new_backoff() -> Backoff:
    """The pauses between attempts to subscribe."""
    return Backoff(_FIRST_PAUSE_S, _LONGEST_PAUSE_S)


def channel_of(reply: list[bytes]) -> str:
    """The channel that a reply of a subscription names: subscribed to, with a message, or unsubscribed from."""
    return reply[1].decode("utf-8", "replace")


class HintWait:
    """A wait for hints at some channels."""

    def __init__(self) -> None:
        self.hint = threading.Event()

    def wait(self, seconds: float) -> None:
        """Wait for a hint, for at most `seconds`."""
        self.hint.wait(seconds)
        self.hint.clear()


class Listener:
    """The subscriptions of one client. Thread-safe; one thread, which ends when nothing is watched for a while.

    Make another one after a fork.
    """

    def __init__(self, factory: ConnectionFactory) -> None:
        self.pid = os.getpid()
        self._factory = factory
        self._lock = threading.Lock()
        self._watches: dict[str, set[HintWait]] = {}
        self._thread: threading.Thread | None = None
        #: Rung for the thread, while there is one.
        self._ring: socket.socket | None = None
        self._closed = False

    @contextmanager
    def watch(self, channels: Sequence[str]) -> Iterator[HintWait]:
        """Watch channels. The first hint comes as soon as a channel is heard."""
        watch = HintWait()
        with self._lock:
            for channel in channels:
                self._watches.setdefault(channel, set()).add(watch)
            self._closed = False
            if self._thread is None:
                bell, self._ring = _pair()
                self._thread = threading.Thread(
                    target=self._run, args=(bell,), name="qworker-results", daemon=True
                )
                self._thread.start()
            self._wake()
        try:
            yield watch
        finally:
            with self._lock:
                for channel in channels:
                    left = self._watches[channel]
                    left.discard(watch)
                    if not left:
                        del self._watches[channel]
                self._wake()

    def close(self) -> None:
        """Close the connections; a new watch opens them again."""
        with self._lock:
            self._closed = True
            self._wake()
            thread = self._thread
        if thread is not None and thread is not threading.current_thread():
            thread.join(IDLE_S)

    def _wake(self) -> None:
        """Make the thread apply changes; under the lock."""
        if self._ring is not None:
            with suppress(BlockingIOError):
                self._ring.send(b"1")

    # -- the thread ----------------------------------------------------------------------------

    def _run(self, bell: socket.socket) -> None:
        subscriptions = _Subscriptions(self._factory, self._tell)
        used_at = time.monotonic()
        try:
            while True:
                with self._lock:
                    wanted = set(self._watches)
                    now = time.monotonic()
                    if wanted:
                        used_at = now
                    if self._closed or now - used_at >= IDLE_S:
                        # Under the lock: a watch that comes now starts another thread.
                        self._end()
                        return
                subscriptions.listen(wanted, bell)
        finally:
            subscriptions.close()
            bell.close()
            with self._lock:
                self._end()

    def _end(self) -> None:
        """Let the next watch start another thread; under the lock."""
        if self._thread is not threading.current_thread():
            return
        self._thread = None
        if self._ring is not None:
            self._ring.close()
            self._ring = None

    def _tell(self, channel: str) -> None:
        with self._lock:
            waiting = [*self._watches.get(channel, ())]
        for watch in waiting:
            watch.hint.set()


class _Subscriptions:
    """The connections of the thread, and the messages that arrive over them."""

    def __init__(self, factory: ConnectionFactory, tell: Callable[[str], None]) -> None:
        self._factory = factory
        self._tell = tell
        self._servers = ConnectionSet(factory)
        self._subscribed: dict[str, Address] = {}
        #: Channels whose end was asked for and is not confirmed yet, and how often.
        self._ending: Counter[str] = Counter()
        self._backoff = new_backoff()

    def listen(self, wanted: set[str], bell: socket.socket) -> None:
        """Subscribe to exactly the wanted channels, and report messages until the bell rings, or for a second."""
        if not self._backoff.left_s(time.monotonic()):
            try:
                self._subscribe(wanted)
            except (RedisError, OSError, QworkerError) as error:
                pause_after(error, self._backoff)
        connections = {
            sock.fileno(): (address, server)
            for address in {*self._subscribed.values()}
            if (server := self._servers.known(address)) is not None
            and (sock := server.connection._sock) is not None
        }
        left_s = self._backoff.left_s(time.monotonic())
        ready = _readable([bell.fileno(), *connections], min(1.0, left_s or 1.0))
        if bell.fileno() in ready:
            with suppress(BlockingIOError):
                bell.recv(4096)
        for descriptor, (address, server) in connections.items():
            if descriptor in ready:
                self._read(address, server.connection)

    def close(self) -> None:
        """Close the connections."""
        self._servers.close()

    def _subscribe(self, wanted: set[str]) -> None:
        for channel in [*self._subscribed.keys() - wanted]:
            self._ending[channel] += 1
            self._send("SUNSUBSCRIBE", channel, self._subscribed.pop(channel))
        for channel in wanted - self._subscribed.keys():
            address = self._factory.locate(channel)
            self._subscribed[channel] = address
            self._send("SSUBSCRIBE", channel, address)

    def _send(self, verb: str, channel: str, address: Address) -> None:
        try:
            connection = self._servers.to(address).connection
            connection.send_packed_command(connection.pack_command(verb, channel))
        except (RedisError, OSError, QworkerError) as error:
            self._lose(address, error)
            raise

    def _read(self, address: Address, connection: Any) -> None:
        try:
            while connection.can_read(0):
                reply = connection.read_response()
                channel = channel_of(reply)
                if reply[0] == b"sunsubscribe":
                    if not self._ending[channel]:
                        raise OSError("the channel has moved to another node")
                    self._ending[channel] -= 1
                    continue
                self._tell(channel)
                end_pauses(self._backoff)
        except (RedisError, OSError) as error:
            self._lose(address, error)
            pause_after(error, self._backoff)

    def _lose(self, address: Address, error: Exception) -> None:
        """Forget a connection, and wake every wait that listened over it."""
        mapped = error if isinstance(error, ServerError) else map_error(error, sent=True)
        self._factory.failed(mapped, address)
        self._servers.drop(address)
        self._ending.clear()
        lost = [channel for channel, at in self._subscribed.items() if at == address]
        for channel in lost:
            del self._subscribed[channel]
            self._tell(channel)


def _readable(descriptors: Sequence[int], wait_s: float) -> set[int]:
    """Wait up to `wait_s` seconds until some descriptors can be read; returns those."""
    with selectors.DefaultSelector() as selector:
        for descriptor in descriptors:
            selector.register(descriptor, selectors.EVENT_READ)
        return {key.fd for key, _ in selector.select(wait_s)}


def _pair() -> tuple[socket.socket, socket.socket]:
    bell, ring = socket.socketpair()
    bell.setblocking(False)
    ring.setblocking(False)
    return bell, ring
