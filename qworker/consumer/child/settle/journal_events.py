"""Events of a child for the journal: which deliveries were acked, when they began and how long they ran."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

from qworker.engine.journal_groups import UNKNOWN, acked_groups, acked_headers, times_word
from qworker.engine.settle import Group
from qworker.wire.envelope import ItemKind, kind_of

if TYPE_CHECKING:
    from qworker.app.task import Task
    from qworker.consumer.child.leases.delivery import Delivery
    from qworker.consumer.child.leases.lease import Lease

__all__ = ["acked_unstarted", "note_acked", "take_acked", "times_of"]


def note_acked(
    lease: Lease, task: Task[..., Any], acked: Sequence[Delivery], runs_s: Iterable[float]
) -> None:
    """Keep the journal events of acked deliveries of one task.

    This is the hot path: by columns, in a few passes of C, without keeping the deliveries.
    """
    headers, starts, runs = lease.acked.setdefault(task, ([], [], []))
    headers += _headers(acked)
    delivered = lease.delivered
    starts += [delivery.started - delivered for delivery in acked]
    runs += runs_s


def take_acked(lease: Lease) -> list[Group]:
    """Write the events noted since the last call, in one group per task (more if it exceeds 16 KiB)."""
    noted, lease.acked = lease.acked, {}
    return [
        group
        for task, columns in noted.items()
        for group in acked_groups(lease.now_ms, task.name, *columns)
    ]


def acked_unstarted(deliveries: Sequence[Delivery]) -> list[Group]:
    """Write the events of deliveries of one lease that are acked before their start (at most once), in this order."""
    tasks = [_task(delivery.task) for delivery in deliveries]
    return acked_headers(deliveries[0].lease.now_ms, zip(tasks, _headers(deliveries), strict=True))


def times_of(delivery: Delivery) -> str:
    """Write when a delivery was received, when it began, how long it ran, and its task."""
    lease, begun, task = delivery.lease, delivery.started, _task(delivery.task)
    # A delivery that ended before its handler began has neither.
    if not begun or not delivery.took_s:
        return times_word(lease.now_ms, task)
    return times_word(lease.now_ms, task, begun - lease.delivered, delivery.took_s)


def _headers(deliveries: Sequence[Delivery]) -> list[bytes]:
    """The header of each delivery, with its newline."""
    try:
        # Nearly all are first deliveries, whose header the runner has matched.
        return [delivery.first[0] for delivery in deliveries]  # type: ignore[index]
    except TypeError:
        return [_header(delivery) for delivery in deliveries]


def _header(delivery: Delivery) -> bytes:
    item = delivery.item
    if item.startswith(b"q1 ") and delivery.envelope() is not None:
        return item[: item.index(b"\n") + 1]
    name = delivery.adopted_id if kind_of(item) is ItemKind.PLAIN else "-"
    return f"q1 {name} {delivery.lease.now_ms} 0 0 0 0\n".encode()


def _task(task: Task[..., Any] | None) -> str:
    return UNKNOWN if task is None else task.name
