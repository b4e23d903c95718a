"""How `qworker web` serves the dashboard."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Annotated, ClassVar, Final

from qworker.config.fields import Options
from qworker.config.kinds import FlagKind, IntegerKind
from qworker.config.name_kinds import NameKind, check_host
from qworker.errors import InvalidOptionError, shown

__all__ = ["WebOptions", "check_origins"]

_ORIGIN: Final = re.compile(r"https?://[A-Za-z0-9.-]{1,253}(?::[0-9]{1,5})?", re.ASCII)
_EXAMPLE: Final = "write them as https://grafana.example.org, without a path"
_FUNCTION: Final = re.compile(r"[A-Za-z_][\w.]{0,200}:[A-Za-z_]\w{0,100}", re.ASCII)


def _check_function(value: object, name: str) -> str:
    if not isinstance(value, str) or _FUNCTION.fullmatch(value) is None:
        raise InvalidOptionError(
            name,
            f"{shown(value)} is not a function",
            "write MODULE:FUNCTION, such as shop.ops:authorize",
        )
    return value


def check_origins(value: object, name: str) -> str:
    """Return origins such as 'https://grafana.example.org', with spaces between. Raises `InvalidOptionError`."""
    if not isinstance(value, str) or not value.split():
        raise InvalidOptionError(name, f"{shown(value)} names no origin", _EXAMPLE)
    for origin in value.split():
        if _ORIGIN.fullmatch(origin) is None:
            raise InvalidOptionError(name, f"{shown(origin)} is not an origin", _EXAMPLE)
    return value


@dataclass(frozen=True, slots=True, kw_only=True)
class WebOptions(Options):
    """How `qworker web` serves the dashboard."""

    section: ClassVar[str] = "web"
    common: ClassVar[frozenset[str]] = frozenset({"host", "port"})

    host: Annotated[
        str,
        NameKind("address to listen on; any but loopback requires --authorize", rule=check_host),
    ] = "127.0.0.1"
    port: Annotated[int, IntegerKind("port to listen on", maximum=65_535, zero="any free port")] = (
        9470
    )
    authorize: Annotated[
        str | None,
        NameKind(
            "function that returns the user of a request and their rights, as MODULE:FUNCTION",
            none="the link that qworker web prints",
            rule=_check_function,
        ),
    ] = None
    read_only: Annotated[bool, FlagKind("refuse every change")] = False
    frame_ancestors: Annotated[
        str | None,
        NameKind(
            "origins, separated by spaces, whose pages may frame cards (?embed=1)",
            none="nothing may be framed",
            rule=check_origins,
        ),
    ] = None
