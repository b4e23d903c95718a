"""Configuration: options > `QWORKER_<OPTION>` > configuration file > default.

    url = "redis://localhost"         options of the client and of logs stand at the top of the file,
    [run]                             those of a command in its table
    concurrency = 8

The file is `qworker.toml`, or `[tool.qworker]` in pyproject.toml, in the current directory only, or named with
`--config`. Where each value came from is kept for `qworker config show`, and every refusal names that place: `--tick`,
`QWORKER_TICK`, `qworker.toml: daemon.tick`.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Annotated, Any, ClassVar, Final, Generic, TypeVar

from qworker.configfile import ConfigFile
from qworker.durations import Duration, format_ms
from qworker.errors import InvalidOptionError
from qworker.fields import Options, kinds_of, unknown_option
from qworker.kinds import (
    HOUR_MS,
    ChoiceKind,
    DurationKind,
    FlagKind,
    IntegerKind,
    Kind,
    NameKind,
    NamesKind,
    SizeKind,
    WeightsKind,
    shown,
)
from qworker.names import check_namespace, check_queue
from qworker.options import MAX_VISIBILITY_MS, MIN_VISIBILITY_MS
from qworker.url import ServerURL

__all__ = [
    "ClientOptions",
    "DaemonOptions",
    "Loaded",
    "LogOptions",
    "RunOptions",
    "Setting",
    "check_tick",
    "load",
]

_HOST: Final = re.compile(r"[A-Za-z0-9._:%-]{1,255}", re.ASCII)


def _check_host(value: object, name: str) -> str:
    if not isinstance(value, str) or _HOST.fullmatch(value) is None:
        raise InvalidOptionError(
            name, f"{shown(value)} is no host", "write an address or a host name"
        )
    return value


@dataclass(frozen=True, slots=True)
class UrlKind(Kind):
    """A server URL; its password never shows."""

    @property
    def limit(self) -> str:
        """The schemes."""
        return "write redis://, rediss://, unix:// or embedded:"

    def _checked(self, value: object, name: str) -> ServerURL:
        return ServerURL.parse(value, name)


_METRICS_HOST: Final = NameKind(
    "address that /metrics, /healthz and /readyz listen on", rule=_check_host
)
_METRICS_PORT: Final = IntegerKind("their port", maximum=65_535, zero="any free port")


@dataclass(frozen=True, slots=True, kw_only=True)
class ClientOptions(Options):
    """Which server, and which queues of it."""

    url: Annotated[
        ServerURL | None, UrlKind("the server", none="the embedded store, where one is allowed")
    ] = None
    namespace: Annotated[str, NameKind("first part of every key", rule=check_namespace)] = "qworker"


@dataclass(frozen=True, slots=True, kw_only=True)
class LogOptions(Options):
    """How commands log."""

    log_format: Annotated[
        str,
        ChoiceKind("auto: text on a terminal, else JSON", choices=("auto", "text", "json")),
    ] = "auto"
    log_level: Annotated[
        str, ChoiceKind("lowest level", choices=("debug", "info", "warning", "error"))
    ] = "info"


@dataclass(frozen=True, slots=True, kw_only=True)
class RunOptions(Options):
    """How `qworker run` consumes."""

    section: ClassVar[str] = "run"

    procs: Annotated[
        int | None, IntegerKind("child processes", minimum=1, maximum=1024, none="one per core")
    ] = None
    concurrency: Annotated[
        int | None,
        IntegerKind(
            "handlers at once in a child", minimum=1, maximum=1000, none="1 if sync, 100 if async"
        ),
    ] = None
    queues: Annotated[
        tuple[str, ...],
        NamesKind("queues to receive from, best first; empty: all", rule=check_queue),
    ] = ()
    weights: Annotated[
        Mapping[str, int],
        WeightsKind("shares of queues; empty: strictly in their order", rule=check_queue),
    ] = field(default_factory=dict)
    burst: Annotated[bool, FlagKind("end when the queues are empty")] = False
    reload: Annotated[bool, FlagKind("start anew when a source file changes")] = False
    grace: Annotated[
        Duration,
        DurationKind("what running handlers get to end", maximum_ms=HOUR_MS, zero="nothing"),
    ] = "25s"
    max_messages: Annotated[
        int, IntegerKind("a child is replaced after so many", maximum=10**12, zero="never")
    ] = 0
    max_rss: Annotated[
        int,
        SizeKind("a child is replaced above", minimum=32 * 2**20, maximum=2**50, zero="never"),
    ] = 0
    metrics_host: Annotated[str, _METRICS_HOST] = "127.0.0.1"
    metrics_port: Annotated[int, _METRICS_PORT] = 9464
    reaper: Annotated[bool, FlagKind("carry a reaper")] = True
    visibility: Annotated[
        Duration | None,
        DurationKind(
            "visibility of its leases",
            minimum_ms=MIN_VISIBILITY_MS,
            maximum_ms=MAX_VISIBILITY_MS,
            none="the queue's",
        ),
    ] = None
    batch: Annotated[
        int | None, IntegerKind("messages per receive", minimum=1, maximum=1000, none="adaptive")
    ] = None
    watchdog: Annotated[
        Duration,
        DurationKind(
            "end the process when receiving stalls for",
            minimum_ms=5000,
            maximum_ms=HOUR_MS,
            zero="never",
        ),
    ] = "60s"
    grace_ms: int = field(init=False)
    visibility_ms: int | None = field(init=False)
    watchdog_ms: int = field(init=False)

    @property
    def notes(self) -> tuple[str, ...]:
        """What is accepted but may surprise, a line each."""
        if self.grace_ms < 30_000:
            return ()
        return (
            f"grace is {self.grace}; Kubernetes kills 30 s after SIGTERM unless "
            "terminationGracePeriodSeconds is longer than that",
        )

    def _check_together(self) -> None:
        for name in self.weights:
            if self.queues and name not in self.queues:
                raise InvalidOptionError(
                    "weights", f"{name!r} is not among the queues", "name it in queues too"
                )


@dataclass(frozen=True, slots=True, kw_only=True)
class DaemonOptions(Options):
    """How `qworker daemon` reaps."""

    section: ClassVar[str] = "daemon"

    tick: Annotated[
        Duration, DurationKind("longest wait between passes", minimum_ms=10, maximum_ms=60_000)
    ] = "1s"
    metrics_host: Annotated[str, _METRICS_HOST] = "127.0.0.1"
    metrics_port: Annotated[int, _METRICS_PORT] = 9465
    durability: Annotated[
        str,
        ChoiceKind("what a server that can lose messages means", choices=("strict", "warn", "off")),
    ] = "warn"
    tick_ms: int = field(init=False)


def check_tick(tick_ms: int, visibility_ms: int, queue: str) -> None:
    """Raise `InvalidOptionError` if a tick is half of a queue's visibility or more.

    Reaping is late by up to a tick: with such a tick a timeout could last half as long again.
    """
    if tick_ms * 2 >= visibility_ms:
        raise InvalidOptionError(
            "tick",
            f"{format_ms(tick_ms)} is too long for the visibility {format_ms(visibility_ms)} of queue {queue!r}",
            f"choose a tick under {format_ms(visibility_ms // 2)}, or a longer visibility",
        )


_CLASSES: Final = (ClientOptions, LogOptions, RunOptions, DaemonOptions)

T = TypeVar("T", bound=Options)


@dataclass(frozen=True, slots=True)
class Setting:
    """One value as people may see it (no password shows), and where it came from."""

    value: str
    source: str


@dataclass(frozen=True, slots=True)
class Loaded(Generic[T]):
    """Options, and the setting behind each of their fields."""

    options: T
    settings: Mapping[str, Setting]


def load(
    options: type[T],
    *,
    given: Mapping[str, object],
    environ: Mapping[str, str],
    file: ConfigFile,
) -> Loaded[T]:
    """Load an options class: what was `given` (None counts as not given), the environment, the file, the defaults.

    Given text is parsed, other values are taken as they are. Raises `InvalidOptionError` naming the place of a value
    that is not accepted, and for keys of the file that nothing reads.
    """
    _check_keys(file)
    table = _table(file, options.section)
    values: dict[str, Any] = {}
    sources: dict[str, str] = {}
    for name, kind in kinds_of(options).items():
        flag, variable = f"--{name.replace('_', '-')}", f"QWORKER_{name.upper()}"
        if (value := given.get(name)) is not None:
            values[name] = (
                kind.parse(value, flag) if isinstance(value, str) else kind.check(value, flag)
            )
            sources[name] = flag
        elif variable in environ:
            values[name] = kind.parse(environ[variable], variable)
            sources[name] = variable
        elif name in table:
            place = f"{options.section}.{name}" if options.section else name
            values[name] = kind.check(table[name], f"{file.name}: {place}")
            sources[name] = f"{file.name}: {place}"
    loaded = options(**values)
    settings = {
        name: Setting(kind.show(getattr(loaded, name)), sources.get(name, "default"))
        for name, kind in kinds_of(options).items()
    }
    return Loaded(loaded, MappingProxyType(settings))


def _table(file: ConfigFile, section: str) -> Mapping[str, object]:
    table = file.values.get(section, {}) if section else file.values
    if not isinstance(table, Mapping):
        raise InvalidOptionError(f"{file.name}: {section}", "is no table", f"write [{section}]")
    return table


def _check_keys(file: ConfigFile) -> None:
    known: dict[str, list[str]] = {}
    for options in _CLASSES:
        known.setdefault(options.section, []).extend(kinds_of(options))
    sections = [section for section in known if section]
    known[""] += sections
    for section, names in known.items():
        for name in _table(file, section):
            if name in names:
                continue
            place = f"{file.name}: {section}.{name}" if section else f"{file.name}: {name}"
            homes = [f"[{home}]" if home else "the top" for home in known if name in known[home]]
            if homes:
                raise InvalidOptionError(
                    place, "stands in the wrong place", f"it belongs in {' or '.join(homes)}"
                )
            raise unknown_option(ascii(place)[1:-1], name, names)
