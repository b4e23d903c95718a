"""The metrics listener: three pages, and bounds on everything that a client can send."""

from __future__ import annotations

import http.client
import socket
import sys
import threading
import time
from collections.abc import Callable, Iterator

import pytest
from prometheus_client import CollectorRegistry, Gauge

from qworker.telemetry import http as listener_module
from qworker.telemetry.http import MetricsListener
from tests.daemon.conftest import events
from tests.servers import missing
from tests.timing import DEADLINE_S

Start = Callable[..., MetricsListener]


@pytest.fixture
def start() -> Iterator[Start]:
    """Start listeners; they are stopped after the test."""
    started: list[MetricsListener] = []

    def make(
        healthy: str | None = None, ready: str | None = None, **options: object
    ) -> MetricsListener:
        registry = CollectorRegistry()
        Gauge("thing", 'a "thing"', ["queue"], registry=registry).labels('a"b\n').set(1)
        listener = MetricsListener(
            registry,
            healthy=lambda: healthy,
            ready=lambda: ready,
            **options,  # type: ignore[arg-type]
        )
        assert listener.start()
        started.append(listener)
        return listener

    yield make
    for listener in started:
        listener.stop()


def ask(
    listener: MetricsListener, method: str, path: str, host: str = "127.0.0.1"
) -> tuple[int, dict[str, str], str]:
    """Make a request; returns status, headers and body."""
    assert listener.port is not None
    connection = http.client.HTTPConnection(host, listener.port, timeout=DEADLINE_S)
    connection.request(method, path)
    response = connection.getresponse()
    body = response.read().decode()
    connection.close()
    return response.status, dict(response.getheaders()), body


def raw(listener: MetricsListener, data: bytes) -> bytes:
    """Send raw bytes; returns all bytes until the listener closes."""
    assert listener.port is not None
    with socket.create_connection(("127.0.0.1", listener.port), timeout=DEADLINE_S) as connection:
        try:
            connection.sendall(data)
            answer = b""
            while piece := connection.recv(65536):
                answer += piece
        except ConnectionError:
            pass  # closed while sending
        return answer


def test_serves_metrics(start: Start) -> None:
    """/metrics is the registry in Prometheus' format, with labels escaped; HEAD returns only its length."""
    listener = start()
    status, headers, body = ask(listener, "GET", "/metrics")
    assert (status, headers["Content-Type"].split(";")[0]) == (200, "text/plain")
    assert body.endswith('thing{queue="a\\"b\\n"} 1.0\n')
    assert headers["Content-Length"] == str(len(body))
    assert headers["Server"].strip() == "qworker"
    head = ask(listener, "HEAD", "/metrics?x=1")
    assert (head[0], head[1]["Content-Length"], head[2]) == (200, headers["Content-Length"], "")


def test_serves_health(start: Start) -> None:
    """The checks answer 200, or 503 with the problem."""
    well, ill = start(), start(healthy="the reaper has stopped", ready="no server")
    assert [ask(well, "GET", path)[::2] for path in ("/healthz", "/readyz")] == [(200, "ok\n")] * 2
    assert ask(ill, "GET", "/healthz")[::2] == (503, "the reaper has stopped\n")
    assert ask(ill, "GET", "/readyz")[::2] == (503, "no server\n")


@pytest.mark.parametrize("path", ["/", "/metrics/", "/../etc/passwd", "/healthz/x", "*"])
def test_other_paths_do_not_exist(start: Start, path: str) -> None:
    """Any other path is 404."""
    assert ask(start(), "GET", path)[0] == 404


@pytest.mark.parametrize("method", ["POST", "PUT", "DELETE", "OPTIONS", "TRACE", "BREW"])
def test_only_get_and_head(start: Start, method: str) -> None:
    """Any other method is 405, and says which are allowed."""
    status, headers, _ = ask(start(), method, "/metrics")
    assert (status, headers["Allow"]) == (405, "GET, HEAD")


