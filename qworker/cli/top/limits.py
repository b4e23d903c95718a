"""The limits under which messages wait, of the queues with the most messages in groups."""

from __future__ import annotations

import heapq
from collections.abc import Callable, Mapping
from typing import Final

from qworker.client.execute.sync import Client
from qworker.client.inspect.peek import Inspection
from qworker.client.manage.limit_load import LimitLoad, limit_loads
from qworker.client.queue_ref import QueueRef
from qworker.errors import BrokenQueueError, InDoubtError, LoadingError, UnavailableError

__all__ = ["busiest_limits"]

#: Queues whose limits are read, and limits that are shown.
_QUEUES: Final = 5
_LIMITS: Final = 20


def busiest_limits(
    client: Client, ref: Callable[[str], QueueRef], queues: Mapping[str, object]
) -> list[tuple[str, LimitLoad]]:
    """Read them by queue, the one with the most waiting messages first; of a queue that cannot be read, none.

    `queues`: by name, their inspections, or why there is none.
    """
    grouped = {
        name: queue.grouped
        for name, queue in queues.items()
        if isinstance(queue, Inspection) and queue.grouped
    }
    found = []
    for name in heapq.nlargest(_QUEUES, grouped, key=grouped.__getitem__):
        try:
            loads = client.run(limit_loads(ref(name)))
        except (BrokenQueueError, UnavailableError, InDoubtError, LoadingError):
            continue  # the row of the queue shows that, now or next time
        found += [(name, load) for load in loads if load.waiting]
    return sorted(found, key=lambda pair: (-pair[1].waiting, pair[0], pair[1].name))[:_LIMITS]
