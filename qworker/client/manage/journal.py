"""Readers of a queue's journal and their positions, by which doctor and metrics warn of entries trimmed unread."""

from __future__ import annotations

import re
from collections.abc import Generator
from typing import Any, Final, TypeVar

import msgspec

from qworker.client.per_shard import chained, everywhere, nothing
from qworker.client.plan import Plan
from qworker.client.queue_ref import QueueRef
from qworker.engine.command import Command
from qworker.engine.inspect import Inspection, inspect
from qworker.engine.raw import raw, server_time
from qworker.errors import InvalidOptionError
from qworker.wire.keys import QueueKeys
from qworker.wire.numbers import whole

__all__ = [
    "JournalReader",
    "ReaderLag",
    "advance_reader",
    "forget_reader",
    "given_up_bytes",
    "lags",
    "reader_lags",
    "readers",
    "register_reader",
]

T = TypeVar("T")
#: A plan of commands only.
ReadPlan = Generator[Command[Any], Any, T]

_NAME: Final = re.compile(r"[A-Za-z0-9_.:-]{1,128}")
_PROGRESS: Final = re.compile(rb"(\d{1,16})-(\d{1,16}) (\d{1,16})")


class JournalReader(msgspec.Struct, frozen=True):
    """A reader, the last entry it has read (0-0 for none), and when it reported that, in ms by the server's clock."""

    name: str
    epoch: int
    entry: int
    seen_ms: int


class ReaderLag(msgspec.Struct, frozen=True):
    """How far a reader is behind: unread bytes that are stored, and entries that were trimmed before it read them."""

    reader: JournalReader
    unread_bytes: int
    missed: int


@everywhere(nothing, shards_of=QueueRef.journals)
def register_reader(queue: QueueRef, name: str) -> Plan[None]:
    """Register a reader of the journal, so that `doctor` and metrics warn before it misses entries.

    A registered reader is not changed. Raises `InvalidOptionError`.
    """
    _check_name(name)
    now_ms: int = yield server_time()
    yield raw("HSETNX", queue.keys.readers, name, f"0-0 {now_ms}", decode=int)


def advance_reader(queue: QueueRef, name: str, epoch: int, entry: int) -> Plan[None]:
    """Store the last entry of the journal, `<epoch>-<entry>`, that a reader has finished.

    Each shard has its own journal: open the shard by its name, `queue/3`. Raises `InvalidOptionError`.
    """
    _check_name(name)
    now_ms: int = yield server_time()
    yield raw("HSET", queue.keys.readers, name, f"{epoch}-{entry} {now_ms}", decode=int)


@everywhere(any, shards_of=QueueRef.journals)
def forget_reader(queue: QueueRef, name: str) -> Plan[bool]:
    """Forget a reader of the journal; returns whether there was one."""
    gone: int = yield raw("HDEL", queue.keys.readers, name, decode=int)
    return gone == 1


@everywhere(chained, shards_of=QueueRef.journals)
def readers(queue: QueueRef) -> Plan[list[JournalReader]]:
    """List the readers of the journal by name; other content is ignored."""
    return (yield from _readers(queue.keys))


@everywhere(chained, shards_of=QueueRef.journals)
def reader_lags(queue: QueueRef) -> Plan[list[ReaderLag]]:
    """Return how far each reader of the journal is behind. One call per reader and two more."""
    return (yield from lags(queue.keys))


def given_up_bytes(queue: QueueRef) -> Plan[int]:
    """Return the approximate size of the journals of shards that were given up, which `inspect` leaves out."""
    journals = yield from queue.journals()
    total = 0
    for shard in journals[queue.shards.kept :]:
        seen: Inspection = yield inspect(shard.keys)
        total += seen.journal_bytes
    return total


def lags(keys: QueueKeys) -> ReadPlan[list[ReaderLag]]:
    """Return how far each reader of one shard is behind."""
    registered = yield from _readers(keys)
    if not registered:
        return []
    written: int = yield raw("HGET", keys.stats, "journal_written", decode=_total)
    behind = []
    for reader in registered:
        after = f"({reader.epoch}-{reader.entry}" if reader.epoch else "-"
        entry: _Entry | None = yield raw(
            "XRANGE", keys.journal, after, "+", "COUNT", 1, decode=_first
        )
        unread = missed = 0
        if entry is not None:
            unread = max(0, written - entry.before)
            missed = entry.number - reader.entry - 1 if entry.epoch == reader.epoch else 0
        behind.append(ReaderLag(reader, unread, missed))
    return behind


def _readers(keys: QueueKeys) -> ReadPlan[list[JournalReader]]:
    flat: list[bytes] = yield raw("HGETALL", keys.readers, decode=_flat)
    registered = []
    for name, progress in zip(flat[::2], flat[1::2], strict=True):
        match = _PROGRESS.fullmatch(progress)
        if match is not None:
            epoch, entry, seen_ms = (int(number) for number in match.groups())
            registered.append(JournalReader(name.decode("utf-8", "replace"), epoch, entry, seen_ms))
    return sorted(registered, key=lambda reader: reader.name)


class _Entry(msgspec.Struct, frozen=True):
    """The position of an entry, and the bytes of all entries before it."""

    epoch: int
    number: int
    before: int


def _first(reply: list[Any]) -> _Entry | None:
    if not reply:
        return None
    entry_id, fields = reply[0]
    epoch, _, number = entry_id.partition(b"-")
    named = dict(zip(fields[::2], fields[1::2], strict=False))
    return _Entry(int(epoch), int(number), _total(named.get(b"b")))


def _check_name(name: object) -> None:
    if not isinstance(name, str) or _NAME.fullmatch(name) is None:
        raise InvalidOptionError(
            "reader", f"{ascii(name)[:80]} is not a name", "1 to 128 of A-Z, a-z, 0-9, '_.:-'"
        )


def _flat(reply: Any) -> list[bytes]:
    # RESP3 replies a map.
    if isinstance(reply, dict):
        return [word for pair in reply.items() for word in pair]
    return list(reply)


def _total(word: bytes | None) -> int:
    return whole(word) or 0
