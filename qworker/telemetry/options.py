"""How a process logs, and where its metrics listener stands."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Annotated, Final

from qworker.config.fields import Options
from qworker.config.kinds import ChoiceKind, IntegerKind, shown
from qworker.config.name_kinds import NameKind
from qworker.errors import InvalidOptionError

__all__ = ["FORMATS", "LEVELS", "METRICS_HOST", "METRICS_PORT", "LogOptions"]

FORMATS: Final = ("auto", "text", "json")
LEVELS: Final = ("debug", "info", "warning", "error")

_HOST: Final = re.compile(r"[A-Za-z0-9._:%-]{1,255}", re.ASCII)


def _check_host(value: object, name: str) -> str:
    if not isinstance(value, str) or _HOST.fullmatch(value) is None:
        raise InvalidOptionError(
            name, f"{shown(value)} is no host", "write an address or a host name"
        )
    return value


METRICS_HOST: Final = NameKind(
    "address that /metrics, /healthz and /readyz listen on", rule=_check_host
)
METRICS_PORT: Final = IntegerKind("their port", maximum=65_535, zero="any free port")


@dataclass(frozen=True, slots=True, kw_only=True)
class LogOptions(Options):
    """How commands log."""

    log_format: Annotated[
        str,
        ChoiceKind("auto: text on a terminal, else JSON", choices=FORMATS),
    ] = "auto"
    log_level: Annotated[str, ChoiceKind("lowest level", choices=LEVELS)] = "info"
