"""Every Redis key of the data model. Nothing else makes a key name.

All keys of a queue share one hash tag, `ns:{queue}:part`, and so one Cluster slot. Outside the tag stand only the
registry of queues and the presence keys.
"""

from __future__ import annotations

from typing import Final

from qworker.wire.names import place_name, split_place

__all__ = [
    "LEVELS",
    "QueueKeys",
    "answer_key",
    "control_key",
    "leaving_key",
    "owners_key",
    "paused_tasks_key",
    "queues_key",
    "reapers_key",
    "workers_key",
]

#: Priorities, lowest first. Level 0 lives in `ready`, level p in `ready:p`.
LEVELS: Final = 10


class QueueKeys:
    """The keys of one queue in one namespace, or of one shard of it.

    `queue` is the name of the place: `orders/3`, or `orders` for the first shard and a queue that has no others; `name`
    is the queue's and `shard` the number.
    """

    __slots__ = (
        "bulk_prefix",
        "cancelled",
        "dead",
        "delayed",
        "imported",
        "journal",
        "lease_prefix",
        "meta",
        "name",
        "producers",
        "queue",
        "readers",
        "ready",
        "rows",
        "schedules",
        "shard",
        "stats",
        "suspect",
        "unacked",
        "unique",
        "wake",
    )

    def __init__(self, namespace: str, queue: str) -> None:
        self.name, self.shard = split_place(queue)
        self.queue = place_name(self.name, self.shard)
        base = f"{namespace}:{{{self.queue}}}:"
        #: LIST per priority level, index = level.
        self.ready = (base + "ready", *(f"{base}ready:{level}" for level in range(1, LEVELS)))
        #: LIST: delivered alone, to a child that runs nothing else meanwhile.
        self.suspect = base + "suspect"
        #: ZSET envelope → due ms.
        self.delayed = base + "delayed"
        #: ZSET lease id → visibility deadline ms.
        self.unacked = base + "unacked"
        #: HASH per lease: index → envelope, or all of them in one field: see `leases`.
        self.lease_prefix = base + "lease:"
        #: LIST: bounded doorbell that waiting consumers block on.
        self.wake = base + "wake"
        #: STREAM of dead letters.
        self.dead = base + "dead"
        #: HASH of attributes.
        self.meta = base + "meta"
        #: HASH of counters.
        self.stats = base + "stats"
        #: HASH lane → last sequence number and ms.
        self.producers = base + "producers"
        #: HASH unique key → message id and expiry ms.
        self.unique = base + "unique"
        #: HASH id of a row of a bulk write → message id and expiry ms; apart from `unique`, whose keys may be any text.
        self.rows = base + "rows"
        #: ZSET message id → expiry ms.
        self.cancelled = base + "cancelled"
        #: HASH schedule → spec, and last fired slot.
        self.schedules = base + "schedules"
        #: STREAM of what became of messages, see `lua/lib/journal.lua`.
        self.journal = base + "journal"
        #: HASH reader of the journal → `<epoch>-<last entry read> <ms>`.
        self.readers = base + "readers"
        #: HASH mark of a message of another system → its id here, while an import moves it.
        self.imported = base + "imported"
        #: HASH per bulk write, which expires: the ledger of what was taken, see `lua/lib/ledger.lua`.
        self.bulk_prefix = base + "bulk:"

    def all(self) -> tuple[str, ...]:
        """Name every key but the leases and the bulk writes."""
        return (
            *self.ready,
            self.suspect,
            self.delayed,
            self.unacked,
            self.wake,
            self.dead,
            self.meta,
            self.stats,
            self.producers,
            self.unique,
            self.rows,
            self.cancelled,
            self.schedules,
            self.journal,
            self.readers,
            self.imported,
        )

    def lease(self, lease_id: str) -> str:
        """Name the HASH of one lease."""
        return self.lease_prefix + lease_id

    def bulk(self, write_id: str) -> str:
        """Name the HASH of one bulk write."""
        return self.bulk_prefix + write_id


def queues_key(namespace: str) -> str:
    """Name the HASH queue → shards: the registry of queues."""
    return f"{namespace}:queues"


def reapers_key(namespace: str) -> str:
    """Name the ZSET reaper → last seen ms."""
    return f"{namespace}:reapers"


def workers_key(namespace: str) -> str:
    """Name the HASH worker → what it says of itself (JSON, with its time)."""
    return f"{namespace}:workers"


def leaving_key(namespace: str) -> str:
    """Name the HASH worker → when it was asked to leave, ms."""
    return f"{namespace}:leaving"


def control_key(namespace: str, worker: str) -> str:
    """Name the LIST of requests to one worker (JSON, see `wire/control.py`); it expires."""
    return f"{namespace}:control:{worker}"


def answer_key(namespace: str, request_id: str) -> str:
    """Name the LIST of answers to one request (JSON); it expires."""
    return f"{namespace}:answer:{request_id}"


def owners_key(namespace: str) -> str:
    """Name the HASH app with schedules → when a worker of it was seen last, ms."""
    return f"{namespace}:owners"


def paused_tasks_key(namespace: str) -> str:
    """Name the HASH task → since when it is paused, ms."""
    return f"{namespace}:paused_tasks"
