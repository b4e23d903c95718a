"""crash: what a server that is killed under sends has lost of those that it confirmed, by its settings."""

from __future__ import annotations

import signal
import subprocess
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager, suppress
from pathlib import Path

from benchmarks.figures import Figure, at_most, gave_up, measured
from benchmarks.rounds import ContenderError, interleave
from benchmarks.stand import NAMESPACE, PAD, Plan, Stand, wait_until
from qworker.client.execute.sync import Client
from qworker.client.queue import Queue
from qworker.errors import QworkerError
from qworker.store.connections import ConnectionFactory
from qworker.store.embedded.engines import find_engines, probe
from verification.faults.system import tmpfs

__all__ = ["crash"]

_SNAPSHOTS = "snapshots"
#: The settings of a server by name; the snapshots are those of Debian's package.
_SETTINGS = {
    _SNAPSHOTS: ("--appendonly", "no", "--save", "3600 1 300 100 60 10000"),
    "everysec": ("--appendonly", "yes", "--appendfsync", "everysec", "--save", ""),
    "always": ("--appendonly", "yes", "--appendfsync", "always", "--save", ""),
}
_FULL = ", disk full"
#: Threads that send one message at a time.
_THREADS = 8
_GIVE_UP_S = 0.3
#: The small disk, and the bytes of it that a server does not get: it keeps them free to start again.
_DISK = "8m"
_BALLAST = 6 * 2**20


def crash(plan: Plan) -> list[Figure]:
    """Kill a server after `plan.messages` ms of sends, start it again, and look for every confirmed send.

    With a full disk: kill it once it refuses sends, unless it has ended by itself.
    """
    contenders: dict[str, Callable[[], dict[str, float]]] = {
        name: _contender(arguments, plan.messages / 1000) for name, arguments in _SETTINGS.items()
    }
    contenders |= {
        name + _FULL: _contender(arguments, None)
        for name, arguments in _SETTINGS.items()
        if name != _SNAPSHOTS
    }
    samples = interleave(contenders, plan.rounds, plan.say)
    figures = []
    for name in samples.having("lost"):
        for measure, unit in (("confirmed", "sends"), ("per second", "sends/s")):
            values = samples.of(name, measure)
            figures.append(measured("crash", f"{name}: {measure}", values, unit))
        # It confirms the calls of one turn before it learns that it could not write them; `always` ends instead.
        bound = at_most(_THREADS if name == f"everysec{_FULL}" else 0)
        goal = None if name == _SNAPSHOTS else bound
        figures.append(measured("crash", f"{name}: lost", samples.of(name, "lost"), "sends", goal))
    return [*figures, *gave_up("crash", samples.gave_up)]


def _contender(arguments: tuple[str, ...], seconds: float | None) -> Callable[[], dict[str, float]]:
    return lambda: _crashed(arguments, seconds)


def _crashed(arguments: tuple[str, ...], seconds: float | None) -> dict[str, float]:
    """Send for some seconds, or (None) until a small disk is full; kill the server, and count what is left."""
    with _directory(small=seconds is None) as directory:
        with _server(directory, arguments) as server:
            begun = time.monotonic()
            confirmed = _send(directory, server, seconds)
            took = time.monotonic() - begun
        (directory / "ballast").unlink(missing_ok=True)
        with _server(directory, arguments):
            lost = confirmed - _stored(directory)
    return {"confirmed": len(confirmed), "per second": len(confirmed) / took, "lost": len(lost)}


def _send(directory: Path, server: subprocess.Popen[bytes], seconds: float | None) -> set[str]:
    """Send from several threads, and kill the server meanwhile or once it refuses; returns the confirmed ids."""
    confirmed: list[list[str]] = [[] for _ in range(_THREADS)]

    def work(ids: list[str]) -> None:
        with closing(_client(directory)) as client, suppress(QworkerError):
            queue = Queue(client, NAMESPACE, "work")
            while True:
                ids.append(queue.send(PAD))

    threads = [threading.Thread(target=work, args=(ids,)) for ids in confirmed]
    for thread in threads:
        thread.start()
    if seconds is not None:
        time.sleep(seconds)
        server.send_signal(signal.SIGKILL)
    for thread in threads:
        thread.join()
    return {message_id for ids in confirmed for message_id in ids}


def _stored(directory: Path) -> set[str]:
    with closing(_client(directory)) as client:
        items = client.ask("LRANGE", Queue(client, NAMESPACE, "work").keys.ready[0], 0, -1)
    return {item.split(b" ", 2)[1].decode() for item in items}


def _client(directory: Path) -> Client:
    return Client(ConnectionFactory(_url(directory)), give_up_s=_GIVE_UP_S)


def _url(directory: Path) -> str:
    return f"unix://{directory}/s"


@contextmanager
def _server(directory: Path, arguments: tuple[str, ...]) -> Iterator[subprocess.Popen[bytes]]:
    """Run a server with these settings on the files in a directory; killed at the end."""
    binary = Stand.binary or next(iter(find_engines())).binary
    place = ("--port", "0", "--unixsocket", str(directory / "s"), "--dir", str(directory))
    log = directory / "server.log"
    with log.open("ab") as out:
        server = subprocess.Popen(
            [binary, *place, "--auto-aof-rewrite-percentage", "0", *arguments],
            stdout=out,
            stderr=out,
        )
    try:
        wait_until(lambda: server.poll() is not None or probe(_url(directory)) == "ready")
        if server.poll() is not None:
            raise RuntimeError(f"the server ended: {log.read_text(errors='replace')[-600:]}")
        yield server
    finally:
        server.kill()
        server.wait()
        (directory / "s").unlink(missing_ok=True)


@contextmanager
def _directory(*, small: bool) -> Iterator[Path]:
    """Make a directory for the files of a server; a small one is a disk of its own."""
    if not small:
        with tempfile.TemporaryDirectory(prefix="qworker-crash") as name:
            yield Path(name)
        return
    try:
        disk = tmpfs(_DISK)
        directory = disk.__enter__()
    except OSError as error:
        raise ContenderError(str(error)) from error
    try:
        (directory / "ballast").write_bytes(bytes(_BALLAST))
        yield directory
    finally:
        disk.__exit__(None, None, None)
