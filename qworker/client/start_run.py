"""Start a run under an id that the caller has chosen."""

from __future__ import annotations

from qworker.client.plan import Plan
from qworker.client.queue_ref import QueueRef
from qworker.client.send import NewMessage, check_sizes
from qworker.engine.options import SendOptions
from qworker.engine.run import start_run as start_command
from qworker.errors import RunStartedError
from qworker.wire.memo import read_memo, write_memo

__all__ = ["start_run"]


def start_run(
    queue: QueueRef, message: NewMessage, options: SendOptions, call: bytes
) -> Plan[None]:
    """Store the message of a run unless a run of its id still has recorded steps.

    Raises `RunStartedError` if that was another `call`, and what `send` raises. In a divided queue such runs are in the
    first shard: that is where each start finds the one before, however the queue is divided in between.
    """
    yield from check_sizes(queue, [message], "calls")
    names = queue.namespace, queue.keys.name, message.id, "@start"
    first = queue.shard(0)
    start = write_memo(call, queue.keyring, *names)
    stored: bytes = yield start_command(first.keys, message, start, options)
    yield from queue.announce()
    if not stored or read_memo(stored, queue.keyring, *names) != call:
        raise RunStartedError(queue.keys.name, message.id)
