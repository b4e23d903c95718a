"""The daemon as a process and the reaper as a thread: start, health, signals, servers that come and go."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import tempfile
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import redis

from qworker import QueueAttributes, QWorker
from qworker.service.daemon import EXIT_NOT_DURABLE
from qworker.store.url import ServerURL
from qworker.wire.keys import queues_key, reapers_key
from tests import servers
from tests.daemon.processes import Systemd, daemon
from tests.lua.drive import Drive
from tests.timing import DEADLINE_S, Watch, looks
from tests.topologies.servers import client_of

pytestmark = pytest.mark.slow  # starts processes

OpenQueue = Callable[..., Drive]


@pytest.fixture
def systemd() -> Iterator[Systemd]:
    """A listening systemd, under a short path."""
    with tempfile.TemporaryDirectory(prefix="qworker-") as directory:
        listening = Systemd(f"{directory}/notify")
        yield listening
        listening.close()


@contextmanager
def server_at(path: Path) -> Iterator[subprocess.Popen[bytes]]:
    """Run a server at a socket of the test's choice, so that it may come back there."""
    process = subprocess.Popen(
        [
            *(servers.binary_of("valkey"), "--port", "0", "--unixsocket", str(path)),
            *("--dir", str(path.parent), "--save", "", "--appendonly", "yes"),
        ],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    try:
        yield process
    finally:
        process.kill()
        process.wait()


def wait_until(holds: Callable[[], bool], within_s: float = DEADLINE_S) -> None:
    """Wait until something holds, and fail if it does not in time."""
    assert any(holds() for _ in looks(within_s))


def logged(path: Path, event: str) -> list[dict[str, Any]]:
    """The lines of an event in a log file."""
    lines = [json.loads(line) for line in path.read_text().splitlines() if line.endswith("}")]
    return [line for line in lines if line["event"] == event]


def get(port: int, path: str) -> tuple[int, str]:
    """Status and body of a page."""
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}{path}", timeout=DEADLINE_S) as page:
            return page.status, page.read().decode()
    except urllib.error.HTTPError as error:
        with error:
            return error.code, error.read().decode()


