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
from typing import ClassVar

import redis

from qworker.store.connections import ConnectionFactory
from qworker.store.embedded.engines import identify, probe, server_command, server_environment
from tests import servers
from tests.relay import Relay
from verification.faults.system import ClockShim, die_with_parent

__all__ = ["FaultServer"]

_START_S = 60.0


class FaultServer:
    """A server with an AOF, synced every second unless `arguments` say otherwise. A context; ends with this process.

    `environ` is added to its environment. `directory` holds its files; None is a new one, gone at the end.
    Processes of a run reach it at `url`, the run itself at `near`.
    """

    #: How far away all servers are from what uses them, in ms; 0 is right beside.
    rtt_ms: ClassVar[float] = 0.0

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
        self.near = self.url = f"unix://{self.socket}"
        self._arguments: Sequence[str] = arguments
        self._environ = environ or {}
        identified = identify(servers.binary_of(engine))
        assert identified is not None
        self.engine = identified
        #: Its clock, where that can be set.
        self.clock: ClockShim | None = None
        self._process: subprocess.Popen[bytes] | None = None
        self._clients: list[redis.Redis] = []
        self._relay = Relay(self.near, rtt_ms=self.rtt_ms) if self.rtt_ms else None

    def __enter__(self) -> FaultServer:
        self.start()
        if self._relay is not None:
            self.url = self._relay.__enter__().url
        return self

    def __exit__(self, *exc: object) -> None:
        for client in self._clients:
            client.close()
        if self._relay is not None:
            self._relay.__exit__(None, None, None)
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
        while probe(self.near) != "ready":
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
        """Freeze it."""
        os.kill(self.pid, signal.SIGSTOP)

    def thaw(self) -> None:
        """Let it continue."""
        if self._process is not None and self._process.poll() is None:
            os.kill(self.pid, signal.SIGCONT)

    def log(self) -> str:
        """What it has logged."""
        return (self.directory / "server.log").read_text(errors="replace")

    def redis(self) -> redis.Redis:
        """Open a plain client without retries, right beside the server."""
        client = ConnectionFactory(self.near).redis()
        self._clients.append(client)
        return client
