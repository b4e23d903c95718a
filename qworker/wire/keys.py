"""Every Redis key of the data model; no other module writes key names.

All keys of a queue share a hash tag, `ns:{queue}:part`, and so a Cluster slot. Only keys of the namespace, such as the
index of queues and the presence of workers, have no tag.
"""

from __future__ import annotations

from typing import Final

from qworker.wire.names import shard_name, split_shard_name

__all__ = [
    "LEVELS",
    "QueueKeys",
    "answer_key",
    "audit_key",
    "control_key",
    "leaving_key",
    "namespace_types",
    "owners_key",
    "paused_tasks_key",
    "queues_key",
    "reapers_key",
    "shared_limits_key",
    "workers_key",
]

#: Priorities, lowest first. Level 0 lives in `ready`, level p in `ready:p`.
LEVELS: Final = 10


class QueueKeys:
    """The keys of a queue in a namespace, or of one of its shards.

    `queue` is the name of the shard: `orders/3`, or `orders` for the first one, which is the queue itself if it is not
    divided. `name` is that of the queue, `shard` the number.
    """

    __slots__ = (
        "bulk_prefix",
        "cancelled",
        "children",
        "dead",
        "delayed",
        "feed_prefix",
        "groups",
        "imported",
        "join_prefix",
        "joins",
        "journal",
        "later",
        "lease_prefix",
        "limits",
        "meta",
        "name",
        "out",
        "producers",
        "queue",
        "readers",
        "ready",
        "result_prefix",
        "rows",
        "run_prefix",
        "runs",
        "schedules",
        "shard",
        "slots",
        "stats",
        "suspect",
        "turns",
        "unacked",
        "unique",
        "wake",
    )

    def __init__(self, namespace: str, queue: str) -> None:
        self.name, self.shard = split_shard_name(queue)
        self.queue = shard_name(self.name, self.shard)
        base = f"{namespace}:{{{self.queue}}}:"
        #: LIST per priority level, index = level.
        self.ready = (base + "ready", *(f"{base}ready:{level}" for level in range(1, LEVELS)))
        #: LIST of suspects: delivered alone, to a child that runs nothing else.
        self.suspect = base + "suspect"
        #: ZSET envelope → due ms.
        self.delayed = base + "delayed"
        #: ZSET lease id → visibility deadline ms.
        self.unacked = base + "unacked"
        #: HASH per lease: index → envelope, or all of them in one field (see `leases`).
        self.lease_prefix = base + "lease:"
        #: LIST: the doorbell, bounded, on which waiting consumers block.
        self.wake = base + "wake"
        #: STREAM of dead letters.
        self.dead = base + "dead"
        #: HASH of attributes, HASH of counters.
        self.meta = base + "meta"
        self.stats = base + "stats"
        #: HASH lane → last sequence number and ms.
        self.producers = base + "producers"
        #: HASH unique key → message id and expiry ms.
        self.unique = base + "unique"
        #: HASH id of a row of a bulk write → message id and expiry ms; not in `unique`, whose keys can be any text.
        self.rows = base + "rows"
        #: ZSET message id → expiry ms.
        self.cancelled = base + "cancelled"
        #: HASH schedule → spec, and last fired slot.
        self.schedules = base + "schedules"
        #: STREAM of events (see `lua/lib/journal.lua`).
        self.journal = base + "journal"
        #: HASH reader of the journal → `<epoch>-<last entry read> <ms>`.
        self.readers = base + "readers"
        #: HASH destination → lane and last number of what acks send to other queues (see `lua/lib/ends.lua`).
        self.out = base + "out"
        #: HASH mark of a message of another system → its id here, during an import.
        self.imported = base + "imported"
        #: The state of groups, their turns, parents, waits, messages and limits (see `lua/lib/groups.lua`).
        self.groups = base + "groups"
        self.turns = base + "turns"
        self.children = base + "children"
        self.later = base + "later"
        self.slots = base + "slots"
        self.limits = base + "limits"
        #: HASH per bulk write, which expires: the ledger of the rows stored (see `lua/lib/ledger.lua`).
        self.bulk_prefix = base + "bulk:"
        #: STRING per message that ended, which expires: how it ended (see `result`). Also a channel.
        self.result_prefix = base + "result:"
        #: STREAM per message, which expires: the entries of its feed. Also a channel.
        self.feed_prefix = base + "feed:"
        #: ZSET message id → when its first step was recorded, ms: runs that have not ended.
        self.runs = base + "runs"
        #: HASH per run, which expires after its end: its recorded steps (see `lua/run/step.lua`).
        self.run_prefix = base + "run:"
        #: ZSET group id → when it began, ms: groups of calls that have not ended.
        self.joins = base + "joins"
        #: HASH per group of calls: how its members have ended, and what follows (see `lua/calls/join.lua`).
        self.join_prefix = base + "join:"

    def all(self) -> tuple[str, ...]:
        """Return all keys but those of leases, bulk writes, results, single runs and groups of calls, and outboxes."""
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
            self.out,
            self.runs,
            self.joins,
            *self.of_groups(),
        )

    def types(self) -> dict[str, str]:
        """Return the type of each of these keys, as TYPE names it."""
        lists = {*self.ready, self.suspect, self.wake}
        streams = {self.dead, self.journal}
        scores = {self.delayed, self.unacked, self.cancelled, self.runs, self.joins}
        scores |= {self.turns, self.children, self.later}
        return {
            key: "list"
            if key in lists
            else "zset"
            if key in scores
            else "stream"
            if key in streams
            else "hash"
            for key in self.all()
        }

    def of_groups(self) -> tuple[str, ...]:
        """Return the keys of groups; waiting members are in `delayed`."""
        return (self.groups, self.turns, self.children, self.later, self.slots, self.limits)

    def lease(self, lease_id: str) -> str:
        """Return the key of a lease, a HASH."""
        return self.lease_prefix + lease_id

    def bulk(self, write_id: str) -> str:
        """Return the key of a bulk write, a HASH."""
        return self.bulk_prefix + write_id

    def outbox(self, destination: str) -> str:
        """Return the key of what waits to be stored in another queue, a STREAM."""
        return f"{self.out}:{destination}"

    def result(self, message_id: str) -> str:
        """Return the key of a message's result, a STRING, and the channel that announces it."""
        return self.result_prefix + message_id

    def feed(self, message_id: str) -> str:
        """Return the key of a message's feed, a STREAM, and the channel that announces its entries."""
        return self.feed_prefix + message_id

    def run(self, message_id: str) -> str:
        """Return the key of a run's state, a HASH."""
        return self.run_prefix + message_id

    def join(self, group_id: str) -> str:
        """Return the key of a group of calls, a HASH."""
        return self.join_prefix + group_id


