"""Starts children, each with its configuration only."""

from __future__ import annotations

import signal
import time
from typing import TYPE_CHECKING, Final

from qworker.consumer.manifest import ChildConfig, slots_for
from qworker.consumer.supervisor.processes.cpus import usable_cpus
from qworker.consumer.supervisor.processes.process import ChildProcess

if TYPE_CHECKING:
    from qworker.consumer.options import RunOptions
    from qworker.store.url import ServerURL
    from qworker.telemetry.options import LogOptions

__all__ = ["STOPPING", "Starter"]

#: The signals that end a worker; SIGHUP (the terminal is gone) unless it was started under nohup.
STOPPING: Final = frozenset({signal.SIGTERM, signal.SIGINT, signal.SIGHUP})


class Starter:
    """Starts the children of one app at one server; `processes` of them share its queues.

    It imports little: children can start while the rest of their supervisor is imported.
    """

    def __init__(self, app: str, url: ServerURL, options: RunOptions, logs: LogOptions) -> None:
        self.processes = options.procs or usable_cpus()
        self.app = app
        self.url = url
        self.options = options
        self.logs = logs
        #: By `time.monotonic`: when the worker began to start.
        self.begun = time.monotonic()
        self._slots = slots_for(options.concurrency or 0)
        self._early: dict[int, ChildProcess] = {}

    def start_early(self) -> None:
        """Start all children now; `start` returns them later, and tries again those that could not be started."""
        for number in range(self.processes):
            try:
                self._early[number] = self.start(number)
            except OSError:
                return

    def start(self, number: int) -> ChildProcess:
        """Start the child with this number. Raises `OSError` if the process cannot be started."""
        if number in self._early:
            return self._early.pop(number)
        options = self.options
        config = ChildConfig(
            app=self.app,
            url=self.url,
            number=number,
            board=-1,
            control=-1,
            slots=self._slots,
            concurrency=options.concurrency or 0,
            queues=list(options.queues or options.weights),
            weights={name: float(weight) for name, weight in options.weights.items()},
            burst=options.burst,
            max_messages=options.max_messages,
            max_batch=options.batch or 0,
            visibility_ms=options.visibility_ms,
            unknown_wait_ms=options.unknown_wait_ms,
            takes_suspects=number % 4 == 0,
            log_format=self.logs.log_format,
            log_level=self.logs.log_level,
            loop=options.loop,
            log_messages=options.log_messages,
        )
        child = ChildProcess(config, self._slots)
        child.board.peers = self.processes
        return child
