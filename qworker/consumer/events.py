"""What a child tells the journal of its deliveries: groups of events, and times; docs/protocol.md has the format.

<event> <delivered_ms> <times> <task> <reason> <error class>
q1 <header>
q1 <header>
"""

from __future__ import annotations

import struct
from binascii import b2a_base64
from collections.abc import Iterable, Iterator, Sequence
from itertools import groupby
from operator import itemgetter
from typing import TYPE_CHECKING, Any, Final

from qworker.client.commands.settling import MAX_GROUP, Group
from qworker.wire.envelope import Kind, kind_of

if TYPE_CHECKING:
    from qworker.app.task import Task
    from qworker.consumer.delivery import Delivery, Lease

__all__ = ["acked_headers", "acked_unstarted", "note_acked", "take_acked", "times_of", "times_word"]

_UNKNOWN: Final = "-"


def note_acked(
    lease: Lease, task: Task[..., Any], acked: Sequence[Delivery], runs_s: Iterable[float]
) -> None:
    """Keep what the journal is to be told of acked deliveries of one task, and how long they ran.

    By columns and in a few passes of C, as this is the hot path; the deliveries themselves may go.
    """
    headers, starts, runs = lease.acked.setdefault(task, ([], [], []))
    headers += _headers(acked)
    delivered = lease.delivered
    starts += [each.started - delivered for each in acked]
    runs += runs_s


def take_acked(lease: Lease) -> list[Group]:
    """Write the events of what was noted since the last time, a group per task (more where it exceeds 16 KiB)."""
    noted, lease.acked = lease.acked, {}
    return [
        group
        for task, columns in noted.items()
        for group in _groups(lease.now_ms, task.name, *columns)
    ]


def acked_unstarted(deliveries: Sequence[Delivery]) -> list[Group]:
    """Write the events of what is acked before its start (at most once), in this order; all of one lease."""
    tasks = [_task(each.task) for each in deliveries]
    return acked_headers(deliveries[0].lease.now_ms, zip(tasks, _headers(deliveries), strict=True))


def acked_headers(delivered_ms: int, headers: Iterable[tuple[str, bytes]]) -> list[Group]:
    """Write the events of acks of which no times are known, given their tasks and headers, in this order."""
    return [
        group
        for task, some in groupby(headers, key=itemgetter(0))
        for group in _groups(delivered_ms, task, [header for _, header in some], [], [])
    ]


def times_of(delivery: Delivery) -> str:
    """Write when a delivery was received, when it was begun and how long it ran, and its task."""
    lease, begun, task = delivery.lease, delivery.started, _task(delivery.task)
    # What ended before its handler has neither.
    if not begun or not delivery.took_s:
        return times_word(lease.now_ms, task)
    return times_word(lease.now_ms, task, begun - lease.delivered, delivery.took_s)


def times_word(
    delivered_ms: int, task: str = _UNKNOWN, start_s: float | None = None, run_s: float = 0.0
) -> str:
    """Write the times of one delivery; `start_s`, from its receive to its start, is None where it never began."""
    times = _UNKNOWN if start_s is None else _times([start_s], [run_s])
    return f"{delivered_ms} {times} {task}"


def _groups(
    delivered_ms: int,
    task: str,
    headers: Sequence[bytes],
    starts: Sequence[float],
    runs: Sequence[float],
) -> Iterator[Group]:
    times, number = _times(starts, runs), len(headers)
    first = f"acked {delivered_ms} {times} {task} - -\n"
    group = first.encode() + b"".join(headers)[:-1]
    if len(group) <= MAX_GROUP or number == 1:
        yield number, group[:MAX_GROUP]
        return
    half = number // 2
    yield from _groups(delivered_ms, task, headers[:half], starts[:half], runs[:half])
    yield from _groups(delivered_ms, task, headers[half:], starts[half:], runs[half:])


def _times(starts: Sequence[float], runs: Sequence[float]) -> str:
    """Of each event the seconds from the delivery to its start, and those that it ran: floats of 4 bytes in base64."""
    if not starts:
        return _UNKNOWN
    seconds = [0.0] * (2 * len(starts))
    seconds[::2], seconds[1::2] = starts, runs
    return b2a_base64(struct.pack(f"<{len(seconds)}f", *seconds), newline=False).decode()


def _headers(deliveries: Sequence[Delivery]) -> list[bytes]:
    """The header of each, with the newline behind it."""
    try:
        # Nearly all are first deliveries, whose header the runner has found.
        return [each.first[0] for each in deliveries]  # type: ignore[index]
    except TypeError:
        return [_header(each) for each in deliveries]


def _header(delivery: Delivery) -> bytes:
    item = delivery.item
    if item.startswith(b"q1 ") and delivery.envelope() is not None:
        return item[: item.index(b"\n") + 1]
    name = delivery.adopted_id if kind_of(item) is Kind.PLAIN else "-"
    return f"q1 {name} {delivery.lease.now_ms} 0 0 0 0\n".encode()


def _task(task: Task[..., Any] | None) -> str:
    return _UNKNOWN if task is None else task.name
