"""Metrics of a reaper: its passes, the schedules that it fired, and its server."""

from __future__ import annotations

from collections.abc import Iterable
from importlib.metadata import PackageNotFoundError, version

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram

from qworker.daemon.tick import Tick

__all__ = ["ReaperMetrics", "export_version", "package_version"]


class ReaperMetrics:
    """The metrics of one reaper. Only one thread at a time may call a method."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self._ticks = Counter(
            "qworker_reaper_ticks_total", "Passes of the reaper.", registry=registry
        )
        self._errors = Counter(
            "qworker_reaper_tick_errors_total", "Passes that failed.", registry=registry
        )
        self._queue_errors = Counter(
            "qworker_reaper_queue_errors_total",
            "Calls that failed for some queues alone: their node is away, or refuses the user.",
            registry=registry,
        )
        self._last = Gauge(
            "qworker_reaper_last_tick_timestamp_seconds",
            "When the last pass that did not fail ended.",
            registry=registry,
        )
        self._seconds = Histogram(
            "qworker_reaper_tick_seconds",
            "How long passes took.",
            buckets=(0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5),
            registry=registry,
        )
        self._broken = Gauge(
            "qworker_reaper_broken_queues",
            "Queues that the last pass left alone: one of their keys holds another type.",
            registry=registry,
        )
        self._fired = Counter(
            "qworker_schedules_fired_total",
            "Slots of schedules that this reaper fired.",
            ["queue", "task"],
            registry=registry,
        )
        self._registry = registry
        self._durable: Gauge | None = None
        self._server: Gauge | None = None
        self._memory: Gauge | None = None
        export_version(registry)

    def passed(self, tick: Tick | None, scheduled: Iterable[tuple[str, str]] = ()) -> None:
        """Count a pass, None for a failed one. `scheduled`: queue and task of each known schedule."""
        for queue, task in scheduled:
            # Counts from 0 before it fires, so that the first time shows as an increase.
            self._fired.labels(queue, task)
        if tick is None:
            self._errors.inc()
            return
        self._ticks.inc()
        self._last.set_to_current_time()
        self._seconds.observe(tick.elapsed_s)
        self._broken.set(len(tick.broken))
        self._queue_errors.inc(tick.errors)
        for (queue, task), slots in tick.fired.items():
            self._fired.labels(queue, task).inc(slots)

    def server(self, engine: str, engine_version: str, durable: bool | None) -> None:
        """Export the server, and whether it is durable; None if that is unknown."""
        if self._server is None:
            self._server = Gauge(
                "qworker_server_info", "The server.", ["engine", "version"], registry=self._registry
            )
        self._server.clear()
        self._server.labels(engine, engine_version).set(1)
        if durable is None:
            return
        if self._durable is None:
            self._durable = Gauge(
                "qworker_server_durable",
                "1 if a crash of the server loses no message accepted more than a second ago.",
                registry=self._registry,
            )
        self._durable.set(durable)

    def memory(self, ratio: float | None) -> None:
        """Export the used share of the server's maxmemory; None if it has no limit, or does not say."""
        if ratio is None:
            if self._memory is not None:
                self._registry.unregister(self._memory)
                self._memory = None
            return
        if self._memory is None:
            self._memory = Gauge(
                "qworker_server_memory_ratio",
                "Used share of maxmemory, of the fullest node; from 1 on, sends are refused. "
                "Not exported without maxmemory.",
                registry=self._registry,
            )
        self._memory.set(ratio)


def export_version(registry: CollectorRegistry) -> None:
    """Export the version of qworker."""
    build = Gauge("qworker_build_info", "The version of qworker.", ["version"], registry=registry)
    build.labels(package_version()).set(1)


def package_version() -> str:
    """Return the version of this package."""
    for name in ("qworker-redis", "qworker"):
        try:
            return version(name)
        except PackageNotFoundError:
            continue
    return "unknown"
