"""A store for one process: in a temporary directory, gone with its owner. For the demo and for tests."""

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType
from typing import Final, Self
from urllib.parse import quote

import psutil

from qworker.errors import StoreError
from qworker.store.engine import (
    DEADLINE_S,
    NO_ENGINE,
    POLL_S,
    SOCKET_PATH_LIMIT,
    Engine,
    find_engines,
    identify,
    last_lines,
    probe,
    server_command,
    server_environment,
)

__all__ = ["PrivateStore"]

# The watcher: it starts the server, says its pid, and then waits for a line, or for the end of its input, which the
# kernel brings about when the owner dies, even by SIGKILL. Why not PR_SET_PDEATHSIG: Linux only, and it fires when the
# *thread* that started the server ends. An owner's forked children (not those it executes) keep the input open, and so
# the store alive, until the last of them is gone.
_WATCHER: Final = """
directory=$1; shift
"$@" </dev/null >>"$directory/server.log" 2>&1 &
server=$!
echo "$server"
read -r _
kill -KILL "$server" 2>/dev/null
wait "$server" 2>/dev/null
rm -rf -- "$directory"
"""


class PrivateStore:
    """Runs a server of its own in a new temporary directory; both go when the context ends or the owner dies.

        with PrivateStore() as store:
            ConnectionFactory(store.url)

    Configured as `qworker.store.embedded.Store` does it, so also with an AOF; `arguments` are added and win.
    """

    def __init__(
        self,
        *,
        engine: str | None = None,
        arguments: Sequence[str] = (),
        binary: str | None = None,
    ) -> None:
        """Choose the engine ("valkey", "redis", None: what is found first) or its `binary`; starts nothing."""
        self._wanted, self._binary, self._arguments = engine, binary, tuple(arguments)

    def __enter__(self) -> Self:
        """Start the server and wait until it answers, at most 10 s; raises `StoreError` if it does not."""
        self._owner = os.getpid()
        self.engine = self._choose_engine()
        self.directory = _temporary_directory()
        self.socket = self.directory / "s"
        self.url = f"unix://{quote(str(self.socket))}"
        self._watcher = self._start()
        try:
            self.pid = self._read_pid()
            self._wait_until_ready()
        except BaseException:
            self._end()
            raise
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """End the server and delete its directory. Does nothing in a forked child: the store is not its own."""
        if os.getpid() == self._owner:
            self._end()

    def _choose_engine(self) -> Engine:
        if self._binary is not None:
            engine = identify(self._binary)
            if engine is None:
                raise StoreError(f"{self._binary} is no Redis or Valkey server")
            return engine
        for engine in find_engines():
            if self._wanted in (None, engine.name):
                return engine
        if self._wanted is None:
            raise StoreError(NO_ENGINE)
        raise StoreError(f"no {self._wanted} server (7.0 or newer) was found on this machine")

    def _start(self) -> subprocess.Popen[bytes]:
        command = [*server_command(self.engine, self.directory, self.socket), *self._arguments]
        try:
            return subprocess.Popen(
                ["/bin/sh", "-c", _WATCHER, "qworker-store", str(self.directory), *command],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
                # Ctrl-C reaches the owner only, which then decides when its store ends.
                start_new_session=True,
                cwd="/",
                umask=0o077,
                env=server_environment(),
            )
        except OSError as error:
            shutil.rmtree(self.directory, ignore_errors=True)
            raise StoreError(f"/bin/sh cannot be run: {error}") from error

    def _read_pid(self) -> int:
        assert self._watcher.stdout is not None
        return int(self._watcher.stdout.readline())

    def _wait_until_ready(self) -> None:
        deadline = time.monotonic() + DEADLINE_S
        while probe(self.url) != "ready":
            if not _runs(self.pid) or time.monotonic() > deadline:
                log = last_lines(self.directory / "server.log")
                raise StoreError(f"{self.engine} did not start: {log}")
            time.sleep(POLL_S)

    def _end(self) -> None:
        # A line and not only the end of its input: a forked child may hold that open.
        self._watcher.communicate(b"\n", timeout=DEADLINE_S)


def _temporary_directory() -> Path:
    # The system's directory for temporary files may be too deep for a socket (macOS, pytest).
    for parent in (tempfile.gettempdir(), "/tmp"):  # noqa: S108
        if len(os.fsencode(Path(parent, "qworker-12345678", "s"))) <= SOCKET_PATH_LIMIT:
            return Path(tempfile.mkdtemp(prefix="qworker-", dir=parent)).resolve()
    raise StoreError("the directory for temporary files is too long for a socket; set TMPDIR")


def _runs(pid: int) -> bool:
    try:
        # Its parent waits for the owner, so a server that ended is a zombie until then.
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False