@pytest.mark.parametrize(
    "data",
    [
        b"GET /" + b"a" * 9000 + b" HTTP/1.1\r\n\r\n",
        b"GET /metrics HTTP/1.1\r\nX: " + b"a" * 9000 + b"\r\n\r\n",
        b"GET /metrics HTTP/1.1\r\n" + b"X: a\r\n" * 2000 + b"\r\n",
        b"\x16\x03\x01" + b"\0" * 9000,
    ],
)
def test_a_long_request_ends_after_its_first_bytes(start: Start, data: bytes) -> None:
    """Request line and headers together are bounded, and the listener continues."""
    listener = start()
    answer = raw(listener, data)
    assert answer == b"" or answer.split()[1] in (b"431", b"400")
    assert ask(listener, "GET", "/healthz")[0] == 200


def test_a_megabyte_is_not_read(start: Start) -> None:
    """A client that sends endless headers is cut off."""
    listener = start()
    raw(listener, b"GET /metrics HTTP/1.1\r\nX: " + b"a" * 2**20)
    assert ask(listener, "GET", "/healthz")[0] == 200


@pytest.mark.parametrize(
    "data", [b"\r\n\r\n", b"GET\r\n\r\n", b"GET / HTTP/9.9\r\n\r\n", b"\0\xff\r\n"]
)
def test_nonsense_is_answered_or_dropped(start: Start, data: bytes) -> None:
    """Bytes that are not a request do no harm."""
    listener = start()
    answer = raw(listener, data)
    assert answer == b"" or b"400" in answer or b"505" in answer
    assert ask(listener, "GET", "/healthz")[0] == 200


def test_a_slow_request_ends_in_time(start: Start, monkeypatch: pytest.MonkeyPatch) -> None:
    """A byte now and then does not keep a connection open: the time limit is for the whole request."""
    monkeypatch.setattr(listener_module, "REQUEST_S", 0.3)
    listener = start()
    assert listener.port is not None
    began = time.monotonic()
    with socket.create_connection(("127.0.0.1", listener.port), timeout=DEADLINE_S) as connection:
        connection.settimeout(0.05)
        while time.monotonic() - began < DEADLINE_S:
            try:
                connection.sendall(b"G")
                if connection.recv(1) == b"":
                    break
            except TimeoutError:
                continue
            except ConnectionError:
                break
    assert time.monotonic() - began < DEADLINE_S / 2


@pytest.fixture
def most(monkeypatch: pytest.MonkeyPatch) -> int:
    """How many connections a listener may have; as few as show what happens beyond it."""
    monkeypatch.setattr(listener_module, "MAX_CONNECTIONS", 4)
    return 4


def hold(listener: MetricsListener, number: int, data: bytes = b"GET /he") -> list[socket.socket]:
    """Open connections with half a request each."""
    assert listener.port is not None
    address = ("127.0.0.1", listener.port)
    held = [socket.create_connection(address, timeout=DEADLINE_S) for _ in range(number)]
    for connection in held:
        connection.sendall(data)
    return held


@pytest.mark.slow
def test_slow_clients_do_not_lock_out_probes(start: Start, most: int) -> None:
    """A probe is answered despite any number of half requests; the oldest are dropped, and the limit holds."""
    listener = start()
    held = hold(listener, 3 * most)
    for _ in range(most):
        assert ask(listener, "GET", "/healthz")[0] == 200
    assert ask(listener, "GET", "/metrics")[0] == 200
    server = listener._server
    assert server is not None
    assert len(server._open) <= most
    assert held[0].recv(1) == b""  # dropped
    for connection in held:
        connection.close()


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="127.0.0.2 is this host on Linux only")
def test_connections_of_the_busiest_address_are_dropped_first(
    start: Start, monkeypatch: pytest.MonkeyPatch, most: int
) -> None:
    """A slow request of another address stays if one address has most of the connections."""
    # To open so many connections can take a busy machine longer than a request may.
    monkeypatch.setattr(listener_module, "REQUEST_S", DEADLINE_S)
    listener = start()
    assert listener.port is not None
    with socket.create_connection(
        ("127.0.0.1", listener.port), timeout=DEADLINE_S, source_address=("127.0.0.2", 0)
    ) as other:
        other.sendall(b"GET /healthz HTTP/1.0\r\n")
        held = hold(listener, 2 * most)
        assert ask(listener, "GET", "/healthz")[0] == 200
        other.sendall(b"\r\n")
        assert b" 200 OK" in other.recv(65536)
    for connection in held:
        connection.close()


