"""A worker says what it is doing, for `worker ls` and `top`: one JSON document, written every two seconds.

Beside it stands whether somebody wants it to leave (`worker drain`): it looks there each time it writes.
"""

from __future__ import annotations

import os
import socket
import time
from collections.abc import Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, Final

import msgspec

from qworker.client.commands.command import Command
from qworker.client.message import Receipt
from qworker.client.owners import note_owner
from qworker.consumer.board import boot_time
from qworker.consumer.watch import rss_bytes
from qworker.errors import AccessDeniedError
from qworker.wire.ids import new_lane_id
from qworker.wire.keys import leaving_key, workers_key

if TYPE_CHECKING:
    from qworker.client.sync import Client
    from qworker.consumer.board import LeaseView
    from qworker.consumer.process import ChildProcess

__all__ = ["Presence", "milliseconds"]

EVERY_S: Final = 2.0
#: And so often that it is there, for the schedules of its app, in ms.
_OWNER_EVERY_MS: Final = 60_000
_SHOWN_HANDLERS: Final = 20
#: Tasks that a worker names; of an app with more it names none, rather than some.
_SHOWN_TASKS: Final = 500


class Presence:
    """Writes and withdraws a worker's document. `owns`: its app has schedules."""

    def __init__(
        self,
        client: Client,
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
        self.name_tasks(tasks)
        self._started = time.monotonic()
        self._handled_before = (self._started, 0)
        #: When the document was written last, by the server's clock.
        self.seen_ms = 0

    def name_tasks(self, tasks: Sequence[str]) -> None:
        """Name the tasks of the app, as its newest child has them."""
        self._tasks = list(tasks) if len(tasks) <= _SHOWN_TASKS else None

    def own(self, *, schedules: bool) -> None:
        """Say whether the app has schedules, which go on while a worker of it is seen now and then."""
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
        """Write the document; returns whether the worker is asked to leave. Raises `ServerError`."""
        now = time.monotonic()
        # The server's time: others compare with it, whatever the clock of this machine says.
        seen_ms = self._client.execute(Command(None, (), ("TIME",), milliseconds), give_up_s=2.0)
        self.seen_ms = seen_ms
        before, handled_before = self._handled_before
        self._handled_before = (now, handled)
        document = {
            "name": self.name,
            "host": socket.gethostname(),
            "pid": os.getpid(),
            "app": self._app,
            "started_ms": seen_ms - round((now - self._started) * 1000),
            "seen_ms": seen_ms,
            "queues": list(queues),
            "shards": _shards(children),
            "leaving": leaving,
            "tasks": self._tasks,
            "concurrency": concurrency,
            "handled_per_s": round((handled - handled_before) / max(now - before, 0.001), 1),
            "children": [_describe(child) for child in children],
        }
        self._client.execute(
            Command(None, (), ("HSET", self._key, self.name, msgspec.json.encode(document)), int),
            give_up_s=2.0,
        )
        self._note_owner(seen_ms)
        asked = Command(None, (), ("HEXISTS", self._leaving_key, self.name), bool)
        return self._client.execute(asked, give_up_s=2.0)

    def _note_owner(self, now_ms: int) -> None:
        if not self._owns or now_ms < self._note_owner_at:
            return
        self._note_owner_at = now_ms + _OWNER_EVERY_MS
        try:
            note_owner(
                partial(self._client.execute, give_up_s=2.0), self._namespace, self._app, now_ms
            )
        except AccessDeniedError:
            return  # an ACL of an older version: its registration has told it

    def withdraw(self) -> None:
        """Remove the document, and what was asked of the worker. Raises `ServerError`."""
        for key in (self._key, self._leaving_key):
            self._client.execute(Command(None, (), ("HDEL", key, self.name), int), give_up_s=1.0)


def milliseconds(reply: list[bytes]) -> int:
    """Read the reply of TIME."""
    seconds, microseconds = reply
    return int(seconds) * 1000 + int(microseconds) // 1000


def _shards(children: Sequence[ChildProcess]) -> list[str]:
    """The shards that every child receives from; not those of children that are about to end."""
    each = [
        set(child.manifest.shards) if child.manifest is not None else set()
        for child in children
        if not child.stopping
    ]
    return sorted(set.intersection(*each)) if each else []


def _describe(child: ChildProcess) -> dict[str, Any]:
    now = boot_time()
    running = sorted(child.board.running(), key=lambda view: view.started)[:_SHOWN_HANDLERS]
    leases = {lease.slot: lease for lease in child.board.held_leases()}
    return {
        "pid": child.pid,
        "state": "stopping" if child.stopping else "running" if child.ready else "starting",
        "handled": child.board.handled,
        "failed": child.board.failed,
        "rss_bytes": rss_bytes(child.pid),
        "in_hand": sum(lease.count for lease in leases.values()),
        "running": [
            {
                "task": child.task_name(view.task),
                "id": _receipt(child, leases[view.lease], view.place)
                if view.lease in leases
                else "",
                "seconds": round(now - view.started, 3),
            }
            for view in running
        ],
    }


def _receipt(child: ChildProcess, lease: LeaseView, place: int) -> str:
    """The receipt of a message on a board, as `message show` and `message cancel` take it."""
    shard = child.keys[lease.queue].shard if lease.queue < len(child.keys) else 0
    # Alone in its lease a message is 0, in company they count from 1.
    return str(Receipt(lease.lease_id, "0" if lease.count == 1 else str(place + 1), shard))
