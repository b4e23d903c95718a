"""Counters, levels, journal numbers, lanes and unique keys."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Final

from qworker.errors import InvalidNameError
from qworker.fsck.finding import Finding, Kind
from qworker.fsck.mending import MAX_PAIRS, mend_books, mend_lane, mend_unique
from qworker.fsck.reading import hash_pages, lease_ids
from qworker.wire.keys import QueueKeys
from qworker.wire.names import check_place
from qworker.wire.numbers import whole

if TYPE_CHECKING:
    from qworker.client.sync import Client

__all__ = ["check_books", "check_lanes", "check_uniques", "is_queue"]

#: Leases that are counted in one call, and calls until a busy queue is let go.
_MAX_LEASES: Final = 5000
_TRIES: Final = 20
_FAST: Final = "its leases change too fast"
_UNNAMED: Final = f"it has over {_MAX_LEASES:,} leases, or one that has no name: repair that first"
#: Why a script found nothing out.
_WHY: Final = {"": "", "busy": _FAST, "large": "it has more messages than a script may read"}
_LANES: Final = {
    "unreadable": "holds no number and time: its sends could be stored twice",
    "future": "was used later than now: it is never forgotten",
}


def check_books(client: Client, keys: QueueKeys, *, repair: bool) -> Iterator[Finding | str]:
    """Compare the counters with what is there; text where that could not be done."""
    told: set[tuple[str, str, str]] = set()
    why = ""
    for _ in range(_TRIES):
        leases = lease_ids(client, keys, _MAX_LEASES)
        books = client.execute(mend_books(keys, leases or [], repair=repair))
        for problem in books.problems:
            if problem not in told:
                told.add(problem)
                yield _entry(keys.queue, *problem, repair=repair)
        why = "" if not books.busy else _FAST if leases is not None else _UNNAMED
        if why != _FAST:
            break
    if why:
        yield f"{keys.queue}: stored and unacked were not compared, {why}"


def _entry(queue: str, name: str, found: str, right: str, *, repair: bool) -> Finding:
    if name == "level":
        text = f"messages wait on priorities that nobody receives: {found or 'none'} declared, {right} in use"
        return Finding(queue, Kind.LEVEL, "meta levels", text, repair)
    if name == "journal":
        text = f"its next entry is {found}, its last was {right}"
        return Finding(queue, Kind.JOURNAL, "journal", text, repair)
    text = f"is {found or 'missing'}, should be {right}" if right else f"{found!a} is no number"
    gone = (whole(found) or 0) - (whole(right) or 0) if name == "stored" and right else 0
    if gone > 0:
        text += (
            f": {gone:,} messages that were stored are gone, and nothing says what became of them"
        )
    return Finding(queue, Kind.COUNTER, f"stats {name}", text, repair, max(0, gone))


def check_lanes(client: Client, keys: QueueKeys, *, repair: bool) -> Iterator[Finding]:
    """Look at what is known of senders."""
    for page in hash_pages(client, keys.producers):
        for lane, value in page:
            words = value.split(b" ")
            if len(words) >= 2 and words[0].isdigit() and words[1].isdigit() and len(words[1]) < 14:
                continue
            problem = client.execute(mend_lane(keys, lane, repair=repair))
            if problem:
                where = f"producers {lane.decode('utf-8', 'replace')}"
                yield Finding(keys.queue, Kind.LANE, where, _LANES[problem], repair)


def check_uniques(client: Client, keys: QueueKeys, *, repair: bool) -> Iterator[Finding | str]:
    """Look for the holders of unique keys; text where that could not be done."""
    for page in hash_pages(client, keys.unique):
        for first in range(0, len(page), MAX_PAIRS):
            pairs = page[first : first + MAX_PAIRS]
            why, gone = _FAST, list[bool]()
            for _ in range(_TRIES):
                leases = lease_ids(client, keys, _MAX_LEASES)
                answer, gone = client.execute(mend_unique(keys, pairs, leases or [], repair=repair))
                why = _WHY[answer] if leases is not None else _UNNAMED
                if why != _FAST:
                    break
            if why:
                yield f"{keys.queue}: holders of unique keys were not looked for, {why}"
                return
            for (key, value), is_gone in zip(pairs, gone, strict=True):
                if is_gone:
                    where = f"unique {key.decode('utf-8', 'replace')}"
                    text = f"its message is gone: {ascii(value[:40])[2:-1]}"
                    yield Finding(keys.queue, Kind.UNIQUE, where, text, repair)


def is_queue(name: str) -> bool:
    """Say whether a queue, or a shard of one, can be named so."""
    try:
        check_place(name)
    except InvalidNameError:
        return False
    return True
