"""The metrics listener: GET and HEAD of /metrics, /healthz and /readyz.

It may be open to anyone, so bytes and seconds per request and the number of connections are bounded. At the limit of
connections, the oldest unfinished request of the address with the most connections is dropped, so that slow clients do
not lock out probes and scrapes. One request per connection; no page shows a message.
"""

from __future__ import annotations

import errno
import io
import socket
import threading
import time
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, Final

import structlog
from prometheus_client import CollectorRegistry

from qworker.telemetry.exposition import exposed

__all__ = ["MetricsListener"]

_log = structlog.get_logger(__name__)

#: Bytes of the request line and headers together.
MAX_REQUEST: Final = 8192
#: Seconds after which an answer can be dropped for another request.
ANSWER_S: Final = 2.0
#: Seconds from the connection to the last byte of the request, and for each piece of the answer.
REQUEST_S: Final = 5.0
MAX_CONNECTIONS: Final = 16

Check = Callable[[], str | None]


class MetricsListener:
    """Serves a registry and two checks in its own threads.

    `healthy` and `ready` return None, or the problem for a 503. Both must return within seconds.
    """

    def __init__(
        self,
        registry: CollectorRegistry,
        *,
        healthy: Check,
        ready: Check,
        host: str = "127.0.0.1",
        port: int = 0,
    ) -> None:
        self._registry = registry
        self._checks = {"/healthz": healthy, "/readyz": ready}
        self._address = (host, port)
        self._server: _Server | None = None

    @property
    def port(self) -> int | None:
        """The port it listens on; None if it does not listen."""
        return None if self._server is None else int(self._server.server_address[1])

    def start(self) -> bool:
        """Listen; returns whether that worked. A failure is logged only: the work matters more than its metrics."""
        host, port = self._address
        try:
            family = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0][0]
            self._server = _Server((host, port), family, self._answer)
        except OSError as error:
            _log.warning("metrics_not_served", host=host, port=port, problem=_problem(error))
            return False
        threading.Thread(
            target=self._server.serve_forever, kwargs={"poll_interval": 0.1}, daemon=True
        ).start()
        _log.info("metrics_served", host=host, port=self.port)
        return True

    def stop(self) -> None:
        """Stop listening. Answers in progress may still complete."""
        server, self._server = self._server, None
        if server is not None:
            server.shutdown()
            server.server_close()

    def _answer(self, path: str, accept: str) -> tuple[HTTPStatus, str, bytes]:
        if path == "/metrics":
            return HTTPStatus.OK, *exposed(self._registry, accept)
        check = self._checks.get(path)
        if check is None:
            return _words(HTTPStatus.NOT_FOUND, "try /metrics, /healthz or /readyz")
        problem = check()
        if problem is None:
            return _words(HTTPStatus.OK, "ok")
        return _words(HTTPStatus.SERVICE_UNAVAILABLE, problem)


def _problem(error: OSError) -> str:
    """Say why an address cannot be listened on, and what to change."""
    if error.errno == errno.EADDRINUSE:
        return "another process listens there; set another metrics port, or 0 for any free one"
    return f"{error.strerror or error}; check the metrics host and port"


def _words(status: HTTPStatus, text: str) -> tuple[HTTPStatus, str, bytes]:
    return status, "text/plain; charset=utf-8", f"{text}\n".encode()


Answer = Callable[[str, str], tuple[HTTPStatus, str, bytes]]


@dataclass(slots=True)
class _Open:
    """A connection open since `since` (monotonic); `answering`: its request has been read."""

    address: str
    since: float
    answering: bool = False


