"""How `qworker daemon` reaps."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Annotated, ClassVar

from qworker.config.fields import Options
from qworker.config.kinds import ChoiceKind, DurationKind
from qworker.durations import Duration, format_ms
from qworker.errors import InvalidOptionError
from qworker.telemetry.options import METRICS_HOST, METRICS_PORT, METRICS_QUEUES

__all__ = ["DaemonOptions", "check_tick"]


@dataclass(frozen=True, slots=True, kw_only=True)
class DaemonOptions(Options):
    """How `qworker daemon` reaps."""

    section: ClassVar[str] = "daemon"

    tick: Annotated[
        Duration, DurationKind("longest wait between passes", minimum_ms=10, maximum_ms=60_000)
    ] = "1s"
    metrics_host: Annotated[str, METRICS_HOST] = "127.0.0.1"
    metrics_port: Annotated[int, METRICS_PORT] = 9465
    metrics_queues: Annotated[int, METRICS_QUEUES] = 1000
    durability: Annotated[
        str,
        ChoiceKind(
            "reaction to a server that can lose messages", choices=("strict", "warn", "off")
        ),
    ] = "warn"
    tick_ms: int = field(init=False)


def check_tick(tick_ms: int, visibility_ms: int, queue: str) -> None:
    """Raise `InvalidOptionError` if a tick is at least half of a queue's visibility.

    Reaping is late by up to a tick: with such a tick a timeout could last half as long again.
    """
    if tick_ms * 2 >= visibility_ms:
        raise InvalidOptionError(
            "tick",
            f"{format_ms(tick_ms)} is too long for the visibility {format_ms(visibility_ms)} of queue {queue!r}",
            f"choose a tick under {format_ms(visibility_ms // 2)}, or a longer visibility",
        )