def namespace_types(namespace: str) -> dict[str, str]:
    """Return the keys of a namespace that are neither of one queue nor of one request, each with its type."""
    hashes = (queues_key, workers_key, leaving_key, owners_key, paused_tasks_key, shared_limits_key)
    return {
        **{key(namespace): "hash" for key in hashes},
        reapers_key(namespace): "zset",
        audit_key(namespace): "stream",
    }


def queues_key(namespace: str) -> str:
    """Return the index of queues: HASH queue → shards."""
    return f"{namespace}:queues"


def reapers_key(namespace: str) -> str:
    """Return ZSET reaper → last seen ms."""
    return f"{namespace}:reapers"


def workers_key(namespace: str) -> str:
    """Return HASH worker → its document (JSON, see `wire/presence.py`)."""
    return f"{namespace}:workers"


def leaving_key(namespace: str) -> str:
    """Return HASH worker → when it was asked to leave, ms."""
    return f"{namespace}:leaving"


def control_key(namespace: str, worker: str) -> str:
    """Return LIST of requests to a worker (JSON, see `wire/control.py`), which expires."""
    return f"{namespace}:control:{worker}"


def answer_key(namespace: str, request_id: str) -> str:
    """Return LIST of answers to a request (JSON), which expires."""
    return f"{namespace}:answer:{request_id}"


def owners_key(namespace: str) -> str:
    """Return HASH app with schedules → when a worker of it was last seen, ms."""
    return f"{namespace}:owners"


def audit_key(namespace: str) -> str:
    """Return STREAM of what operators did through the dashboard."""
    return f"{namespace}:audit"


def paused_tasks_key(namespace: str) -> str:
    """Return HASH paused task → since when, ms."""
    return f"{namespace}:paused_tasks"


def shared_limits_key(namespace: str) -> str:
    """Return HASH of limits over several queues, and what each shard has of them (see `lua/queue/allot.lua`)."""
    return f"{namespace}:limits"
