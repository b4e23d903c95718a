"""Cancel what an id names: a message, a group of calls, a run with the calls that it gathers, or a chain."""

from __future__ import annotations

from collections.abc import Sequence

from qworker.client.calls import call_group
from qworker.client.cancel_calls import cancel_calls, cancel_groups, cancel_open_group
from qworker.client.cancel_chain import cancel_chain
from qworker.client.cancel_message import Cancellation, leave_tombstone
from qworker.client.cancel_message import cancel as cancel_message
from qworker.client.chain_search import ChainEnd
from qworker.client.plan import Plan
from qworker.client.queue_ref import QueueRef
from qworker.engine.raw import raw

__all__ = ["cancel"]


def cancel(
    queue: QueueRef, message_id: str, *, calls: bool = False, queues: Sequence[str] = ()
) -> Plan[Cancellation]:
    """Cancel a message: delete it if it waits, ask its handler to stop if it runs.

    Of a group of calls, which has the id of its callback, all calls are cancelled: see `cancel_calls`. `calls`: so are
    those that a run gathers, and the answer is `CANCELLING` if one of them runs. Of a chain, which has the id of its
    last message, the step that waits or runs is cancelled, and those after it are not sent; `queues` names those of its
    steps, without which all queues of the namespace are searched. After any answer the message is dropped if it comes
    back within 7 days, and a reaper deletes it if it still waits then. Dead letters stay, and may be redriven. O(n) of
    the queue to find it. A server out of memory refuses it (`OutOfMemoryError`); `delete` removes waiting messages even
    then.
    """
    # Without a group of this id, the shards have just been read again: a message in a new one gets its tombstone.
    group = yield from call_group(queue, message_id)
    if group is not None and group.is_open:
        answer = yield from cancel_open_group(queue, message_id)
        if answer is not None:
            return answer
        group = yield from call_group(queue, message_id)
    if group is not None and group.state == "ended":
        # Another cancel may be at work, or was interrupted before it came to all calls.
        done = yield from cancel_calls(queue, message_id)
        if done is not None and (done.cancelled or done.cancelling):
            return Cancellation.CANCELLING if done.cancelling else Cancellation.CANCELLED
    running = 0
    if calls:
        for shard in (yield from queue.every_shard()):
            joins: bytes | None = yield raw("HGET", shard.keys.run(message_id), "@joins")
            if groups := (joins or b"").decode().split():
                # The end of its gather must not let it continue.
                yield from leave_tombstone(shard, message_id)
                _, running = yield from cancel_groups(shard, groups, of_run=True)
    end = ChainEnd.of(queue, message_id)
    if end is not None:
        answer = yield from cancel_chain(end, queues)
        if answer is not None:
            return answer
    answer = yield from cancel_message(queue, message_id)
    return Cancellation.CANCELLING if running and answer is Cancellation.CANCELLED else answer
