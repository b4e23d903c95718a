"""Rates: the gain of a queue's counters between two inspections, by the server's clock."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from qworker.engine.inspect import Inspection

__all__ = ["COUNTERS", "rates_between"]

#: Counters with rates, and what each counts.
COUNTERS: Final = {
    "sent": "messages stored by senders",
    "received": "deliveries",
    "acked": "done",
    "results": "results kept",
    "nacked": "failed, counted",
    "released": "given back, uncounted",
    "timeouts": "not settled in time",
    "expired": "dropped at the end of their time to live",
    "discarded": "dropped by their handler",
    "cancelled": "dropped by an operator",
    "dead": "became dead letters",
    "redriven": "dead letters put back",
    "purged": "deleted by an operator",
    "stale": "settled too late or twice, which changed nothing",
    "unburied": "delayed forever, because the stream of dead letters is full",
    "unsupported": "received in a newer format than this version knows",
}


def rates_between(earlier: Inspection, later: Inspection) -> dict[str, float]:
    """Return each counter's gain per second; nothing if the clock stopped or went back."""
    seconds = (later.now_ms - earlier.now_ms) / 1000
    if seconds <= 0:
        return {}
    return {
        name: max(0, later.stats.get(name, 0) - earlier.stats.get(name, 0)) / seconds
        for name in COUNTERS
    }
