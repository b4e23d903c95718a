"""Options of logs and of the metrics listener."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Final

from qworker.config.fields import Options
from qworker.config.kinds import ChoiceKind, IntegerKind
from qworker.config.name_kinds import NameKind, check_host

__all__ = ["FORMATS", "LEVELS", "METRICS_HOST", "METRICS_PORT", "METRICS_QUEUES", "LogOptions"]

FORMATS: Final = ("auto", "text", "json")
LEVELS: Final = ("debug", "info", "warning", "error")


METRICS_HOST: Final = NameKind(
    "address to serve /metrics, /healthz and /readyz on", rule=check_host
)
METRICS_PORT: Final = IntegerKind("port to serve them on", maximum=65_535, zero="any free port")
#: Every queue of a reaper adds 29 series and 1.5 kB to a scrape.
METRICS_QUEUES: Final = IntegerKind(
    "queues with their own label in /metrics, first by name; the others share `__other__`",
    maximum=10_000,
    zero="none",
)


@dataclass(frozen=True, slots=True, kw_only=True)
class LogOptions(Options):
    """Options of the log."""

    log_format: Annotated[
        str,
        ChoiceKind(
            "form of log lines; auto is text on a terminal, otherwise JSON", choices=FORMATS
        ),
    ] = "auto"
    log_level: Annotated[str, ChoiceKind("lowest level to log", choices=LEVELS)] = "info"
