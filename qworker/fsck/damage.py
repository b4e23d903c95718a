"""Kinds of damage, the repair of each, and the next step after it."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from enum import Enum
from typing import Any, Final, NamedTuple

__all__ = ["REMEDIES", "Damage", "Kind", "Remedy"]


class Kind(Enum):
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
    Kind.WRONG_TYPE: Remedy("rename it out of the way", f"check its content; {_WHO}"),
    Kind.EXPIRY: Remedy("remove the expiry", _WHO),
    Kind.FOREIGN_LEASE: Remedy("bury it as foreign", _WHO),
    Kind.UNNAMED_LEASE: Remedy("move its messages to the tail of ready", _WHO),
    Kind.NO_DEADLINE: Remedy("give it the deadline of a lease received now"),
    Kind.NO_MESSAGES: Remedy("remove the deadline"),
    Kind.BAD_DEADLINE: Remedy("give it the deadline of a lease received now"),
    Kind.FOREIGN_ITEM: Remedy("bury it as foreign, with its bytes", "qworker dead ls QUEUE"),
    Kind.BAD_DUE_TIME: Remedy("make it due now"),
    Kind.NO_ENVELOPE: Remedy("make one from the fields of the entry", "qworker dead ls QUEUE"),
    Kind.TWO_PLACES: Remedy("remove the second copy"),
    Kind.SAME_ID: Remedy(
        "bury the second under a new id", "qworker dead redrive QUEUE --reason duplicate"
    ),
    Kind.COUNTER: Remedy(
        "correct it, and write off missing messages",
        "find out what deleted keys (ACL LOG, a failover, a DEL)",
    ),
    Kind.LEVEL: Remedy("declare the level, so that it is received"),
    Kind.JOURNAL: Remedy("continue the numbers after the last entry of the stream"),
    Kind.LANE: Remedy("forget it, or date it now"),
    Kind.UNIQUE: Remedy("free the key"),
    Kind.GROUP: Remedy("count its slots and seat its messages again"),
    Kind.SHARE: Remedy("divide its limit again, or remove the share", "qworker limit ls QUEUE"),
    Kind.RUN: Remedy(
        "end it as discarded, and keep its steps for a day",
        "start the run again under another id; find out what took its message (an ack without complete, a failover)",
    ),
    Kind.CALLS: Remedy(
        "list it, or end it: waits for its callback are told that it was discarded, and values go",
        "qworker calls ls QUEUE",
    ),
    Kind.SHARED_ID: Remedy(
        "none: either may be in use",
        "end one of them (qworker workflow cancel, qworker calls cancel), and start it again under another id",
    ),
    Kind.LOST_CALL: Remedy(
        "count these calls as discarded: the group continues by its policy",
        "find out what took their messages (an ack without complete, a failover, a DEL)",
    ),
    Kind.UNTOLD_CALL: Remedy(
        "count them as dead: the group continues by its policy",
        "check for missing rights (qworker acl); qworker calls ls QUEUE",
    ),
    Kind.OUTBOX: Remedy("list it, so that a reaper relays it"),
    Kind.UNREGISTERED: Remedy("write the queue into the index"),
    Kind.BAD_NAME: Remedy("remove the entry"),
    Kind.BAD_SHARDS: Remedy("keep the later of both divisions", "qworker queue shards QUEUE"),
    Kind.LEFTOVER: Remedy("delete the rest: it holds no message"),
    Kind.NO_QUEUE: Remedy("remove the entries"),
}


@dataclass(frozen=True, slots=True)
class Damage:
    """One thing that breaks the data model.

    `where`: the key and the part of it, a text that may hold what others wrote. `gone`: messages that were stored and
    cannot be found; a repair writes them off.
    """

    queue: str
    kind: Kind
    where: str
    problem: str
    repaired: bool = False
    gone: int = 0

    @property
    def remedy(self) -> Remedy:
        """The action of a repair, and what else you should do."""
        repair, then = REMEDIES[self.kind]
        return Remedy(repair, then.replace("QUEUE", self.queue or "QUEUE"))

    def document(self) -> dict[str, Any]:
        """Write it for `--json`."""
        remedy = self.remedy
        texts = {"kind": self.kind.value, "repair": remedy.repair, "then": remedy.then}
        return {**asdict(self), **texts}
