"""Starts children: tells each what it has to know, and nothing else of the supervisor reaches it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from qworker.consumer.assembly import slots_for
from qworker.consumer.manifest import ChildConfig
from qworker.consumer.process import ChildProcess

if TYPE_CHECKING:
    from qworker.consumer.options import RunOptions
    from qworker.store.url import ServerURL
    from qworker.telemetry.options import LogOptions

__all__ = ["Starter"]


class Starter:
    """Starts the children of one app at one server. `peers`: how many children share its queues."""

    def __init__(
        self, app: str, url: ServerURL, options: RunOptions, logs: LogOptions, *, peers: int
    ) -> None:
        self._app = app
        self._url = url
        self._options = options
        self._logs = logs
        self._peers = peers
        self._slots = slots_for(options.concurrency or 0)

    def start(self, number: int) -> ChildProcess:
        """Start the child of a place. Raises `OSError` where there can be no process."""
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
            takes_suspects=number % 4 == 0,
            log_format=self._logs.log_format,
            log_level=self._logs.log_level,
        )
        child = ChildProcess(config, self._slots)
        child.board.peers = self._peers
        return child
