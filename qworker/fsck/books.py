"""Counters, levels, journal numbers, lanes, unique keys, and the registry."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Final

from qworker.client.commands.registering import register
from qworker.errors import InvalidNameError
from qworker.fsck.finding import Finding, Kind
from qworker.fsck.mending import MAX_PAIRS, mend_books, mend_lane, mend_unique
from qworker.fsck.reading import ask, hash_pages, lease_ids
from qworker.wire.keys import QueueKeys, queues_key
from qworker.wire.names import check_place, split_place
from qworker.wire.shards import WHOLE, Shards

if TYPE_CHECKING:
    from qworker.client.sync import Client

__all__ = ["check_books", "check_lanes", "check_registry", "check_uniques"]

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
    return Finding(queue, Kind.COUNTER, f"stats {name}", text, repair)


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


def check_registry(
    client: Client, namespace: str, queues: set[str], *, repair: bool
) -> Iterator[Finding]:
    """Compare the registry with the queues that have keys."""
    registry = queues_key(namespace)
    kind = ask(client, "TYPE", registry).decode()
    if kind not in ("hash", "none"):
        # Queues are written into it again every minute by whoever has them.
        if repair:
            # On the same node of a Cluster, and within the rights to the namespace.
            aside = f"{namespace}:aside:{{{registry}}}:{ask(client, 'TIME')[0].decode()}"
            ask(client, "RENAMENX", registry, aside)
        yield Finding("", Kind.WRONG_TYPE, registry, f"is a {kind}, must be a hash", repair)
        if not repair:
            return
    known: dict[str, Shards] = {}
    for page in hash_pages(client, registry):
        for field, value in page:
            name = field.decode("utf-8", "replace")
            if not is_queue(name):
                if repair:
                    ask(client, "HDEL", registry, field)
                yield Finding("", Kind.BAD_NAME, f"queues {name}", "names no queue", repair)
                continue
            shards = Shards.parse(value)
            known[name] = shards or WHOLE
            if shards is None:
                if repair:
                    ask(client, "HSET", registry, field, 1)
                text = f"{ascii(value[:40])[2:-1]!r} is no number of shards"
                yield Finding(name, Kind.BAD_SHARDS, f"queues {name}", text, repair)
    yield from _check_shards(client, namespace, {*queues, *known}, known, repair=repair)
    for name in sorted(queues - known.keys()):
        # Registered since, or gone since: looked at again.
        there = ask(client, "EXISTS", *QueueKeys(namespace, name).all())
        if there and not ask(client, "HEXISTS", registry, name):
            if repair:
                ask(client, "HSETNX", registry, name, 1)
            text = "has messages, and no reaper knows it until it is found (within 10 min)"
            yield Finding(name, Kind.UNREGISTERED, "queues", text, repair)


def _check_shards(
    client: Client, namespace: str, names: set[str], known: dict[str, Shards], *, repair: bool
) -> Iterator[Finding]:
    """Look for messages in shards that their queues are not known to have: nobody would receive them."""
    for name in sorted(names):
        queue, number = split_place(name)
        shards = known.get(queue, WHOLE)
        if number < shards.kept or not _holds_messages(client, QueueKeys(namespace, name)):
            continue
        if repair:
            more = Shards(shards.active, number + 1, shards.epoch)
            known[queue] = client.execute(register(queues_key(namespace), queue, more))
        text = f"has messages, and queue {queue} is known to have {shards.kept} shards"
        yield Finding(name, Kind.BAD_SHARDS, f"queues {queue}", text, repair)


def _holds_messages(client: Client, keys: QueueKeys) -> bool:
    if ask(client, "EXISTS", *keys.ready, keys.suspect, keys.delayed, keys.unacked):
        return True
    return bool(ask(client, "TYPE", keys.dead) == b"stream" and ask(client, "XLEN", keys.dead))


def is_queue(name: str) -> bool:
    """Say whether a queue, or a shard of one, can be named so."""
    try:
        check_place(name)
    except InvalidNameError:
        return False
    return True
