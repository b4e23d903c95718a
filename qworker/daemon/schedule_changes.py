"""What operators do to schedules: pause, resume, run now. Each holds for every daemon at once, see `lua/fire.lua`."""

from __future__ import annotations

from typing import Final

from qworker.client.commands.command import Command
from qworker.client.commands.sending import NewMessage
from qworker.client.options import SendOptions
from qworker.client.queue_ref import QueueRef
from qworker.client.sending import store
from qworker.client.sync import Client
from qworker.daemon.schedules import FIRED, PAUSED, StoredSchedule, server_now_ms
from qworker.durations import format_ms
from qworker.wire.keys import QueueKeys

__all__ = ["pause", "resume", "run_now"]

_SET: Final = "HSET"


def pause(client: Client, keys: QueueKeys, name: str) -> bool:
    """Let a schedule fire no more until it is resumed; registering it again leaves it paused.

    Returns False where it is paused already.
    """
    now_ms = server_now_ms(client.execute)
    words = ("HSETNX", keys.schedules, name + PAUSED, now_ms)
    return client.execute(Command(None, (), words, bool))


def resume(client: Client, keys: QueueKeys, name: str) -> bool:
    """Let a paused schedule fire from its next slot on; what was due meanwhile is skipped, whatever `missed` says.

    Returns False where it is not paused.
    """
    if not client.execute(Command(None, (), ("HEXISTS", keys.schedules, name + PAUSED), bool)):
        return False
    now_ms = server_now_ms(client.execute)
    # The slot goes first: without the pause all slots since would be due.
    client.execute(Command(None, (), (_SET, keys.schedules, name + FIRED, now_ms), int))
    return client.execute(Command(None, (), ("HDEL", keys.schedules, name + PAUSED), bool))


def run_now(client: Client, queue: QueueRef, name: str, schedule: StoredSchedule) -> str:
    """Send the message of a schedule now, beside its slots and also while it is paused; returns the message id.

    Raises what a send raises.
    """
    message = NewMessage(client.ids.message_id(), schedule.tail(name))
    ttl = None if schedule.ttl_ms is None else format_ms(schedule.ttl_ms)
    options = SendOptions(priority=schedule.priority, ttl=ttl)
    return client.run(store(queue, [message], options))[0]
