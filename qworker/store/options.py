"""Options that choose a server and a namespace."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Annotated, Final

from qworker.config.fields import Options, kinds_of
from qworker.config.files import ConfigFile
from qworker.config.kinds import HOUR_MS, DurationKind, Kind
from qworker.config.name_kinds import NameKind
from qworker.durations import Duration, duration_ms
from qworker.store.url import SCHEMES, ServerURL
from qworker.wire.names import check_namespace

__all__ = ["ClientOptions", "check_give_up", "url_of_file"]


class UrlKind(Kind):
    """A server URL; its password is never shown."""

    __slots__ = ()

    @property
    def limit(self) -> str:
        """The schemes."""
        return SCHEMES

    def _checked(self, value: object, name: str) -> ServerURL:
        return ServerURL.parse(value, name)


@dataclass(frozen=True, slots=True, kw_only=True)
class ClientOptions(Options):
    """The server and the namespace."""

    url: Annotated[
        ServerURL | None, UrlKind("the server", none="the embedded store, if allowed")
    ] = None
    namespace: Annotated[str, NameKind("first part of every key", rule=check_namespace)] = "qworker"
    give_up: Annotated[
        Duration,
        DurationKind(
            "how long calls are tried while the server is away or silent (3s by default on the command line)",
            minimum_ms=100,
            maximum_ms=24 * HOUR_MS,
        ),
    ] = "60s"
    give_up_ms: int = field(init=False)


_NO_FILE: Final = ConfigFile()
_GIVE_UP: Final = kinds_of(ClientOptions)["give_up"]


def url_of_file(file: ConfigFile) -> str | None:
    """Return the URL of a configuration file, if it has one. Raises `InvalidOptionError`."""
    value = file.values.get("url")
    if value is None:
        return None
    kinds_of(ClientOptions)["url"].check(value, f"{file.name}: url")
    return str(value)


def check_give_up(
    value: Duration | None, environ: Mapping[str, str], file: ConfigFile = _NO_FILE
) -> float:
    """Return how many seconds calls are tried: `value`, else QWORKER_GIVE_UP, else that of the file, else the default.

    Raises `InvalidOptionError`.
    """
    if value is not None:
        checked = _GIVE_UP.check(value, "give_up")
    elif "QWORKER_GIVE_UP" in environ:
        checked = _GIVE_UP.parse(environ["QWORKER_GIVE_UP"], "QWORKER_GIVE_UP")
    elif "give_up" in file.values:
        checked = _GIVE_UP.check(file.values["give_up"], f"{file.name}: give_up")
    else:
        checked = ClientOptions().give_up
    return duration_ms(checked, "give_up") / 1000
