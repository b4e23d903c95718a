"""What deploy/ may name: the metrics that are exported, the commands and the flags that exist."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

__all__ = ["COMMANDS", "FLAGS", "METRICS", "Metric"]


@dataclass(frozen=True)
class Metric:
    """One exported metric: its labels with example values, and who tells its value.

    `truth`: kept in Redis and exported alike by every reaper, so a query must take `max by (queue)`.
    """

    kind: Literal["counter", "gauge", "histogram"]
    labels: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    truth: bool = False


_QUEUE = {"queue": ("emails", "events")}
_TASK = {**_QUEUE, "task": ("send", "load")}
_OUTCOMES = ("acked", "nacked", "buried", "released", "expired", "discarded")
_DEAD = (
    "max_receives",
    "rejected",
    "unknown_task",
    "bad_arguments",
    "foreign",
    "unsupported",
    "corrupt",
    "crashed",
    "time_limit",
)
_EXITS = ("recycled", "crashed", "time_limit", "rss", "watchdog", "stopped")


def _truth(kind: Literal["counter", "gauge"], **labels: tuple[str, ...]) -> Metric:
    return Metric(kind, {**_QUEUE, **labels}, truth=True)


METRICS: Mapping[str, Metric] = {
    # Queues: from Redis, by whoever reaps.
    "qworker_messages_ready": _truth("gauge"),
    "qworker_messages_delayed": _truth("gauge"),
    "qworker_messages_unacked": _truth("gauge"),
    "qworker_messages_dead": _truth("gauge"),
    "qworker_oldest_ready_age_seconds": _truth("gauge"),
    "qworker_reap_lateness_seconds": _truth("gauge"),
    "qworker_queue_paused": _truth("gauge", state=("in", "out")),
    "qworker_sent_total": _truth("counter"),
    "qworker_received_total": _truth("counter"),
    "qworker_acked_total": _truth("counter"),
    "qworker_nacked_total": _truth("counter"),
    "qworker_released_total": _truth("counter"),
    "qworker_expired_total": _truth("counter"),
    "qworker_timeouts_total": _truth("counter"),
    "qworker_dead_total": _truth("counter", reason=_DEAD),
    "qworker_redriven_total": _truth("counter"),
    "qworker_stale_receipts_total": _truth("counter"),
    # Workers: by each supervisor for its children.
    "qworker_handled_total": Metric("counter", {**_TASK, "outcome": _OUTCOMES}),
    "qworker_handler_seconds": Metric("histogram", _TASK),
    "qworker_wait_seconds": Metric("histogram", _TASK),
    "qworker_children": Metric("gauge", {"state": ("running", "starting", "stopped")}),
    "qworker_child_exits_total": Metric("counter", {"reason": _EXITS}),
    "qworker_running_handlers": Metric("gauge"),
    "qworker_lease_extensions_total": Metric("counter"),
    "qworker_leases_lost_total": Metric("counter"),
    # Reapers: by each for itself.
    "qworker_reaper_ticks_total": Metric("counter"),
    "qworker_reaper_tick_errors_total": Metric("counter"),
    "qworker_reaper_last_tick_timestamp_seconds": Metric("gauge"),
    "qworker_reaper_tick_seconds": Metric("histogram"),
    "qworker_promoted_total": Metric("counter", _QUEUE),
    "qworker_schedules_fired_total": Metric("counter", _TASK),
    "qworker_server_durable": Metric("gauge"),
    "qworker_server_info": Metric("gauge", {"engine": ("valkey",), "version": ("9.1.2",)}),
    "qworker_build_info": Metric("gauge", {"version": ("0.1.0",)}),
}

COMMANDS = frozenset(
    {
        *("demo", "run", "daemon", "send", "worker ls", "schedule ls", "top", "doctor"),
        *(
            f"queue {verb}"
            for verb in ("ls", "show", "set", "peek", "pause", "resume", "purge", "rm")
        ),
        *(f"message {verb}" for verb in ("show", "cancel")),
        *(f"dead {verb}" for verb in ("ls", "show", "redrive", "drop")),
        *(f"store {verb}" for verb in ("path", "status", "start", "stop")),
        "config show",
    }
)

FLAGS: Mapping[str, frozenset[str]] = {
    "run": frozenset(
        {
            *("--procs", "--concurrency", "--queues", "--weights", "--batch", "--visibility"),
            *("--burst", "--reload", "--grace", "--max-messages", "--max-rss", "--watchdog"),
            *("--metrics-host", "--metrics-port", "--no-reaper"),
        }
    ),
    "daemon": frozenset({"--tick", "--metrics-host", "--metrics-port", "--durability"}),
}
