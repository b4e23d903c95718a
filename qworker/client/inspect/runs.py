"""Where runs stand, and the steps that they have recorded."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, Final

import msgspec

from qworker.client.checks import check_count
from qworker.client.dead.filter import DeadFilter
from qworker.client.dead.pages import DeadLetterScan
from qworker.client.inspect.find import Search, find_delayed, scored
from qworker.client.inspect.peek import lease
from qworker.client.inspect.results import outcome as outcome_of
from qworker.client.message import Stored
from qworker.client.per_shard import everywhere, until_found
from qworker.client.plan import Plan
from qworker.client.queue_ref import QueueRef
from qworker.engine.message import NEVER_MS
from qworker.engine.raw import raw
from qworker.engine.run import RunInspection, inspect_runs
from qworker.errors import ProtectionError
from qworker.wire.memo import memo_items, memo_lasted_ms, memo_ms, read_memo
from qworker.wire.names import check_message_id

__all__ = [
    "ACTIVE",
    "LOST",
    "RunStatus",
    "RunStep",
    "is_gather",
    "run_status",
    "run_steps",
    "runs",
    "statuses",
]

#: The state of a run whose message was not found; `qworker fsck` repairs it if that stays so.
LOST: Final = "lost"
#: The state of a run that neither sleeps nor waits, if its message was not searched for.
ACTIVE: Final = "active"
_PER_CALL: Final = 100
#: Walks through a queue: a message that moves may be missed by one.
_WALKS: Final = 2
_FIELDS: Final = 200


class RunStatus(msgspec.Struct, frozen=True):
    """A run at `now_ms`. Times in ms since 1970 by the server's clock.

    `state`: ready, running, sleeping, waiting (for the signal `waits_for`), delayed (before its start, or a retry),
    held, dead, `LOST`, `ACTIVE`; after its end `ok`, cancelled, discarded, expired, purged, or `ended` if that is not
    known any more. `since_ms`: when it began to sleep or wait. `due_ms`: when it continues by itself. `recorded`: the
    size of its state, in fields. `workflow` is '' if its message cannot be read.
    """

    queue: str
    id: str
    state: str
    now_ms: int
    workflow: str = ""
    started_ms: int | None = None
    since_ms: int | None = None
    due_ms: int | None = None
    waits_for: str = ""
    recorded: int = 0
    message: Stored | None = None

    @property
    def ended(self) -> bool:
        """Whether it has ended: a dead one can be redriven, and has not."""
        return self.state in ("ok", "cancelled", "discarded", "expired", "purged", "ended")


class RunStep(msgspec.Struct, frozen=True):
    """A recorded step, a signal `!<name>`, or a loop `*<name>`: when, and its value as JSON.

    The value is b"" of a wait that ended without a signal, and of a loop where it continues; `position` is the number
    of items that are done, None unless it is a loop. `closed` says why the value cannot be read; else ''.
    `lasted_ms`: how long the function of a step took; 0: not known.
    """

    name: str
    at_ms: int | None
    value: bytes
    closed: str = ""
    position: int | None = None
    lasted_ms: int = 0

    @property
    def progress(self) -> str:
        """How far a loop has come, for people: '1,200 of 5,000'; '' of anything else."""
        if self.position is None:
            return ""
        try:
            kept = msgspec.json.decode(self.value, type=_Kept)
        except msgspec.MsgspecError:
            kept = _Kept()
        if kept.ended:
            return f"all {self.position:,}"
        return f"{self.position:,}" + (f" of {kept.of:,}" if kept.of is not None else "")


def is_gather(signal: str) -> bool:
    """Whether a signal, by its name, is the end of calls that a run gathers: those of users have no number."""
    return "#" in signal


class _Kept(msgspec.Struct):
    """Parts of the position of a loop."""

    of: int | None = None
    ended: bool = False


def _by_age(shards: list[list[RunStatus]]) -> list[RunStatus]:
    return sorted(
        (run for some in shards for run in some), key=lambda run: run.started_ms or run.now_ms
    )


@everywhere(_by_age, reads=True)
def runs(
    queue: QueueRef, count: int = 100, *, skip: int = 0, search: bool = True
) -> Plan[list[RunStatus]]:
    """List up to `count` (1-1,000) runs of each shard that have not ended and have recorded something, oldest first.

    Those that were started with `id=` are listed from the start. One call for a hundred runs that sleep or wait;
    finding others takes O(n) of the queue, and without `search` they are `ACTIVE`.
    """
    check_count(count)
    names: list[bytes] = yield raw("ZRANGE", queue.keys.runs, skip, skip + count - 1, decode=list)
    ids = [name.decode("utf-8", "replace") for name in names]
    return (yield from statuses(queue, ids, search=search))


@until_found
def run_status(queue: QueueRef, message_id: str) -> Plan[RunStatus | None]:
    """Return where a run stands; None if it is unknown. O(n) of the queue, unless it sleeps, waits or has ended."""
    check_message_id(message_id)
    [status] = yield from statuses(queue, [message_id])
    if status.recorded or (status.message is not None and "c" in status.message.flags):
        return status
    if status.message is not None:
        return None  # no run
    try:
        outcome = yield from outcome_of(queue, message_id)
    except ProtectionError:
        return None
    return None if outcome is None else _ended(queue, message_id, outcome.state, status.now_ms)


@until_found
def run_steps(queue: QueueRef, message_id: str) -> Plan[list[RunStep] | None]:
    """Read the recorded steps of a run, oldest first; None if none are kept. O(n) of the steps, in pages."""
    key = queue.keys.run(check_message_id(message_id))
    steps: dict[bytes, RunStep] = {}
    cursor = "0"
    while True:
        reply: list[Any] = yield raw("HSCAN", key, cursor, "COUNT", _FIELDS, decode=list)
        for name, stored in zip(reply[1][::2], reply[1][1::2], strict=True):
            if not name.startswith((b"@", b"~")):
                steps[name] = _step(queue, message_id, name.decode("utf-8", "replace"), stored)
        cursor = reply[0].decode()
        if cursor == "0":
            break
    return sorted(steps.values(), key=lambda step: (step.at_ms or 0, step.name)) or None


def _step(queue: QueueRef, message_id: str, name: str, stored: bytes) -> RunStep:
    names = queue.namespace, queue.keys.name, message_id, name
    position = memo_items(stored) if name.startswith("*") else None
    try:
        value, closed = read_memo(stored, queue.keyring, *names), ""
    except ProtectionError as error:
        value, closed = b"", error.problem
    return RunStep(name, memo_ms(stored), value, closed, position, memo_lasted_ms(stored))


def statuses(queue: QueueRef, ids: Sequence[str], *, search: bool = True) -> Plan[list[RunStatus]]:
    """Return where runs stand, also of those without a state; without `search` many are `ACTIVE`."""
    read: list[RunInspection] = []
    while len(read) < len(ids):
        page: list[RunInspection] = yield inspect_runs(
            queue.keys, ids[len(read) : len(read) + _PER_CALL]
        )
        read += page
    elsewhere = [
        run_id for run_id, seen in zip(ids, read, strict=True) if not seen.item and not seen.ended
    ]
    found: dict[str, Stored] = {}
    for _ in range(_WALKS if search else 0):
        missing = [run_id for run_id in elsewhere if run_id not in found]
        found |= yield from _find(queue, missing)
    statuses = []
    for run_id, seen in zip(ids, read, strict=True):
        if seen.ended:
            outcome = yield from _outcome(queue, run_id)
            statuses.append(_ended(queue, run_id, outcome, seen.now_ms, seen.fields))
        else:
            statuses.append(
                _live(queue, run_id, seen, found.get(run_id), LOST if search else ACTIVE)
            )
    return statuses


def _live(
    queue: QueueRef, run_id: str, seen: RunInspection, message: Stored | None, unfound: str
) -> RunStatus:
    state, due_ms = unfound, None
    if seen.item:
        message = queue.stored("delayed", seen.item, seen.due_ms)
        state = "waiting" if seen.waits else "sleeping"
        due_ms = None if seen.due_ms is None or seen.due_ms >= NEVER_MS else seen.due_ms
    elif message is not None:
        state = "running" if message.state == "unacked" else message.state
        due_ms = message.at_ms if state == "delayed" else None
    return RunStatus(
        queue.keys.queue,
        run_id,
        state,
        seen.now_ms,
        message.task if message else "",
        message.sent_ms if message else None,
        seen.since_ms if seen.item else None,
        due_ms,
        seen.waits,
        seen.fields,
        message,
    )


def _outcome(queue: QueueRef, run_id: str) -> Plan[str]:
    try:
        outcome = yield from outcome_of(queue, run_id)
    except ProtectionError:
        return "ended"  # we cannot read its result
    return "ended" if outcome is None or outcome.state == "dead" else outcome.state


def _ended(queue: QueueRef, run_id: str, state: str, now_ms: int, fields: int = 0) -> RunStatus:
    return RunStatus(queue.keys.queue, run_id, state, now_ms, recorded=fields)


def _find(queue: QueueRef, ids: Iterable[str]) -> Plan[dict[str, Stored]]:
    """Find messages in one walk through each key, in the order in which they move."""
    found: dict[str, Stored] = {}
    wanted = set(ids)
    if not wanted:
        return found
    search = Search(queue, wanted)
    while not search.ended:
        for hit in (yield from search.page()):
            found[hit.id] = queue.stored("ready", hit.item)
    for hit in (yield from find_delayed(queue, wanted - found.keys())):
        found[hit.id] = queue.stored("delayed", hit.item, hit.due_ms)
    if wanted <= found.keys():
        return found
    flat: list[bytes] = yield raw("ZRANGE", queue.keys.unacked, 0, -1, "WITHSCORES", decode=list)
    for name, deadline_ms in scored(flat):
        for message in (yield from lease(queue, name.decode("utf-8", "replace"), deadline_ms)):
            if message.id in wanted:
                found[message.id] = message
    left = wanted - found.keys()
    reading = DeadLetterScan(queue, DeadFilter(ids=frozenset(left)), now_ms=0, size=_FIELDS)
    while left and not reading.ended:
        for dead_letter in (yield from reading.page()):
            found[dead_letter.message.id] = dead_letter.message
            left.discard(dead_letter.message.id)
    return found
