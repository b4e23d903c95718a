"""Fields of options classes: the kind in a field's annotation checks its value on construction.

    grace: Annotated[Duration, DurationKind("time for running handlers to end", maximum_ms=HOUR_MS)] = "25s"
    grace_ms: int = field(init=False)

A duration is kept as canonical text ("25s"), with its milliseconds in a second field, so that you can copy options with
changes as of any dataclass: `dataclasses.replace(options, grace="5s")`.
"""

from __future__ import annotations

import functools
import typing
from collections.abc import Hashable, Iterable
from dataclasses import dataclass
from difflib import get_close_matches
from typing import ClassVar, cast

from qworker.config.kinds import DurationKind, Kind
from qworker.durations import duration_ms
from qworker.errors import InvalidOptionError

__all__ = ["Options", "kinds_of", "unknown_option", "variable_of"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """Base of options classes, checked on construction. Raises `InvalidOptionError`, which names the field."""

    #: The table of the configuration file with its keys; empty: the top of the file.
    section: ClassVar[str] = ""
    #: Fields with common names: the section is a part of their environment variable, as in QWORKER_WEB_PORT.
    common: ClassVar[frozenset[str]] = frozenset()

    def __post_init__(self) -> None:
        for name, kind in kinds_of(type(self)).items():
            value = kind.check(getattr(self, name), name)
            object.__setattr__(self, name, value)
            if isinstance(kind, DurationKind):
                value_ms = None if value is None else duration_ms(value, name)
                object.__setattr__(self, f"{name}_ms", value_ms)
        self._check_together()

    def _check_together(self) -> None:
        """Check how fields go together."""


def kinds_of(options: type[Options]) -> dict[str, Kind]:
    """Return the fields of an options class that you can set, with their kinds, in order."""
    return _kinds_of(cast(Hashable, options))


def variable_of(options: type[Options], name: str) -> str:
    """Name the environment variable of a field."""
    section = f"{options.section.upper()}_" if name in options.common else ""
    return f"QWORKER_{section}{name.upper()}"


@functools.cache
def _kinds_of(options: Hashable) -> dict[str, Kind]:
    kinds = {}
    for name, annotation in typing.get_type_hints(options, include_extras=True).items():
        for metadata in getattr(annotation, "__metadata__", ()):
            if isinstance(metadata, Kind):
                kinds[name] = metadata
    return kinds


def unknown_option(field: str, name: object, known: Iterable[str]) -> InvalidOptionError:
    """Make the error for an unknown option at `field`, with the nearest of the `known` ones."""
    names = list(known)
    close = get_close_matches(str(name), names, 1)
    return InvalidOptionError(
        field,
        "is unknown",
        f"did you mean {close[0]}?" if close else f"known are {', '.join(names)}",
    )
