"""Pause, resume, run and remove schedules, at every daemon at once: see `lua/send/fire.lua`."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any, Final

from qworker.app.schedule import parse_schedule
from qworker.client.execute.sync import Client
from qworker.client.namespace.owners import forget_owner
from qworker.client.queue_ref import QueueRef
from qworker.client.send import store
from qworker.daemon.schedules import queues_of_index, remove, server_now_ms
from qworker.durations import format_ms
from qworker.engine.note import keep_note
from qworker.engine.options import SendOptions
from qworker.engine.raw import raw
from qworker.engine.send import NewMessage
from qworker.errors import InvalidError, InvalidOptionError, QworkerError
from qworker.wire.keys import QueueKeys
from qworker.wire.schedule import FIRED, PAUSED, StoredSchedule

__all__ = ["pause", "remove_chosen", "resume", "run_now"]

#: Queues whose schedules are read in one trip.
_PER_TRIP: Final = 250


def pause(client: Client, keys: QueueKeys, name: str) -> bool:
    """Pause a schedule until it is resumed; registering it again leaves it paused.

    Returns False if it was paused already.
    """
    now_ms = server_now_ms(client.execute)
    return client.execute(keep_note("HSETNX", keys.schedules, name + PAUSED, now_ms, decode=bool))


def resume(client: Client, keys: QueueKeys, name: str) -> bool:
    """Let a paused schedule fire from its next slot on; slots that have passed are skipped, regardless of `missed`.

    Returns False if it was not paused.
    """
    if not client.execute(raw("HEXISTS", keys.schedules, name + PAUSED, decode=bool)):
        return False
    now_ms = server_now_ms(client.execute)
    # The slot goes first: without the pause all slots since would be due.
    client.execute(keep_note("HSET", keys.schedules, name + FIRED, now_ms, decode=int))
    return client.execute(raw("HDEL", keys.schedules, name + PAUSED, decode=bool))


def run_now(client: Client, queue: QueueRef, name: str, schedule: StoredSchedule) -> str:
    """Send the message of a schedule now, in addition to its slots and even while paused; returns the message id.

    Raises as a send does, and `InvalidOptionError` while the message of an earlier slot has not ended, of a schedule
    whose messages must not overlap.
    """
    alone = parse_schedule(schedule.spec).overlap != "allow"
    message = NewMessage(
        client.ids.message_id(),
        schedule.tail(name, alone=alone),
        unique=schedule.key(name) if alone else "",
    )
    ttl = None if schedule.ttl_ms is None else format_ms(schedule.ttl_ms)
    options = SendOptions(priority=schedule.priority, ttl=ttl)
    # In the first shard, where its slots are fired: there is its key.
    chosen = queue.shard_of(0) if alone else queue
    [message_id] = client.run(store(chosen, [message], options))
    if message_id != message.id:
        raise InvalidOptionError(
            "SCHEDULE",
            f"{name!r} must not overlap, and its message {message_id} has not ended",
            f"wait for it, or: qworker message cancel {message_id}",
        )
    return message_id


def remove_chosen(client: Client, namespace: str, chosen: Mapping[str, Collection[str]]) -> None:
    """Remove schedules by their queues and names, and forget the apps that have no others.

    No app is forgotten while a queue cannot be read: what it holds may be an orphan, which would fire again.
    O(queues of the namespace).
    """
    apps: set[str] = set()
    for queue, names in chosen.items():
        keys = QueueKeys(namespace, queue)
        values: list[bytes | None] = client.execute(
            raw("HMGET", keys.schedules, *names, decode=list)
        )
        apps.update(map(_app_of, values))
        remove(client.execute, keys, names)
    others = _apps_of(client, namespace)
    if others is not None:
        for app in apps - others - {""}:
            forget_owner(client.execute, namespace, app)


def _apps_of(client: Client, namespace: str) -> set[str] | None:
    """Return the apps that have schedules; None if a queue cannot be read."""
    queues = queues_of_index(client, namespace)
    apps: set[str] = set()
    for first in range(0, len(queues), _PER_TRIP):
        some = [QueueKeys(namespace, queue) for queue in queues[first : first + _PER_TRIP]]
        read: list[Any] = [
            *client.execute_each([raw("HVALS", keys.schedules, decode=list) for keys in some])
        ]
        for values in read:
            if isinstance(values, QworkerError):
                return None
            apps.update(map(_app_of, values))
    return apps if queues else None


def _app_of(value: bytes | None) -> str:
    """Return the app of a schedule; "" for one of no app, and for other values of the HASH."""
    try:
        return "" if value is None else StoredSchedule.parse(value).app
    except InvalidError:
        return ""
