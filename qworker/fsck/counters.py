"""Counters, levels, journal numbers, lanes and unique keys."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import TYPE_CHECKING, Final

from qworker.engine.repair import (
    LANE_PREFIX,
    MAX_PAIRS,
    repair_counters,
    repair_lane,
    repair_unique,
)
from qworker.errors import InvalidNameError
from qworker.fsck.damage import Damage, DamageKind
from qworker.fsck.leases import ATTEMPTS, FAST, UNNAMED, ask_with_leases, lease_ids
from qworker.fsck.reading import hash_pages
from qworker.wire.keys import QueueKeys
from qworker.wire.names import check_queue_or_shard
from qworker.wire.numbers import whole

if TYPE_CHECKING:
    from qworker.client.execute.sync import Client

__all__ = ["check_counters", "check_lanes", "check_uniques", "is_queue"]

_LANES: Final = {
    "unreadable": "holds no number and time: its sends could be stored twice",
    "future": "was used in the future: it would never be forgotten",
}


def check_counters(client: Client, keys: QueueKeys, *, repair: bool) -> Iterator[Damage | str]:
    """Compare the counters with the queue; yields a text if that could not be done."""
    reported: set[tuple[str, str, str]] = set()
    why = ""
    for _ in range(ATTEMPTS):
        leases = lease_ids(client, keys)
        counters = client.execute(repair_counters(keys, leases or [], repair=repair))
        for problem in counters.problems:
            if problem not in reported:
                reported.add(problem)
                yield _wrong(keys.queue, *problem, repair=repair)
        why = "" if not counters.busy else FAST if leases is not None else UNNAMED
        if why != FAST:
            break
    if why:
        yield f"{keys.queue}: stored and unacked were not compared: {why}"


def _wrong(queue: str, name: str, value: str, right: str, *, repair: bool) -> Damage:
    if name == "level":
        text = f"messages wait on priorities that no worker receives: {value or 'none'} declared, {right} in use"
        return Damage(queue, DamageKind.LEVEL, "meta levels", text, repair)
    if name == "journal":
        text = f"its next entry is {value}, its last was {right}"
        return Damage(queue, DamageKind.JOURNAL, "journal", text, repair)
    text = f"is {value or 'missing'}, should be {right}" if right else f"{value!a} is not a number"
    gone = (whole(value) or 0) - (whole(right) or 0) if name == "stored" and right else 0
    if gone > 0:
        text += f": {gone:,} stored messages are gone without a trace"
    return Damage(queue, DamageKind.COUNTER, f"stats {name}", text, repair, max(0, gone))


def check_lanes(client: Client, keys: QueueKeys, *, repair: bool) -> Iterator[Damage]:
    """Check the lanes of senders."""
    for place, name, prefix in (
        (keys.producers, "producers", b""),
        (keys.stats, "stats", LANE_PREFIX),
    ):
        for page in hash_pages(client, place):
            for field, value in page:
                elsewhere = not field.startswith(prefix) or (prefix and value == b"-")
                if elsewhere or _is_dated(value):
                    continue
                problem = client.execute(repair_lane(keys, place, field, repair=repair))
                if problem:
                    where = f"{name} {field.decode('utf-8', 'replace')}"
                    yield Damage(keys.queue, DamageKind.LANE, where, _LANES[problem], repair)


def _is_dated(lane: bytes) -> bool:
    words = lane.split(b" ")
    return len(words) >= 2 and words[0].isdigit() and words[1].isdigit() and len(words[1]) < 14


def check_uniques(client: Client, keys: QueueKeys, *, repair: bool) -> Iterator[Damage | str]:
    """Check that the holders of unique keys exist; yields a text if that could not be done."""
    for page in hash_pages(client, keys.unique):
        for first in range(0, len(page), MAX_PAIRS):
            pairs = page[first : first + MAX_PAIRS]
            question = partial(repair_unique, keys, pairs, repair=repair)
            why, gone = ask_with_leases(client, keys, question)
            if why:
                yield f"{keys.queue}: the holders of unique keys were not checked: {why}"
                return
            for (key, value), is_gone in zip(pairs, gone, strict=True):
                if is_gone:
                    where = f"unique {key.decode('utf-8', 'replace')}"
                    text = f"its message is gone: {ascii(value[:40])[2:-1]}"
                    yield Damage(keys.queue, DamageKind.UNIQUE, where, text, repair)


def is_queue(name: str) -> bool:
    """Say whether this is a valid name of a queue or a shard."""
    try:
        check_queue_or_shard(name)
    except InvalidNameError:
        return False
    return True
