"""The processes around a server: producers, workers, daemons and pullers, each with the kit on its path."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Iterable
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import msgspec
import psutil

from tests.chaos import ChaosProxy
from tests.consumer.forkserver import fork_server
from tests.consumer.workers import Worker
from verification.faults.load import Load
from verification.faults.server import FaultServer

__all__ = ["KIT", "NAMESPACE", "ROOT", "Processes", "send_signal"]

NAMESPACE = "faults"
ROOT = Path(__file__).parents[2]
KIT = Path(__file__).with_name("kit")


class Processes:
    """Starts the processes of one stage, and ends them. A role is `worker-0`, `daemon-1`, `p0` or the like.

    `environ` is given to those started from now on. `ended` are those that were replaced. `warm`: they are forked from
    a process that has imported already, unless their interpreter is to start in another way.
    """

    def __init__(
        self, server: FaultServer, directory: Path, load: Load, mutation: str, *, warm: bool = False
    ) -> None:
        self.server, self.directory, self.load = server, directory, load
        self.workers: list[Worker] = []
        self.daemons: list[Worker] = []
        self.producers: list[Worker] = []
        self.pullers: list[Worker] = []
        self.ended: list[Worker] = []
        self.workers_replaced = 0
        self.proxies: dict[str, ChaosProxy] = {}
        self.environ: dict[str, str] = {}
        self._mutation = mutation
        self._warm = warm
        self._proxies = ExitStack()

    @property
    def history(self) -> Path:
        """The directory of the histories."""
        return self.directory / "history"

    @property
    def running(self) -> list[Worker]:
        """All processes of the load."""
        return [*self.producers, *self.workers, *self.daemons, *self.pullers]

    @property
    def victims(self) -> list[Worker]:
        """The workers that may be killed: all but the first, so that a healthy consumer exists."""
        return self.workers[1:] or self.workers

    def children(self, workers: Iterable[Worker] = ()) -> list[int]:
        """The pids of the children that live; of some workers, or of all."""
        return [pid for worker in workers or self.workers for pid in worker.children()]

    def spoken(self, pids: Iterable[int]) -> list[int]:
        """Those of some processes that have come as far as to note anything."""
        return [pid for pid in pids if any(self.history.glob(f"{pid}-*.history"))]

    def url(self, role: str) -> str:
        """The server's URL for a role: through its own proxy where the load is proxied."""
        if not self.load.proxied:
            return self.server.url
        if role not in self.proxies:
            self.proxies[role] = self._proxies.enter_context(ChaosProxy(self.server.url))
        return self.proxies[role].url

    # -- starting ------------------------------------------------------------------------------

    def worker(self, *flags: str) -> Worker:
        """Start a `qworker run`, as the load says."""
        given = ["--procs", str(self.load.procs), "--no-reaper", "--queues", self.load.queues]
        given += ["--log-messages", "info"]
        words = ["run", self.load.app, *given, *self.load.flags, *flags]
        return self._listening(self.workers, "worker", words)

    def daemon(self, *flags: str) -> Worker:
        """Start a `qworker daemon`."""
        words = ["daemon", "--tick", f"{self.load.tick_s * 1000:.0f}ms", *flags]
        return self._listening(self.daemons, "daemon", words)

    def produce(self, **changes: Any) -> Worker:
        """Start a producer, which sends as the load says but for `changes`."""
        role = f"p{len(self.producers)}"
        sending = msgspec.structs.replace(self.load.sending, **changes)
        text = msgspec.json.encode(sending).decode()
        return self._start(self.producers, role, self.load.producer, role, text)

    def pull(self, queues: str = "load") -> Worker:
        """Start a consumer that receives from queues by the low-level calls."""
        role = f"puller-{len(self.pullers)}"
        return self._start(self.pullers, role, "verification.faults.puller", queues)

    def command(self, *words: str) -> Worker:
        """Start another `qworker` command."""
        return self._start(self.ended, "operator", "qworker", *words)

    def replace(self, process: Worker) -> Worker:
        """Start another worker or daemon in the place of one that has ended, or is about to."""
        self.ended.append(process)
        if process in self.daemons:
            self.daemons.remove(process)
            return self.daemon()
        self.workers.remove(process)
        self.workers_replaced += 1
        return self.worker()

    def mind(self) -> None:
        """Start another worker or daemon in the place of each that has ended."""
        for process in [*self.workers, *self.daemons]:
            if process.process.poll() is not None:
                self.replace(process)

    def _listening(self, among: list[Worker], kind: str, words: list[str]) -> Worker:
        port = [] if "--metrics-port" in words else ["--metrics-port", "0"]
        return self._start(among, f"{kind}-{len(among)}", "qworker", *words, *port)

    def _start(self, among: list[Worker], role: str, module: str, *words: str) -> Worker:
        command = [sys.executable, "-m", module, *words]
        environ = self._environ(role)
        warm = self._warm and fork_server().resembles(environ, environ)
        process = Worker(command, self.directory, environ, warm=warm)
        among.append(process)
        return process

    def _environ(self, role: str) -> dict[str, str]:
        inherited = {name: v for name, v in os.environ.items() if not name.startswith("QWORKER")}
        return {
            **inherited,
            "PYTHONPATH": f"{KIT}:{ROOT}",
            "QWORKER_URL": self.url(role),
            "QWORKER_NAMESPACE": NAMESPACE,
            "QWORKER_LOG_FORMAT": "json",
            "FAULTS_NAMESPACE": NAMESPACE,
            "FAULTS_HISTORY": str(self.history),
            "FAULTS_ROLE": role,
            "FAULTS_MUTATION": self._mutation,
            **self.environ,
        }

    # -- ending --------------------------------------------------------------------------------

    def check_producers(self) -> None:
        """Raise where a producer has ended."""
        for producer in self.producers:
            if producer.process.poll() not in (None, 0, -signal.SIGKILL, -signal.SIGTERM):
                raise RuntimeError(f"a producer has failed: {producer.log.read_text()[-500:]}")

    def end_processes(self) -> None:
        """Kill whatever still runs, and close the proxies."""
        for process in (*self.running, *self.ended):
            if process.process.poll() is None:
                for pid in [process.process.pid, *_descendants(process.process.pid)]:
                    send_signal(pid, signal.SIGCONT)
                    send_signal(pid, signal.SIGKILL)
                process.process.wait(30)
        self._proxies.close()


def send_signal(pid: int, number: int) -> None:
    """Send a signal to a process that may have ended."""
    try:
        os.kill(pid, number)
    except ProcessLookupError:
        return


def _descendants(pid: int) -> list[int]:
    try:
        return [child.pid for child in psutil.Process(pid).children(recursive=True)]
    except psutil.NoSuchProcess:
        return []