def test_answers_that_clients_do_not_read_are_dropped(
    start: Start, monkeypatch: pytest.MonkeyPatch, most: int
) -> None:
    """A complete request is answered, however many wait; one whose answer takes too long is dropped."""
    answering, go_on = threading.Semaphore(0), threading.Event()

    def slowly() -> str | None:
        answering.release()
        go_on.wait(DEADLINE_S)
        return None

    monkeypatch.setattr(listener_module, "ANSWER_S", DEADLINE_S)
    listener = MetricsListener(CollectorRegistry(), healthy=slowly, ready=lambda: None)
    assert listener.start()
    try:
        held = hold(listener, most, b"GET /healthz HTTP/1.0\r\n\r\n")
        for _ in held:
            assert answering.acquire(timeout=DEADLINE_S)
        assert raw(listener, b"GET /readyz HTTP/1.0\r\n\r\n") == b""  # all are being answered
        monkeypatch.setattr(listener_module, "ANSWER_S", 0.0)
        assert b" 200 OK" in raw(listener, b"GET /readyz HTTP/1.0\r\n\r\n")
        go_on.set()
        assert held[0].recv(1) == b""
        assert b" 200 OK" in held[-1].recv(65536)
    finally:
        go_on.set()
        listener.stop()
        for connection in held:
            connection.close()


@pytest.mark.slow
@pytest.mark.bad_input("configuration: metrics port")
def test_a_port_in_use_is_logged_and_work_continues(
    start: Start, logs: list[dict[str, object]]
) -> None:
    """Without its port the listener logs a warning and serves nothing."""
    port = start().port
    other = MetricsListener(
        CollectorRegistry(), healthy=lambda: None, ready=lambda: None, port=port or 0
    )
    assert not other.start()
    assert other.port is None
    other.stop()
    (line,) = events(logs, "metrics_not_served")
    assert (line["log_level"], line["port"]) == ("warning", port)
    assert line["problem"] == (
        "another process listens there; set another metrics port, or 0 for any free one"
    )


@pytest.mark.parametrize("host", ["no.such.host.invalid", "256.1.1.1"])
def test_an_invalid_host_is_logged(host: str, logs: list[dict[str, object]]) -> None:
    """A host that cannot be listened on is logged like a port in use."""
    listener = MetricsListener(
        CollectorRegistry(), healthy=lambda: None, ready=lambda: None, host=host
    )
    assert not listener.start()
    assert events(logs, "metrics_not_served")


def test_listens_on_ipv6(start: Start) -> None:
    """An address of the other family works, too."""
    try:
        with socket.socket(socket.AF_INET6) as probe:
            probe.bind(("::1", 0))
    except OSError:
        missing("this machine has no IPv6")
    assert ask(start(host="::1"), "GET", "/healthz", host="::1")[0] == 200


def test_a_failing_collector_costs_one_scrape(logs: list[dict[str, object]]) -> None:
    """An error while the page is written is a 500 without its text."""
    registry = CollectorRegistry()

    class Failing:
        def collect(self) -> list[object]:
            raise RuntimeError("secret")

        def describe(self) -> list[object]:
            return []

    registry.register(Failing())  # type: ignore[arg-type]
    listener = MetricsListener(registry, healthy=lambda: None, ready=lambda: None)
    listener.start()
    assert ask(listener, "GET", "/metrics")[::2] == (500, "failed\n")
    listener.stop()
    assert events(logs, "metrics_failed")
