"""Kinds of damage, the repair of each, and the next step after it."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from enum import Enum
from typing import Any, Final, NamedTuple

__all__ = ["REMEDIES", "Damage", "DamageKind", "Remedy"]


class DamageKind(Enum):
    """Kinds of damage."""

    WRONG_TYPE = "wrong type"
    EXPIRY = "expiry"
    FOREIGN_LEASE = "foreign lease"
    UNNAMED_LEASE = "unnamed lease"
    NO_DEADLINE = "no deadline"
    NO_MESSAGES = "no messages"
    BAD_DEADLINE = "bad deadline"
    FOREIGN_ITEM = "foreign item"
    BAD_DUE_TIME = "bad due time"
    NO_ENVELOPE = "no envelope"
    TWO_PLACES = "two places"
    SAME_ID = "same id"
    COUNTER = "counter"
    LEVEL = "level"
    JOURNAL = "journal"
    LANE = "lane"
    UNIQUE = "unique key"
    GROUP = "group"
    LIMIT = "limit"
    LONE_LIMIT = "limit without queue"
    SHARE = "share"
    RUN = "lost run"
    CALLS = "group of calls"
    SHARED_ID = "shared id"
    LOST_CALL = "lost call"
    UNTOLD_CALL = "untold call"
    OUTBOX = "lost outbox"
    UNREGISTERED = "unregistered"
    BAD_NAME = "bad name"
    BAD_SHARDS = "bad shards"
    LEFTOVER = "leftover shard"
    NO_QUEUE = "no queue"


class Remedy(NamedTuple):
    """The action of a repair, and what else you should do ('' for nothing)."""

    repair: str
    then: str = ""


_WHO: Final = "find out which client writes into keys of qworker (ACL LOG, MONITOR)"

#: No repair deletes a message.
REMEDIES: Final = {
    DamageKind.WRONG_TYPE: Remedy("rename it out of the way", f"check its content; {_WHO}"),
    DamageKind.EXPIRY: Remedy("remove the expiry", _WHO),
    DamageKind.FOREIGN_LEASE: Remedy("bury it as foreign", _WHO),
    DamageKind.UNNAMED_LEASE: Remedy("move its messages to the tail of ready", _WHO),
    DamageKind.NO_DEADLINE: Remedy("give it the deadline of a lease received now"),
    DamageKind.NO_MESSAGES: Remedy("remove the deadline"),
    DamageKind.BAD_DEADLINE: Remedy("give it the deadline of a lease received now"),
    DamageKind.FOREIGN_ITEM: Remedy("bury it as foreign, with its bytes", "qworker dead ls QUEUE"),
    DamageKind.BAD_DUE_TIME: Remedy("make it due now"),
    DamageKind.NO_ENVELOPE: Remedy(
        "make one from the fields of the entry", "qworker dead ls QUEUE"
    ),
    DamageKind.TWO_PLACES: Remedy("remove the second copy"),
    DamageKind.SAME_ID: Remedy(
        "bury the second under a new id", "qworker dead redrive QUEUE --reason duplicate"
    ),
    DamageKind.COUNTER: Remedy(
        "correct it, and write off missing messages",
        "find out what deleted keys (ACL LOG, a failover, a DEL)",
    ),
    DamageKind.LEVEL: Remedy("declare the level, so that it is received"),
    DamageKind.JOURNAL: Remedy("continue the numbers after the last entry of the stream"),
    DamageKind.LANE: Remedy("forget it, or date it now"),
    DamageKind.UNIQUE: Remedy("free the key"),
    DamageKind.GROUP: Remedy("count its slots and seat its messages again"),
    DamageKind.LIMIT: Remedy("write that of the first shard", "qworker limit ls QUEUE"),
    DamageKind.LONE_LIMIT: Remedy(
        "create the queue, so that tools show it", "qworker queue rm QUEUE, if you had removed it"
    ),
    DamageKind.SHARE: Remedy(
        "divide its limit again, remove the share, or make it the limit of its queue again",
        "qworker limit ls QUEUE",
    ),
    DamageKind.RUN: Remedy(
        "end it as discarded, and keep its steps for a day",
        "start the run again under another id; find out what took its message (an ack without complete, a failover)",
    ),
    DamageKind.CALLS: Remedy(
        "list it, or end it: waits for its callback are told that it was discarded, and values go",
        "qworker calls ls QUEUE",
    ),
    DamageKind.SHARED_ID: Remedy(
        "none: either may be in use",
        "end one of them (qworker workflow cancel, qworker calls cancel), and start it again under another id",
    ),
    DamageKind.LOST_CALL: Remedy(
        "count these calls as discarded: the group continues by its policy",
        "find out what took their messages (an ack without complete, a failover, a DEL)",
    ),
    DamageKind.UNTOLD_CALL: Remedy(
        "count them as dead: the group continues by its policy",
        "check for missing rights (qworker acl); qworker calls ls QUEUE",
    ),
    DamageKind.OUTBOX: Remedy("list it, so that a reaper relays it"),
    DamageKind.UNREGISTERED: Remedy("write the queue into the index"),
    DamageKind.BAD_NAME: Remedy("remove the entry"),
    DamageKind.BAD_SHARDS: Remedy("keep the later of both divisions", "qworker queue shards QUEUE"),
    DamageKind.LEFTOVER: Remedy("delete the rest: it holds no message"),
    DamageKind.NO_QUEUE: Remedy("remove the entries"),
}


@dataclass(frozen=True, slots=True)
class Damage:
    """One thing that breaks the data model.

    `where`: the key and the part of it, a text that may hold what others wrote. `gone`: messages that were stored and
    cannot be found; a repair writes them off. `left`: why a repair leaves it alone, and what you should do instead;
    None if it does not.
    """

    queue: str
    kind: DamageKind
    where: str
    problem: str
    repaired: bool = False
    gone: int = 0
    left: Remedy | None = None

    @property
    def remedy(self) -> Remedy:
        """The action of a repair, and what else you should do."""
        repair, then = self.left or REMEDIES[self.kind]
        return Remedy(repair, then.replace("QUEUE", self.queue or "QUEUE"))

    def document(self) -> dict[str, Any]:
        """Write it for `--json`."""
        remedy = self.remedy
        texts = {"kind": self.kind.value, "repair": remedy.repair, "then": remedy.then}
        return {**asdict(self), **texts, "left": self.left is not None}
