"""Four accounts of the same acks, kept apart: each of them has to come to the numbers of the others.

    the server's counter          `acked` of the queues' stats
    handlers                      notes of their ends, in files outside of Redis
    metrics                       `qworker_handled_total` of the workers
    log                           lines `message_handled` of the workers

Where one of them cannot be had, a row says why.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from verification.faults.row import Row

__all__ = ["Agreement", "agreement_of", "forgotten"]


@dataclass(frozen=True)
class Agreement:
    """How the accounts compare. `left_out`: account → why it was not compared. `problems`: differences, in words."""

    left_out: dict[str, str] = field(default_factory=dict)
    problems: list[str] = field(default_factory=list)


def forgotten(row: Row) -> str:
    """Why the server's counters are not those of what happened; '' where they are."""
    if row.takes or row.undoes:
        return f"the server has forgotten: {row.takes or row.undoes}"
    if "counter" in row.mends:
        return "fsck has set counters right"
    return row.miscounts


def agreement_of(row: Row, figures: Mapping[str, float], unseen: Mapping[str, str]) -> Agreement:
    """Compare the accounts. `unseen`: of metrics and log, why they do not tell all."""
    left_out = {name: why for name, why in unseen.items() if why}
    problems = []
    acked, ended = figures["server_acked"], figures["finished"]
    if why := forgotten(row):
        left_out["server"] = why
    else:
        to_ack = ended + figures.get(row.unfinished, 0)
        if not to_ack - figures["maybe_cancelled"] <= acked <= to_ack:
            problems.append(
                f"the server has counted {acked:g} acks, handlers ended with {to_ack:g} messages"
            )
    for name, figure, late in (
        ("metrics", "handled_acked", "stale_outcomes"),
        ("log", "logged_acked", "stale_acks"),
    ):
        # Where the server has forgotten acks a message is handled twice, and none of them is known for late.
        if name in left_out or row.takes or row.undoes:
            continue
        counted = figures[figure]
        # One that came too late was handled, and is acked by its next receiver. A worker acks a whole lease by one
        # word: when the lease is gone, the worker alone knows how many messages that word was for.
        too_late = max(figures[late], figures.get("stale_outcomes", 0))
        if not counted - too_late <= ended <= counted + figures["maybe_cancelled"]:
            problems.append(
                f"handlers ended with {ended:g} messages, {name} counted {counted:g}, "
                f"of them {too_late:g} that came too late"
            )
    if not {"metrics", "log"} & left_out.keys():
        logged, handled = figures["logged_acked"], figures["handled_acked"]
        if logged != handled:
            problems.append(f"metrics have counted {handled:g} acks, the log {logged:g}")
    elif row.takes or row.undoes:
        for name in ("metrics", "log"):
            left_out.setdefault(name, "what the server has forgotten was handled twice")
    return Agreement(left_out, problems)