class TestDaemon:
    @pytest.mark.parametrize(
        "signum",
        [
            signal.SIGTERM,
            pytest.param(signal.SIGINT, marks=pytest.mark.nightly("test_ends_with_a_signal")),
            signal.SIGHUP,
        ],
    )
    def test_ends_with_a_signal(
        self, store_url: str, namespace: str, systemd: Systemd, signum: signal.Signals
    ) -> None:
        """A signal ends it at once, with exit code 0, and it leaves the list of reapers."""
        with daemon(store_url, namespace, systemd, tick="60s") as process:
            systemd.wait_for("READY=1")
            assert systemd.next() == "STATUS=queues=0 reapers=1"
            with client_of(store_url) as server:
                wait_until(lambda: bool(server.zcard(reapers_key(namespace))))
                watch = Watch(process.pid)
                process.send_signal(signum)
                assert process.wait(DEADLINE_S) == 0
                assert watch.passed_s() < 20  # its tick is a minute
                assert systemd.next() == "STOPPING=1"
                assert not server.exists(reapers_key(namespace))

    def test_nohup_keeps_it_from_sighup(
        self, store_url: str, namespace: str, systemd: Systemd
    ) -> None:
        """If SIGHUP is ignored at the start, it stays ignored."""
        before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
        try:
            with daemon(store_url, namespace, systemd, cold=True) as process:
                systemd.wait_for("READY=1")
                process.send_signal(signal.SIGHUP)
                process.send_signal(signal.SIGTERM)
                assert process.wait(DEADLINE_S) == 0
        finally:
            signal.signal(signal.SIGHUP, before)

    def test_ends_in_time_while_the_server_is_frozen(
        self, namespace: str, systemd: Systemd
    ) -> None:
        """A server that does not answer does not delay the end: a script runs as a whole or not at all."""
        with servers.start("valkey") as server:
            # Our own child, whose account the watch reads after its end.
            with daemon(server.url, namespace, systemd, tick="10ms", cold=True) as process:
                systemd.wait_for("READY=1")
                os.kill(server.pid, signal.SIGSTOP)
                time.sleep(0.2)
                watch = Watch(process.pid)
                process.send_signal(signal.SIGTERM)
                assert watch.end_s(process) < 3
                assert process.wait() == 0
            os.kill(server.pid, signal.SIGCONT)

    def test_outlives_its_server(self, namespace: str, systemd: Systemd, tmp_path: Path) -> None:
        """Started before its server it is ready anyway, and continues after each of its restarts."""
        with tempfile.TemporaryDirectory(prefix="qworker-") as directory:
            socket, log = Path(directory, "s"), tmp_path / "log"

            def moved(number: int) -> bool:
                drive = Drive(f"unix://{socket}", namespace, "q")
                count = drive.redis.llen(drive.keys.ready[0])
                drive.close()
                return bool(count == number)

            with (
                log.open("wb") as stderr,
                daemon(
                    f"unix://{socket}", namespace, systemd, stderr=stderr, tick="100ms"
                ) as process,
            ):
                systemd.wait_for("READY=1")
                assert systemd.next() == "STATUS=the server does not answer"
                port = logged(log, "metrics_served")[0]["port"]
                assert get(port, "/healthz") == (200, "ok\n")
                status, problem = get(port, "/readyz")
                assert status == 503
                assert problem.startswith("the server does not answer: the server was not reached")
                for number in (1, 2):
                    with server_at(socket):
                        wait_until(lambda: _answers(socket))
                        drive = Drive(f"unix://{socket}", namespace, "q")
                        drive.redis.hset(queues_key(namespace), "q", 1)
                        drive.send(f"m{number}", delay_ms=50, at=drive.redis.time()[0] * 1000)
                        drive.redis.hdel(drive.keys.meta, "test")
                        drive.close()
                        systemd.wait_for("STATUS=queues=1 reapers=1")
                        wait_until(lambda number=number: moved(number))
                    systemd.wait_for("STATUS=the server does not answer")
                process.send_signal(signal.SIGTERM)
                assert process.wait(DEADLINE_S) == 0
            failed = logged(log, "tick_failed")[0]
            assert failed["level"] == "error"
            assert str(socket) in failed["problem"]
            assert "check that it runs, and the URL" in failed["problem"]
            assert "tries again every 2 s" in failed["next_step"]
            assert len(logged(log, "tick_recovered")) == 2

    def test_serves_metrics_and_health(
        self, store_url: str, namespace: str, systemd: Systemd, tmp_path: Path
    ) -> None:
        """The three pages exist, with this namespace's queues."""
        log = tmp_path / "log"
        drive = Drive(store_url, namespace, "emails")
        drive.redis.hdel(drive.keys.meta, "test")
        drive.redis.rpush(drive.keys.ready[0], '{"secret": 1}')
        with (
            log.open("wb") as stderr,
            daemon(store_url, namespace, systemd, stderr=stderr, durability="warn") as process,
        ):
            systemd.wait_for("READY=1")
            port = logged(log, "metrics_served")[0]["port"]
            status, page = get(port, "/metrics")
            assert status == 200
            assert 'qworker_messages_ready{queue="emails"} 1.0\n' in page
            assert "qworker_server_durable 1.0\n" in page
            assert "process_resident_memory_bytes" in page
            assert "secret" not in page
            assert get(port, "/healthz") == get(port, "/readyz") == (200, "ok\n")
            process.send_signal(signal.SIGTERM)
            assert process.wait(DEADLINE_S) == 0
        (started,) = logged(log, "daemon_started")
        shown = str(ServerURL.parse(store_url))
        assert (started["namespace"], started["url"]) == (namespace, shown)
        assert logged(log, "daemon_stopped")[0]["signal"] == "SIGTERM"
        assert "secret" not in log.read_text()
        drive.close()

    def test_labels_are_limited_by_the_option(
        self, store_url: str, namespace: str, systemd: Systemd, tmp_path: Path
    ) -> None:
        """Queues beyond that share a label."""
        log = tmp_path / "log"
        drives = [Drive(store_url, namespace, name) for name in ("a", "b", "c")]
        for drive in drives:
            drive.redis.hdel(drive.keys.meta, "test")
            drive.redis.rpush(drive.keys.ready[0], "{}")
            drive.close()
        with (
            log.open("wb") as stderr,
            daemon(store_url, namespace, systemd, stderr=stderr, metrics_queues=1),
        ):
            systemd.wait_for("READY=1")
            _, page = get(logged(log, "metrics_served")[0]["port"], "/metrics")
        assert 'qworker_messages_ready{queue="a"} 1.0\n' in page
        assert 'qworker_messages_ready{queue="__other__"} 2.0\n' in page
        assert 'queue="b"' not in page

    @pytest.mark.bad_input("server: settings that lose messages")
    def test_strict_refuses_a_server_that_loses_messages(
        self, namespace: str, tmp_path: Path
    ) -> None:
        """With --durability strict such a server ends the daemon before its first pass, saying why."""
        log = tmp_path / "log"
        with servers.start("valkey", "--appendonly", "no") as server:
            drive = Drive(server.url, namespace, "found")
            drive.redis.rpush(drive.keys.ready[0], "{}")
            with (
                log.open("wb") as stderr,
                daemon(server.url, namespace, durability="strict", stderr=stderr) as process,
            ):
                assert process.wait(DEADLINE_S) == EXIT_NOT_DURABLE
            assert not drive.redis.exists(queues_key(namespace))
            drive.close()
        (refused,) = logged(log, "server_refused")
        assert any("appendonly yes" in finding for finding in refused["findings"])

    @pytest.mark.bad_input("configuration: metrics port")
    def test_port_that_is_taken_does_not_stop_it(
        self, store_url: str, namespace: str, systemd: Systemd, tmp_path: Path
    ) -> None:
        """Two daemons with one metrics port: the second reaps without metrics."""
        first, second = tmp_path / "1", tmp_path / "2"
        with first.open("wb") as stderr, daemon(store_url, namespace, systemd, stderr=stderr):
            systemd.wait_for("READY=1")
            port = logged(first, "metrics_served")[0]["port"]
            with (
                second.open("wb") as other,
                daemon(store_url, namespace, systemd, stderr=other, port=port),
            ):
                systemd.wait_for("READY=1")
                assert logged(second, "metrics_not_served")[0]["level"] == "warning"

    @pytest.mark.bad_input("number or time: tick of half the visibility")
    def test_warns_of_a_tick_that_is_long_for_a_queue(
        self, store_url: str, namespace: str, systemd: Systemd, tmp_path: Path
    ) -> None:
        """A tick of half a queue's visibility or more is logged, with a better one; the work continues."""
        app = QWorker(namespace, url=store_url)
        app.queue("slow").configure(QueueAttributes(visibility="30s"))
        app.queue("fast").configure(QueueAttributes(visibility="3s"))
        log = tmp_path / "log"
        with (
            log.open("wb") as stderr,
            daemon(store_url, namespace, systemd, tick="2s", stderr=stderr),
        ):
            wait_until(lambda: bool(logged(log, "tick_too_long")))
            systemd.wait_for("READY=1")
        (warning,) = logged(log, "tick_too_long")
        assert (warning["queue"], warning["level"]) == ("fast", "warning")
        assert warning["problem"].startswith("tick: 2s is too long for the visibility 3s")
        app.close()

    def test_watchdog_hears_of_passes_only(self, namespace: str, systemd: Systemd) -> None:
        """Pings come while passes are made, and stop while a pass hangs."""
        environ = {"WATCHDOG_USEC": "400000"}
        with (
            servers.start("valkey") as server,
            daemon(server.url, namespace, systemd, tick="50ms", environ=environ),
        ):
            systemd.wait_for("READY=1")
            for _ in range(3):
                systemd.wait_for("WATCHDOG=1")
            os.kill(server.pid, signal.SIGSTOP)
            systemd.wait_for_silence(1.0)
            os.kill(server.pid, signal.SIGCONT)
            systemd.wait_for("WATCHDOG=1")

    @pytest.mark.bad_input("surroundings: closed stdout, full disk under the log")
    def test_log_that_cannot_be_written_does_not_stop_it(
        self, store_url: str, namespace: str, systemd: Systemd
    ) -> None:
        """A reader of the log that went away costs the log alone."""
        reading, writing = os.pipe()
        with (
            os.fdopen(writing, "wb") as stderr,
            daemon(store_url, namespace, systemd, stderr=stderr) as process,
        ):
            os.close(reading)
            systemd.wait_for("READY=1")
            process.send_signal(signal.SIGTERM)
            assert process.wait(DEADLINE_S) == 0


def _answers(socket: Path) -> bool:
    client = redis.Redis(unix_socket_path=str(socket))
    try:
        return bool(client.ping())
    except redis.RedisError:
        return False
    finally:
        client.close()
