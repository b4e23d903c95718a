"""Which server a client speaks to, and which queues of it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Annotated, Final

from qworker.config.fields import Options, kinds_of
from qworker.config.kinds import HOUR_MS, DurationKind, Kind
from qworker.config.name_kinds import NameKind
from qworker.durations import Duration, duration_ms
from qworker.store.url import SCHEMES, ServerURL
from qworker.wire.names import check_namespace

__all__ = ["ClientOptions", "check_give_up"]


@dataclass(frozen=True, slots=True)
class UrlKind(Kind):
    """A server URL; its password never shows."""

    @property
    def limit(self) -> str:
        """The schemes."""
        return SCHEMES

    def _checked(self, value: object, name: str) -> ServerURL:
        return ServerURL.parse(value, name)


@dataclass(frozen=True, slots=True, kw_only=True)
class ClientOptions(Options):
    """Which server, and which queues of it."""

    url: Annotated[
        ServerURL | None, UrlKind("the server", none="the embedded store, where one is allowed")
    ] = None
    namespace: Annotated[str, NameKind("first part of every key", rule=check_namespace)] = "qworker"
    give_up: Annotated[
        Duration,
        DurationKind(
            "how long a call is tried while the server is away or does not answer (on the command line 3s by default)",
            minimum_ms=100,
            maximum_ms=24 * HOUR_MS,
        ),
    ] = "60s"
    give_up_ms: int = field(init=False)


_GIVE_UP: Final = kinds_of(ClientOptions)["give_up"]


def check_give_up(value: Duration | None, environ: Mapping[str, str]) -> float:
    """Seconds after which calls are given up: as given, else as QWORKER_GIVE_UP says, else the default.

    Raises `InvalidOptionError`.
    """
    if value is not None:
        checked = _GIVE_UP.check(value, "give_up")
    elif "QWORKER_GIVE_UP" in environ:
        checked = _GIVE_UP.parse(environ["QWORKER_GIVE_UP"], "QWORKER_GIVE_UP")
    else:
        checked = ClientOptions().give_up
    return duration_ms(checked, "give_up") / 1000