class _Server(ThreadingHTTPServer):
    """`ThreadingHTTPServer` for both address families, with a connection limit."""

    daemon_threads = True
    block_on_close = False
    request_queue_size = MAX_CONNECTIONS

    def __init__(self, address: tuple[str, int], family: int, answer: Answer) -> None:
        self.address_family = family
        self.answer = answer
        self._open: dict[socket.socket, _Open] = {}
        self._lock = threading.Lock()
        super().__init__(address, _Handler)

    def server_bind(self) -> None:
        # The base class resolves the host name, which may take seconds.
        self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        self.socket.bind(self.server_address)
        self.server_address = self.socket.getsockname()
        self.server_name, self.server_port = "qworker", self.server_address[1]

    def process_request(self, request: Any, client_address: Any) -> None:
        with self._lock:
            full = len(self._open) >= MAX_CONNECTIONS
            victim = self._victim() if full else None
            if not full or victim is not None:
                self._open[request] = _Open(str(client_address[0]), time.monotonic())
            if victim is not None:
                del self._open[victim]
        if full and victim is None:
            self.shutdown_request(request)
            return
        if victim is not None:
            # Its thread is waiting for bytes and closes it.
            with suppress(OSError):
                victim.shutdown(socket.SHUT_RDWR)
        try:
            super().process_request(request, client_address)
        except BaseException:
            self._forget(request)
            raise

    def answering(self, request: socket.socket) -> None:
        """Note that the request has been read: from now on the time is ours."""
        with self._lock:
            if (connection := self._open.get(request)) is not None:
                connection.answering = True

    def _victim(self) -> socket.socket | None:
        """Choose a connection to drop: the oldest unfinished request of the address with the most connections.

        If all requests are read, the oldest whose answer has taken `ANSWER_S`: its client does not read.
        """
        per_address = Counter(connection.address for connection in self._open.values())
        late = time.monotonic() - ANSWER_S
        chosen = min(
            (
                (
                    connection.answering,
                    -per_address[connection.address],
                    connection.since,
                    number,
                    request,
                )
                for number, (request, connection) in enumerate(self._open.items())
                if not connection.answering or connection.since < late
            ),
            default=None,
        )
        return None if chosen is None else chosen[-1]

    def _forget(self, request: socket.socket) -> None:
        with self._lock:
            self._open.pop(request, None)

    def process_request_thread(self, request: Any, client_address: Any) -> None:
        try:
            super().process_request_thread(request, client_address)
        finally:
            self._forget(request)

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Log one line, in place of the base class's traceback: clients hang up all the time."""
        _log.debug("metrics_request_failed", exc_info=True)


class _Handler(BaseHTTPRequestHandler):
    """Reads and answers one bounded request."""

    server: _Server
    server_version = "qworker"
    sys_version = ""
    timeout = REQUEST_S

    def setup(self) -> None:
        super().setup()
        self.rfile = io.BufferedReader(_Bounded(self.connection))

    def handle_one_request(self) -> None:
        self.close_connection = True
        try:
            super().handle_one_request()
        except _TooLongError:
            self.requestline, self.request_version, self.command = "", "HTTP/1.0", ""
            self.send_error(HTTPStatus.REQUEST_HEADER_FIELDS_TOO_LARGE)

    def do_GET(self) -> None:
        self._reply(with_body=True)

    def do_HEAD(self) -> None:
        self._reply(with_body=False)

    def __getattr__(self, name: str) -> Any:
        # The base class looks up do_<METHOD>, and answers 501 if there is none.
        if name.startswith("do_"):
            return self._not_allowed
        raise AttributeError(name)

    def _reply(self, *, with_body: bool) -> None:
        self.server.answering(self.connection)
        path = self.path.partition("?")[0]
        try:
            status, content_type, body = self.server.answer(path, self.headers.get("Accept") or "")
        except Exception:  # noqa: BLE001  a failing collector costs one scrape; the log has the reason
            _log.exception("metrics_failed", path=path[:100])
            status, content_type, body = _words(HTTPStatus.INTERNAL_SERVER_ERROR, "failed")
        self._send(status, content_type, body, with_body=with_body)

    def _not_allowed(self) -> None:
        self._send(*_words(HTTPStatus.METHOD_NOT_ALLOWED, "GET or HEAD"), with_body=True)

    def _send(self, status: HTTPStatus, content_type: str, body: bytes, *, with_body: bool) -> None:
        self.send_response(status)
        self.send_header("Content-Type", content_type)
        self.send_header("Content-Length", str(len(body)))
        self.send_header("Cache-Control", "no-store")
        self.send_header("Connection", "close")
        if status is HTTPStatus.METHOD_NOT_ALLOWED:
            self.send_header("Allow", "GET, HEAD")
        self.end_headers()
        if with_body:
            self.wfile.write(body)

    def log_message(self, *_: Any) -> None:
        """Log nothing per request."""


class _TooLongError(Exception):
    """A request of more than `MAX_REQUEST` bytes."""


class _Bounded(io.RawIOBase):
    """A socket limited to `MAX_REQUEST` bytes and `REQUEST_S` in total, so that a slow client cannot hold it."""

    def __init__(self, connection: socket.socket) -> None:
        self._connection = connection
        self._left = MAX_REQUEST
        self._deadline = time.monotonic() + REQUEST_S

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        if self._left <= 0:
            raise _TooLongError
        left_s = self._deadline - time.monotonic()
        if left_s <= 0:
            raise TimeoutError
        self._connection.settimeout(left_s)
        number = self._connection.recv_into(memoryview(buffer)[: self._left])
        self._connection.settimeout(REQUEST_S)
        self._left -= number
        return number
