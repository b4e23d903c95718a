"""Faults of a concurrency that two queues share: it is never exceeded, and always used; and of many ordered groups.

More children than slots, and always more messages than both. From the history, outside of Redis:

- `at_once`: the most handlers that ran at a time;
- `idle_longest_s`: the longest time during which fewer ran than may, while messages waited: a slot that a dead child,
  worker or server has left behind would stay idle for good;
- `idle_share`: the part of all the time, in per cent;
- `at_once_after_loss`: the most handlers that ran at a time in the 12 s after a master was lost.

A course notes the loss of a master as `master_lost`. What the old master had delivered, the limit at most, may run
beside what the new one delivers, which is the limit again if it has not got those leases: so the bound is twice the
limit until the leases have run out, and idle slots do not count. A course notes as `few` that it has killed most
children: until others have started, idle slots do not count either.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Final

from verification.faults import consumers, flow, topology
from verification.faults.flow import AT_ONCE, running_changes
from verification.faults.history import Event, events_of
from verification.faults.load import Load
from verification.faults.producer import Sending
from verification.faults.row import Row, at_least, at_most, exactly, within
from verification.faults.slots_producer import PARENT, SLOT
from verification.faults.stage import Stage

__all__ = ["ROWS", "figures_of"]

#: Children that are left to work whenever one is killed.
_SPARED: Final = AT_ONCE + 1
#: With as many messages unfinished some wait, whatever is being given back.
_WAITING: Final = 20
#: Another child has the message of a killed one within that: the pulse of a supervisor, a receive, a share that moves.
_IDLE_S: Final = 2.0
VISIBILITY_S: Final = 4.0
#: So long after a master was lost what its leases held may run beside others: until another is found, and they run out.
_LOSS_S: Final = 8.0 + VISIBILITY_S


def figures_of(history: Path) -> Mapping[str, float]:
    """Read how many ran at a time, and for how long too few did."""
    return figures(events_of(history))


def figures(events: Iterable[Event]) -> Mapping[str, float]:
    """Read the same from events."""
    ended_at: dict[int, int] = {}
    ran: list[Event] = []
    unfinished: list[tuple[int, int]] = []
    lost: list[int] = []
    few: list[int] = []
    done: set[str] = set()
    for event in sorted(events, key=lambda each: each.at):
        ended_at[event.pid] = event.at
        match event.word, event.rest:
            case "sent", (producer, first, last) if producer.endswith(f"/{SLOT}"):
                unfinished.append((event.at, int(last) - int(first) + 1))
            case (("started" | "done"), (key, *_)) if f"/{SLOT}-" in key:
                ran.append(event)
                if event.word == "done" and key not in done:
                    done.add(key)
                    unfinished.append((event.at, -1))
            case "master_lost", ():
                lost.append(event.at)
            case "few", ():
                few.append(event.at)
    changes = [(at, change, 0) for at, change in running_changes(ran, ended_at)]
    changes += [(at, 0, change) for at, change in unfinished]
    most = most_after_loss = longest = idle = busy = running = waiting = before = 0
    since: int | None = None  # when a slot became idle
    for at, begun, sent in sorted(changes):
        after_loss = _is_soon_after(at, lost)
        if after_loss or _is_soon_after(at, few) or waiting < _WAITING:
            since = None
        elif running < AT_ONCE:
            since = before if since is None else since
            idle, longest = idle + at - before, max(longest, at - since)
        else:
            since, busy = None, busy + at - before
        running, waiting, before = running + begun, waiting + sent, at
        if after_loss:
            most_after_loss = max(most_after_loss, running)
        else:
            most = max(most, running)
    return {
        "slots_used": len(done),
        "at_once": most,
        "at_once_after_loss": most_after_loss,
        "idle_longest_s": round(longest / 1e9, 2),
        "idle_share": round(100 * idle / max(1, idle + busy), 1),
    }


def _is_soon_after(at: int, moments: Iterable[int]) -> bool:
    return any(0 <= at - each <= _LOSS_S * 1e9 for each in moments)


def kill_some(stage: Stage) -> None:
    """Kill a child of any worker every tenth of a second, if enough others are at work."""
    for _ in stage.goes_on(0.1, kills=2):
        if len(stage.spoken(stage.children())) > _SPARED:
            stage.kill_child(stage.workers)


def kill_workers(stage: Stage) -> None:
    """Kill a whole worker every five seconds: its slots come back with its leases."""
    for _ in stage.goes_on(5.0, worker_kills=1):
        stage.kill_worker()


def lose_node(stage: Stage) -> None:
    """Kill the master of one of the queues, and children before and after."""
    for _ in range(5):
        time.sleep(0.2)
        stage.kill_child()
    stage.notebook.note("few")
    topology.lose_node_while(stage, kill_some)


def _share(stage: Stage) -> None:
    stage.queue().set_limit(PARENT, concurrency=AT_ONCE, with_queues=["aload"])


_LOAD: Final = Load(
    app="verification.faults.group_jobs:app",
    producer="verification.faults.slots_producer",
    queues="load,aload",
    procs=4,
    fewest=2,
    fewest_procs=4,
    producers=1,
    visibility=f"{VISIBILITY_S:g}s",
    sending=Sending(rate=40, chunk=5, backlog=50, nap_ms=300),
)
_USED: Final = (at_least("slots_used", 50), at_most("at_once", AT_ONCE))
_LOST_NODE: Final = next(row for row in topology.ROWS if row.name == "F32")

ROWS = [
    Row(
        name="G70",
        fault="children are killed that share three slots over two queues",
        course=kill_some,
        before=_share,
        load=_LOAD,
        figures=figures_of,
        bounds=(
            at_least("kills", 2),
            at_most("duplicates", "killed_running"),
            *_USED,
            within("idle_longest_s", _IDLE_S),
        ),
        each="kills",
    ),
    Row(
        name="G71",
        fault="workers are killed that share three slots over two queues",
        course=kill_workers,
        before=_share,
        load=_LOAD,
        figures=figures_of,
        # Their slots come back with their leases: visibility and tick.
        bounds=(
            at_least("worker_kills", 1),
            at_most("unexplained", 0),
            *_USED,
            within("idle_longest_s", VISIBILITY_S + 0.2 + _IDLE_S),
        ),
        seconds=20,
    ),
    replace(
        _LOST_NODE,
        name="G72",
        fault="a master of a Cluster is killed that holds one of two queues with three slots, and children",
        course=lose_node,
        before=_share,
        load=_LOAD,
        figures=figures_of,
        bounds=(
            at_least("kills", 2),
            *(bound for bound in _LOST_NODE.bounds if bound.figure in ("taken", "undone")),
            *_USED,
            at_most("at_once_after_loss", 2 * AT_ONCE),
            within("idle_longest_s", _IDLE_S),
        ),
        seconds=25,
        each="kills",
    ),
    Row(
        name="G73",
        fault="a child is killed every 250 ms, of a thousand ordered groups",
        course=consumers.kill_children,
        load=Load(
            app="verification.faults.group_jobs:app",
            producer="verification.faults.slots_producer",
            producers=1,
            visibility=consumers.LONG,
            sending=Sending(rate=4000, chunk=100, backlog=20_000, nap_ms=0, ordered_groups=1000),
        ),
        figures=flow.figures_of,
        bounds=(
            at_least("kills", 2),
            at_least("members", 100),
            at_least("ordered_groups", 20),
            exactly("disordered", 0),
        ),
        each="members",
    ),
]
