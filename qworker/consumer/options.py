"""How `qworker run` consumes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from importlib.util import find_spec
from typing import Annotated, ClassVar

from qworker.config.fields import Options
from qworker.config.kinds import (
    DAY_MS,
    HOUR_MS,
    MAX_VISIBILITY_MS,
    MIN_VISIBILITY_MS,
    ChoiceKind,
    DurationKind,
    FlagKind,
    IntegerKind,
    SizeKind,
)
from qworker.config.name_kinds import NamesKind, WeightsKind
from qworker.durations import Duration
from qworker.errors import InvalidOptionError
from qworker.telemetry.options import METRICS_HOST, METRICS_PORT, METRICS_QUEUES
from qworker.wire.control import MAX_PROCESSES
from qworker.wire.names import check_queue

__all__ = ["RunOptions"]


@dataclass(frozen=True, slots=True, kw_only=True)
class RunOptions(Options):
    """How `qworker run` consumes."""

    section: ClassVar[str] = "run"

    procs: Annotated[
        int | None,
        IntegerKind("child processes", minimum=1, maximum=MAX_PROCESSES, none="one per core"),
    ] = None
    concurrency: Annotated[
        int | None,
        IntegerKind(
            "handlers that run at a time in a child",
            minimum=1,
            maximum=1000,
            none="1 if sync, 100 if async",
        ),
    ] = None
    queues: Annotated[
        tuple[str, ...],
        NamesKind("queues to receive from, most important first; empty: all", rule=check_queue),
    ] = ()
    weights: Annotated[
        Mapping[str, int],
        WeightsKind("shares of queues; empty: strictly in their order", rule=check_queue),
    ] = field(default_factory=dict)
    burst: Annotated[bool, FlagKind("exit when the queues are empty")] = False
    reload: Annotated[bool, FlagKind("restart the children when a source file changes")] = False
    grace: Annotated[
        Duration,
        DurationKind(
            "time that running handlers get to finish", maximum_ms=HOUR_MS, zero="no time"
        ),
    ] = "25s"
    cancel_grace: Annotated[
        Duration | None,
        DurationKind(
            "time that the handler of a cancelled message gets to end, before its process is ended",
            maximum_ms=HOUR_MS,
            zero="no time",
            none="any time",
        ),
    ] = "10s"
    max_messages: Annotated[
        int, IntegerKind("messages after which a child is replaced", maximum=10**12, zero="never")
    ] = 0
    max_rss: Annotated[
        int,
        SizeKind(
            "memory above which a child is replaced",
            minimum=32 * 2**20,
            maximum=2**50,
            zero="never",
        ),
    ] = 0
    log_messages: Annotated[
        str,
        ChoiceKind(
            "level of the log line for each handled message", choices=("off", "debug", "info")
        ),
    ] = "debug"
    metrics_host: Annotated[str, METRICS_HOST] = "127.0.0.1"
    metrics_port: Annotated[int, METRICS_PORT] = 9464
    metrics_queues: Annotated[int, METRICS_QUEUES] = 1000
    reaper: Annotated[bool, FlagKind("include a reaper")] = True
    visibility: Annotated[
        Duration | None,
        DurationKind(
            "visibility timeout of the worker's leases",
            minimum_ms=MIN_VISIBILITY_MS,
            maximum_ms=MAX_VISIBILITY_MS,
            none="the queue's",
        ),
    ] = None
    batch: Annotated[
        int | None, IntegerKind("messages per receive", minimum=1, maximum=1000, none="adaptive")
    ] = None
    unknown_wait: Annotated[
        Duration,
        DurationKind(
            "how long a message waits for a worker that has its task or key",
            maximum_ms=30 * DAY_MS,
            zero="it is dead at once",
        ),
    ] = "1h"
    loop: Annotated[
        str,
        ChoiceKind(
            "event loop of async handlers; auto: uvloop if it is installed",
            choices=("auto", "asyncio", "uvloop"),
        ),
    ] = "auto"
    watchdog: Annotated[
        Duration,
        DurationKind(
            "exit when receiving stalls for this long",
            minimum_ms=5000,
            maximum_ms=HOUR_MS,
            zero="never",
        ),
    ] = "60s"
    grace_ms: int = field(init=False)
    cancel_grace_ms: int | None = field(init=False)
    visibility_ms: int | None = field(init=False)
    unknown_wait_ms: int = field(init=False)
    watchdog_ms: int = field(init=False)

    @property
    def notes(self) -> tuple[str, ...]:
        """Settings that are accepted but may surprise, a line each."""
        if self.grace_ms < 30_000:
            return ()
        return (
            f"grace is {self.grace}; Kubernetes kills 30 s after SIGTERM unless "
            "terminationGracePeriodSeconds is longer than that",
        )

    def _check_together(self) -> None:
        if self.loop == "uvloop" and find_spec("uvloop") is None:
            raise InvalidOptionError(
                "loop", "is uvloop, which is not installed", "pip install uvloop, or --loop asyncio"
            )
        for name in self.weights:
            if self.queues and name not in self.queues:
                raise InvalidOptionError(
                    "weights", f"{name!r} is not among the queues", "name it in queues too"
                )
