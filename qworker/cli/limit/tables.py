"""Limits of groups, what they hold, and groups that wait, as tables and as documents for `--json`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from qworker.cli.framework.output import Table
from qworker.cli.framework.terminal import Column

if TYPE_CHECKING:
    from collections.abc import Mapping

    from qworker.cli.framework.context import Session
    from qworker.client.manage.limit_load import LimitLoad
    from qworker.client.manage.limits import GroupState, Limit

__all__ = [
    *("GROUP_COLUMNS", "LIMIT_COLUMNS", "LOAD_COLUMNS"),
    *("group_document", "group_row", "limit_document", "limit_documents", "limit_rows"),
    *("limit_table", "limits_of", "load_document", "load_row"),
]

LIMIT_COLUMNS: Final = (
    Column("LIMIT", wide=True),
    Column("CONCURRENCY"),
    Column("RATE"),
    Column("BURST"),
    Column("WEIGHT"),
    Column("MAX WAITING"),
    Column("WITH", wide=True),
)
GROUP_COLUMNS: Final = (
    Column("GROUP", wide=True),
    Column("WAITING"),
    Column("RUNNING"),
    Column("WAITS FOR", wide=True),
)
LOAD_COLUMNS: Final = (
    Column("LIMIT", wide=True),
    Column("IS", wide=True),
    Column("GROUPS", number=True),
    Column("WAITING", number=True),
    Column("RUNNING", number=True),
    Column("WAITS FOR", wide=True),
)


def limits_of(session: Session, queue: str) -> dict[str, tuple[Limit, list[str]]]:
    """Read the limits of a queue by name, each with the other queues that it is over."""
    from qworker.client.manage.limits import limits, shared_limits

    ref = session.queues.get(queue).ref
    found = session.client.run(limits(ref))
    shared = session.client.run(shared_limits(ref)) if found else {}
    return {
        name: (
            limit,
            [each for each in shared[name].queues if each != queue] if name in shared else [],
        )
        for name, limit in found.items()
    }


def limit_documents(found: Mapping[str, tuple[Limit, list[str]]]) -> list[dict[str, Any]]:
    """Write limits as documents for `--json`."""
    return [
        {**limit_document(name, limit), "with": others} for name, (limit, others) in found.items()
    ]


def limit_table(found: Mapping[str, tuple[Limit, list[str]]], none: str = "") -> Table:
    """Write limits as a table."""
    return Table(LIMIT_COLUMNS, limit_rows(found), none)


def limit_rows(found: Mapping[str, tuple[Limit, list[str]]]) -> list[tuple[str, ...]]:
    """Write limits as rows of `LIMIT_COLUMNS`, with the column `WITH`."""
    return [
        (*_row(name, limit), ", ".join(others) or "-") for name, (limit, others) in found.items()
    ]


def load_document(load: LimitLoad, now_ms: int) -> dict[str, Any]:
    """Write a limit and what it holds for `--json`."""
    return {
        **limit_document(load.name, load.limit),
        "groups": load.groups,
        "waiting": load.waiting,
        "running": load.running,
        "full": load.full,
        "share": load.share,
        "until_ms": load.until_ms,
        "waits_for": load.waits_for(now_ms) or None,
    }


def load_row(load: LimitLoad, now_ms: int) -> tuple[str, ...]:
    """Write the same as a row of `LOAD_COLUMNS`."""
    numbers = (f"{load.groups:,}", f"{load.waiting:,}", f"{load.running:,}")
    return (load.name, load.limit.text, *numbers, load.waits_for(now_ms) or "-")


def limit_document(name: str, limit: Limit) -> dict[str, Any]:
    """Write one limit for `--json`."""
    return {
        "limit": name,
        "concurrency": limit.concurrency,
        "rate": limit.rate,
        "burst": limit.burst,
        "weight": limit.weight,
        "max_waiting": limit.max_waiting,
    }


def _row(name: str, limit: Limit) -> tuple[str, ...]:
    values = [*limit_document(name, limit).values()]
    return tuple(
        "-" if value is None else f"{value:g}" if isinstance(value, float) else str(value)
        for value in values
    )


def group_document(group: GroupState) -> dict[str, Any]:
    """Write the state of a group for `--json`."""
    from qworker.wire.groups import ORDERED

    return {
        "group": group.name.removeprefix(ORDERED),
        "ordered": group.name.startswith(ORDERED),
        "waiting": group.waiting,
        "running": group.running,
        "concurrency": group.concurrency,
        "until_ms": group.until_ms,
        "waits_for": group.reason or None,
    }


def group_row(group: GroupState, now_ms: int) -> tuple[str, ...]:
    """Write the same as a row of `GROUP_COLUMNS`."""
    from qworker.client.manage.limits import waits_for
    from qworker.wire.groups import shown

    reason = waits_for(group, now_ms)
    return (shown(group.name), str(group.waiting), str(group.running), reason or "-")
