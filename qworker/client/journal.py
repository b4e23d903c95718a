"""Readers of a queue's journal: who reads it and how far, so that others can warn before unread entries are trimmed.

As the operations of a queue these are plans, free of I/O: the sync and the async client run the same ones.
"""

from __future__ import annotations

import re
from collections.abc import Generator
from dataclasses import dataclass
from typing import Any, Final, TypeVar

from qworker.client.commands.command import Command
from qworker.client.plan import Plan, server_ms
from qworker.client.queue_ref import QueueRef
from qworker.client.spreading import chained, everywhere, nothing
from qworker.errors import InvalidOptionError
from qworker.wire.keys import QueueKeys
from qworker.wire.numbers import whole

__all__ = [
    "JournalReader",
    "ReaderLag",
    "advance_reader",
    "forget_reader",
    "lags",
    "reader_lags",
    "readers",
    "register_reader",
]

T = TypeVar("T")
#: A plan that only asks.
Look = Generator[Command[Any], Any, T]

_NAME: Final = re.compile(r"[A-Za-z0-9_.:-]{1,128}")
_PROGRESS: Final = re.compile(rb"(\d{1,16})-(\d{1,16}) (\d{1,16})")


@dataclass(frozen=True, slots=True)
class JournalReader:
    """A reader, the last entry that it has read (0-0 for none), and when it said so, in ms by the server's clock."""

    name: str
    epoch: int
    entry: int
    seen_ms: int


@dataclass(frozen=True, slots=True)
class ReaderLag:
    """How far a reader is behind: bytes that it has not read, of those that are there, and entries lost to it."""

    reader: JournalReader
    unread_bytes: int
    missed: int


@everywhere(nothing)
def register_reader(queue: QueueRef, name: str) -> Plan[None]:
    """Make a reader of the journal known, so that `doctor` and metrics warn before it misses entries.

    One that is known stays as it is. Raises `InvalidOptionError`.
    """
    _check_name(name)
    now_ms: int = yield server_ms()
    yield Command(None, (), ("HSETNX", queue.keys.readers, name, f"0-0 {now_ms}"), int)


def advance_reader(queue: QueueRef, name: str, epoch: int, entry: int) -> Plan[None]:
    """Note the last entry of the journal, `<epoch>-<entry>`, that a reader has read for good.

    Each shard has a journal of its own: name it, `queue/3`, but for the first one. Raises `InvalidOptionError`.
    """
    _check_name(name)
    now_ms: int = yield server_ms()
    yield Command(None, (), ("HSET", queue.keys.readers, name, f"{epoch}-{entry} {now_ms}"), int)


@everywhere(any)
def forget_reader(queue: QueueRef, name: str) -> Plan[bool]:
    """Forget a reader of the journal; returns whether there was one."""
    gone: int = yield Command(None, (), ("HDEL", queue.keys.readers, name), int)
    return gone == 1


@everywhere(chained)
def readers(queue: QueueRef) -> Plan[list[JournalReader]]:
    """List the readers of the journal by name; what is not written as theirs is left aside."""
    return (yield from _readers(queue.keys))


@everywhere(chained)
def reader_lags(queue: QueueRef) -> Plan[list[ReaderLag]]:
    """Tell how far each reader of the journal is behind. One call per reader and two more."""
    return (yield from lags(queue.keys))


def lags(keys: QueueKeys) -> Look[list[ReaderLag]]:
    """Tell how far each reader is behind, for who knows of the queue its keys only."""
    found = yield from _readers(keys)
    if not found:
        return []
    written: int = yield Command(None, (), ("HGET", keys.stats, "journal_written"), _total)
    behind = []
    for each in found:
        after = f"({each.epoch}-{each.entry}" if each.epoch else "-"
        entry: _Entry | None = yield Command(
            None, (), ("XRANGE", keys.journal, after, "+", "COUNT", 1), _first
        )
        unread = missed = 0
        if entry is not None:
            unread = max(0, written - entry.before)
            missed = entry.number - each.entry - 1 if entry.epoch == each.epoch else 0
        behind.append(ReaderLag(each, unread, missed))
    return behind


def _readers(keys: QueueKeys) -> Look[list[JournalReader]]:
    flat: list[bytes] = yield Command(None, (), ("HGETALL", keys.readers), _flat)
    found = []
    for name, progress in zip(flat[::2], flat[1::2], strict=True):
        match = _PROGRESS.fullmatch(progress)
        if match is not None:
            epoch, entry, seen_ms = (int(number) for number in match.groups())
            found.append(JournalReader(name.decode("utf-8", "replace"), epoch, entry, seen_ms))
    return sorted(found, key=lambda each: each.name)


@dataclass(frozen=True, slots=True)
class _Entry:
    """Where an entry stands, and the bytes of all before it."""

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
    # RESP3 answers a map.
    if isinstance(reply, dict):
        return [word for pair in reply.items() for word in pair]
    return list(reply)


def _total(word: bytes | None) -> int:
    return whole(word) or 0
