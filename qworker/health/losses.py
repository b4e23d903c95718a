"""What each fault of a server would cost now: by its settings, its last snapshot and the lag of its replicas."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from enum import Enum
from typing import TYPE_CHECKING, Final

from qworker.formats import count, size, span
from qworker.wire.numbers import whole

if TYPE_CHECKING:
    from qworker.daemon.durability import NodeFacts

__all__ = ["Extent", "Loss", "Replica", "losses", "replicas"]

#: Settings that a server's reply may lack.
_UNKNOWN: Final = "it does not say: allow the commands INFO and CONFIG GET"
_REPLICA: Final = re.compile(
    r"ip=([^,]*),port=([0-9]+),state=([a-z_]+),offset=([0-9]+),lag=(-?[0-9]+)"
)


class Extent(Enum):
    """How much a fault loses."""

    NOTHING = "nothing"
    LATEST = "the latest"
    MUCH = "much"
    UNKNOWN = "unknown"


@dataclass(frozen=True, slots=True)
class Loss:
    """A fault, the confirmed messages that it would lose, and why or what to do about it."""

    fault: str
    extent: Extent
    lost: str
    why: str = ""


@dataclass(frozen=True, slots=True)
class Replica:
    """A replica: its state, the bytes that it has not got yet, and the seconds since it last answered."""

    name: str
    state: str
    behind_bytes: int
    lag_s: int


def losses(facts: NodeFacts, now_ms: int) -> list[Loss]:
    """List the losses of each fault."""
    return [
        Loss(
            "A worker is killed, freezes or is cut off",
            Extent.NOTHING,
            "nothing",
            "its messages are delivered again",
        ),
        *_stops(facts, now_ms),
        *_failover(facts),
        *_full(facts),
    ]


def replicas(info: Mapping[str, str]) -> list[Replica]:
    """Read the replicas of a server."""
    offset, found = whole(info.get("master_repl_offset")) or 0, []
    for name, text in info.items():
        match = _REPLICA.match(text) if name.startswith("slave") else None
        if match is not None:
            host, port, state, theirs, lag = match.groups()
            found.append(Replica(f"{host}:{port}", state, max(0, offset - int(theirs)), int(lag)))
    return found


def _stops(facts: NodeFacts, now_ms: int) -> Iterator[Loss]:
    """Describe the losses when its process or its machine ends."""
    killed, power = "The server is killed and starts again", "Its machine loses power"
    appendonly = facts.config.get("appendonly")
    if appendonly is None:
        appendonly = {"1": "yes", "0": "no"}.get(facts.info.get("aof_enabled", ""))
    if appendonly is None:
        for fault in (killed, power):
            yield Loss(fault, Extent.UNKNOWN, "unknown", _UNKNOWN)
        return
    if appendonly != "yes":
        lost = _since_snapshot(facts, now_ms)
        for fault in (killed, power):
            yield Loss(fault, Extent.MUCH, lost, "set appendonly yes")
        return
    sync = facts.config.get("appendfsync")
    failed = facts.info.get("aof_last_write_status", "ok") != "ok"
    if failed:
        for fault in (killed, power):
            yield Loss(
                fault, Extent.MUCH, "all since its disk failed", "free space there: see its log"
            )
        return
    yield Loss(
        killed,
        Extent.NOTHING,
        "nothing",
        "" if sync == "always" else "up to 2 s, while a sync to a slow disk is on its way",
    )
    if sync is None:
        yield Loss(power, Extent.UNKNOWN, "unknown", _UNKNOWN)
    elif sync == "always":
        yield Loss(power, Extent.NOTHING, "nothing", "if its disks keep what they confirm")
    elif sync == "no":
        yield Loss(power, Extent.MUCH, "about the last 30 seconds", "set appendfsync everysec")
    else:
        yield Loss(
            power, Extent.LATEST, "the last 1 to 2 seconds", "sends with fsync=True are on disks"
        )


def _since_snapshot(facts: NodeFacts, now_ms: int) -> str:
    if facts.config.get("save") == "":
        return "everything: it makes no snapshots"
    saved_s, changes = (
        whole(facts.info.get(name))
        for name in ("rdb_last_save_time", "rdb_changes_since_last_save")
    )
    if saved_s is None or changes is None:
        return "all since its last snapshot"
    ago = span(max(0.0, now_ms / 1000 - saved_s))
    return f"all since its last snapshot {ago} ago, {count(changes, 'change')} by now"


def _failover(facts: NodeFacts) -> Iterator[Loss]:
    fault = "A replica takes over"
    known = replicas(facts.info)
    if "role" not in facts.info:
        yield Loss(fault, Extent.UNKNOWN, "unknown", _UNKNOWN)
        return
    if not known:
        yield Loss(
            fault,
            Extent.NOTHING,
            "does not happen: it has no replica",
            "while it is away, sends are refused and nothing is handled",
        )
        return
    behind = min(known, key=lambda replica: replica.behind_bytes)
    yield Loss(
        fault,
        Extent.LATEST,
        "what no replica has yet",
        f"now {size(behind.behind_bytes)}; sends with replicas=1 wait for one",
    )
    cut_off = "It is cut off from its replicas, and one takes over"
    needed = whole(facts.config.get("min-replicas-to-write"))
    if needed is None:
        yield Loss(cut_off, Extent.UNKNOWN, "unknown", _UNKNOWN)
    elif needed == 0:
        yield Loss(
            cut_off,
            Extent.MUCH,
            "all that it accepts until it notices",
            "set min-replicas-to-write 1",
        )
    else:
        within = whole(facts.config.get("min-replicas-max-lag"))
        yield Loss(
            cut_off,
            Extent.LATEST,
            f"what it accepts within {'its max lag' if within is None else span(within)}",
            "then it refuses sends (min-replicas-max-lag)",
        )


def _full(facts: NodeFacts) -> Iterator[Loss]:
    fault = "Its memory is full"
    policy = facts.config.get("maxmemory-policy") or facts.info.get("maxmemory_policy")
    limit = facts.config.get("maxmemory") or facts.info.get("maxmemory")
    if policy is None:
        yield Loss(fault, Extent.UNKNOWN, "unknown", _UNKNOWN)
    elif limit == "0":
        yield Loss(
            fault,
            Extent.LATEST,
            "as if it is killed: it has no limit",
            "set maxmemory, and it refuses sends instead",
        )
    elif policy != "noeviction":
        yield Loss(
            fault,
            Extent.MUCH,
            f"whole queues: {policy} deletes keys",
            "set maxmemory-policy noeviction",
        )
    else:
        yield Loss(fault, Extent.NOTHING, "nothing", "it refuses sends; workers continue")
