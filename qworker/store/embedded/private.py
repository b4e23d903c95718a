"""A store for one process, in a temporary directory, gone with its owner: for the demo and for tests."""

from __future__ import annotations

import os
import shutil
import subprocess
import time
from collections.abc import Sequence
from types import TracebackType
from typing import Final, Self
from urllib.parse import quote

import psutil

from qworker.errors import StoreError
from qworker.store.embedded.engines import (
    DEADLINE_S,
    NO_ENGINE,
    POLL_S,
    Engine,
    find_engines,
    identify,
    last_lines,
    probe,
    server_command,
    server_environment,
    socket_directory,
)

__all__ = ["PrivateStore"]

# The watcher starts the server, prints its pid, and waits for a line or the end of its input. The kernel closes that
# input when the owner dies, even by SIGKILL. PR_SET_PDEATHSIG is Linux only, and fires when the *thread* that started
# the server ends. Forked children of the owner (without an exec) keep the input open, and so the store alive.
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
    """Runs a server in a new temporary directory; both go when the context ends or the owner dies.

        with PrivateStore() as store:
            ConnectionFactory(store.url)

    The server is configured like that of a `Store`, AOF included; `arguments` come last and win.
    """

    def __init__(
        self,
        *,
        engine: str | None = None,
        arguments: Sequence[str] = (),
        binary: str | None = None,
    ) -> None:
        """Choose the engine ("valkey", "redis", None: the first one found) or its `binary`. Does not start it."""
        self._wanted, self._binary, self._arguments = engine, binary, tuple(arguments)

    def __enter__(self) -> Self:
        """Start the server and wait up to 10 s until it answers. Raises `StoreError`."""
        self._owner = os.getpid()
        self.engine = self._choose_engine()
        self.directory = socket_directory().resolve()
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
        """Stop the server and delete its directory. Does nothing in a forked child, which does not own it."""
        if os.getpid() == self._owner:
            self._end()

    def _choose_engine(self) -> Engine:
        if self._binary is not None:
            engine = identify(self._binary)
            if engine is None:
                raise StoreError(f"{self._binary} is not a Redis or Valkey server")
            return engine
        for engine in find_engines():
            if self._wanted in (None, engine.name):
                return engine
        if self._wanted is None:
            raise StoreError(NO_ENGINE)
        raise StoreError(f"found no {self._wanted} server (7.0 or newer) on this machine")

    def _start(self) -> subprocess.Popen[bytes]:
        command = [*server_command(self.engine, self.directory, self.socket), *self._arguments]
        try:
            return subprocess.Popen(
                ["/bin/sh", "-c", _WATCHER, "qworker-store", str(self.directory), *command],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
                # Ctrl-C must reach the owner only, which decides when to stop its store.
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
        # Not only the end of its input, which a forked child may hold open.
        self._watcher.communicate(b"\n", timeout=DEADLINE_S)


def _runs(pid: int) -> bool:
    try:
        # A server that ended is a zombie: its parent waits for the owner, not for it.
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False
