"""Describes a worker for `worker ls` and `top`, in a document that it writes every two seconds.

Each time it also reads whether an operator wants the worker to leave (`worker drain`).
"""

from __future__ import annotations

import os
import socket
import time
from collections.abc import Sequence
from functools import partial
from typing import TYPE_CHECKING, Final

import msgspec
import structlog

from qworker.client.namespace.owners import note_owner
from qworker.consumer.board.clock import boot_time
from qworker.consumer.supervisor.watches import rss_bytes
from qworker.engine.note import keep_note
from qworker.engine.raw import raw, server_time
from qworker.errors import AccessDeniedError, OutOfMemoryError
from qworker.telemetry.throttle import LogThrottle
from qworker.wire.ids import new_lane_id
from qworker.wire.keys import leaving_key, workers_key
from qworker.wire.presence import ChildDocument, RunningDocument, WorkerDocument

if TYPE_CHECKING:
    from qworker.client.execute.recurring import RecurringCalls
    from qworker.client.execute.sync import Client
    from qworker.consumer.supervisor.processes.process import ChildProcess

__all__ = ["WorkerPresence"]

_log = structlog.get_logger(__name__)

#: The app of the worker is noted as alive this often, for its schedules.
_OWNER_EVERY_MS: Final = 60_000
#: Running handlers that the document lists per child.
_SHOWN_HANDLERS: Final = 20
#: An app with more tasks than this lists none of them.
_SHOWN_TASKS: Final = 500


class WorkerPresence:
    """Writes and withdraws a worker's document. `owns`: its app has schedules."""

    def __init__(
        self,
        client: Client | RecurringCalls,
        namespace: str,
        app: str,
        tasks: Sequence[str] = (),
        *,
        owns: bool = False,
    ) -> None:
        self._namespace = namespace
        self._client = client
        self._key = workers_key(namespace)
        self._leaving_key = leaving_key(namespace)
        self.name = f"{socket.gethostname()}-{os.getpid()}-{new_lane_id()[:6]}"
        self._app = app
        self._owns = owns
        self._note_owner_at = 0
        self._throttle = LogThrottle()
        self.name_tasks(tasks)
        self._started = time.monotonic()
        self._handled_before = (self._started, 0)
        #: When the document was last written, by the server's clock.
        self.seen_ms = 0

    def name_tasks(self, tasks: Sequence[str]) -> None:
        """Name the tasks of the app, as its newest child has them."""
        self._tasks = tuple(tasks) if len(tasks) <= _SHOWN_TASKS else None

    def own(self, *, schedules: bool) -> None:
        """Note whether the app has schedules: they fire only while a worker of the app is seen now and then."""
        self._owns = schedules
        self._note_owner_at = 0

    def write(
        self,
        children: Sequence[ChildProcess],
        queues: Sequence[str],
        concurrency: int,
        handled: int,
        *,
        leaving: bool = False,
    ) -> bool:
        """Write the document; returns whether the worker is asked to leave. Raises `ServerError`.

        A server that is out of memory refuses the document; that is logged, and the question is asked nevertheless.
        """
        now = time.monotonic()
        # By the server's clock, which readers compare with.
        seen_ms = self._client.execute(server_time(), give_up_s=2.0)
        self.seen_ms = seen_ms
        before, handled_before = self._handled_before
        self._handled_before = (now, handled)
        document = WorkerDocument(
            name=self.name,
            host=socket.gethostname(),
            pid=os.getpid(),
            app=self._app,
            started_ms=seen_ms - round((now - self._started) * 1000),
            seen_ms=seen_ms,
            queues=tuple(queues),
            shards=_shards(children),
            leaving=leaving,
            tasks=self._tasks,
            concurrency=concurrency,
            handled_per_s=round((handled - handled_before) / max(now - before, 0.001), 1),
            children=tuple(_describe(child) for child in children),
        )
        try:
            self._client.execute(
                keep_note("HSET", self._key, self.name, msgspec.json.encode(document), decode=int),
                give_up_s=2.0,
            )
            self._note_owner(seen_ms)
        except OutOfMemoryError as error:
            # A full server still delivers and takes acks: it must not count as one that does not answer.
            if (suppressed := self._throttle.admit("unwritten")) is not None:
                _log.warning(
                    "presence_unwritten", key=self._key, problem=str(error), held_back=suppressed
                )
        is_leaving = raw("HEXISTS", self._leaving_key, self.name, decode=bool)
        return self._client.execute(is_leaving, give_up_s=2.0)

    def _note_owner(self, now_ms: int) -> None:
        if not self._owns or now_ms < self._note_owner_at:
            return
        self._note_owner_at = now_ms + _OWNER_EVERY_MS
        try:
            note_owner(
                partial(self._client.execute, give_up_s=2.0), self._namespace, self._app, now_ms
            )
        except AccessDeniedError:
            return  # an ACL of an older version; registering the schedules has reported it

    def withdraw(self) -> None:
        """Remove the document, and pending requests to the worker. Raises `ServerError`."""
        for key in (self._key, self._leaving_key):
            self._client.execute(raw("HDEL", key, self.name, decode=int), give_up_s=1.0)


def _shards(children: Sequence[ChildProcess]) -> tuple[str, ...]:
    """The shards that every child receives from, apart from children that are about to end."""
    per_child = [
        set(child.manifest.shards) if child.manifest is not None else set()
        for child in children
        if not child.stopping
    ]
    return tuple(sorted(set.intersection(*per_child))) if per_child else ()


def _describe(child: ChildProcess) -> ChildDocument:
    now = boot_time()
    running = sorted(child.board.running.views(), key=lambda view: view.started)[:_SHOWN_HANDLERS]
    leases = {lease.slot: lease for lease in child.board.leases.views()}
    return ChildDocument(
        pid=child.pid,
        state="stopping" if child.stopping else "running" if child.ready else "starting",
        handled=child.board.handled,
        failed=child.board.failed,
        rss_bytes=rss_bytes(child.pid),
        in_hand=sum(lease.count for lease in leases.values()),
        running=tuple(
            RunningDocument(
                task=child.task_name(view.task),
                id=child.receipt(leases[view.lease], view.position) if view.lease in leases else "",
                seconds=round(now - view.started, 3),
            )
            for view in running
        ),
    )
