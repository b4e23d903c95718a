"""Starts children: tells each what it has to know, and nothing else of the supervisor reaches it."""

from __future__ import annotations

import signal
from typing import TYPE_CHECKING, Final

from qworker.consumer.cpus import usable_cpus
from qworker.consumer.manifest import ChildConfig, slots_for
from qworker.consumer.process import ChildProcess

if TYPE_CHECKING:
    from qworker.consumer.options import RunOptions
    from qworker.store.url import ServerURL
    from qworker.telemetry.options import LogOptions

__all__ = ["STOPPING", "Starter"]

#: The signals that end a worker; SIGHUP (its terminal is gone) unless it was started under nohup.
STOPPING: Final = frozenset({signal.SIGTERM, signal.SIGINT, signal.SIGHUP})


class Starter:
    """Starts the children of one app at one server; `places` is the number of those that share its queues.

    It needs little to be imported: children can be on their way while the rest of their supervisor comes to be.
    """

    def __init__(self, app: str, url: ServerURL, options: RunOptions, logs: LogOptions) -> None:
        self.places = options.procs or usable_cpus()
        self._app = app
        self._url = url
        self._options = options
        self._logs = logs
        self._slots = slots_for(options.concurrency or 0)
        self._early: dict[int, ChildProcess] = {}

    def start_early(self) -> None:
        """Start the child of every place; `start` returns it then, and tries again what cannot be started now."""
        for number in range(self.places):
            try:
                self._early[number] = self.start(number)
            except OSError:
                return

    def start(self, number: int) -> ChildProcess:
        """Start the child of a place. Raises `OSError` where there can be no process."""
        if number in self._early:
            return self._early.pop(number)
        options = self._options
        config = ChildConfig(
            app=self._app,
            url=self._url,
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
            log_format=self._logs.log_format,
            log_level=self._logs.log_level,
            loop=options.loop,
            log_messages=options.log_messages,
        )
        child = ChildProcess(config, self._slots)
        child.board.peers = self.places
        return child
