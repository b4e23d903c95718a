"""Runs whose messages are gone, and outboxes that no reaper finds."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import partial
from typing import TYPE_CHECKING, Final

from qworker.client.inspect.runs import LOST, statuses
from qworker.client.inspect.walk import SortedSetWalk
from qworker.engine.repair import MAX_PAIRS, repair_run
from qworker.formats import count
from qworker.fsck.damage import Damage, DamageKind
from qworker.fsck.leases import ask_with_leases
from qworker.fsck.reading import ask
from qworker.wire.ids import new_lane_id
from qworker.wire.keys import QueueKeys

if TYPE_CHECKING:
    from qworker.client.execute.sync import Client
    from qworker.client.queue_ref import QueueRef

__all__ = ["check_outboxes", "check_runs"]

#: Runs that one walk through the queue searches for.
_PAGE: Final = 5000


def check_runs(client: Client, queue: QueueRef, *, repair: bool) -> Iterator[Damage | str]:
    """Check that the messages of runs exist; yields a text if that could not be done."""
    keys = queue.keys
    for page in SortedSetWalk(keys.runs, _PAGE).pages(client.run):
        ids = [member.decode("utf-8", "replace") for member, _ in page]
        lost = [run.id for run in client.run(statuses(queue, ids)) if run.state == LOST]
        for first in range(0, len(lost), MAX_PAIRS):
            some = lost[first : first + MAX_PAIRS]
            names = [name.encode() for name in some]
            question = partial(repair_run, keys, names, repair=repair)
            why, gone = ask_with_leases(client, keys, question)
            if why:
                yield f"{keys.queue}: could not check {count(len(lost), 'run')} whose messages were not found: {why}"
                return
            for name, is_gone in zip(some, gone, strict=True):
                if is_gone:
                    text = (
                        "its message is gone, so it never ends, and waits for its result do not end"
                    )
                    yield Damage(keys.queue, DamageKind.RUN, f"run {name}", text, repair)


def check_outboxes(
    client: Client, keys: QueueKeys, destinations: Sequence[bytes], *, repair: bool
) -> Iterator[Damage]:
    """Check that reapers know of each outbox with entries; `destinations` are those that have a stream."""
    for destination in destinations:
        stream = keys.outbox(destination.decode("utf-8", "replace"))
        if ask(client, "TYPE", stream) != b"stream" or ask(
            client, "HEXISTS", keys.out, destination
        ):
            continue
        entries = ask(client, "XREVRANGE", stream, "+", "-", "COUNT", 1)
        if not entries:
            continue
        if repair:
            number = entries[0][0].partition(b"-")[0].decode()
            ask(client, "HSETNX", keys.out, destination, f"out-{new_lane_id()} {number}")
        text = "no reaper relays it: the queue's list of outboxes has lost it"
        where = f"out:{destination[:80].decode('utf-8', 'replace')}"
        yield Damage(keys.queue, DamageKind.OUTBOX, where, text, repair)
