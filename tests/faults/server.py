"""A server of a run: it can be killed, frozen, stopped and started again over the same directory."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

import redis

from qworker.store.connection import ConnectionFactory
from qworker.store.engine import identify, probe, server_command, server_environment
from tests import servers
from tests.faults.system import ClockShim, die_with_parent

__all__ = ["FaultServer"]

_START_S = 60.0


class FaultServer:
    """A server with an AOF, synced every second unless `arguments` say otherwise. A context; ends with this process.

    `environ` is added to its environment. `directory` holds its files; None is a new one, gone at the end.
    """

    def __init__(
        self,
        *arguments: str,
        engine: str = "valkey",
        environ: dict[str, str] | None = None,
        directory: Path | None = None,
    ) -> None:
        self.directory = Path(tempfile.mkdtemp(prefix="qworker-f"))
        self.data = directory or self.directory
        self.socket = self.directory / "s"
        self.url = f"unix://{self.socket}"
        self._arguments: Sequence[str] = arguments
        self._environ = environ or {}
        found = identify(dict(servers.engines())[engine])
        assert found is not None
        self.engine = found
        #: Its clock, where that can be set.
        self.clock: ClockShim | None = None
        self._process: subprocess.Popen[bytes] | None = None
        self._clients: list[redis.Redis] = []

    def __enter__(self) -> FaultServer:
        self.start()
        return self

    def __exit__(self, *exc: object) -> None:
        for client in self._clients:
            client.close()
        if self._process is not None:
            self.thaw()
            self.kill()
        shutil.rmtree(self.directory, ignore_errors=True)

    @property
    def pid(self) -> int:
        """The process that serves, or served last."""
        assert self._process is not None
        return self._process.pid

    def start(self, *arguments: str) -> None:
        """Start it and wait until it answers; `arguments` replace those of before."""
        if arguments:
            self._arguments = arguments
        with (self.directory / "server.log").open("ab") as log:
            self._process = subprocess.Popen(
                [*server_command(self.engine, self.data, self.socket), *self._arguments],
                env={**server_environment(), **self._environ},
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                preexec_fn=die_with_parent,
            )
        ending = time.monotonic() + _START_S
        while probe(self.url) != "ready":
            if self._process.poll() is not None or time.monotonic() > ending:
                raise RuntimeError(f"the server did not start: {self.log()[-2000:]}")
            time.sleep(0.01)

    def kill(self) -> None:
        """End it with SIGKILL."""
        assert self._process is not None
        self._process.kill()
        self._process.wait(30)

    def stop(self) -> None:
        """End it with SIGTERM."""
        assert self._process is not None
        self._process.terminate()
        self._process.wait(30)

    def freeze(self) -> None:
        """Let it stand still."""
        os.kill(self.pid, signal.SIGSTOP)

    def thaw(self) -> None:
        """Let it go on."""
        if self._process is not None and self._process.poll() is None:
            os.kill(self.pid, signal.SIGCONT)

    def log(self) -> str:
        """What it has logged."""
        return (self.directory / "server.log").read_text(errors="replace")

    def redis(self) -> redis.Redis:
        """Open a plain client without retries."""
        client = ConnectionFactory(self.url).redis()
        self._clients.append(client)
        return client
