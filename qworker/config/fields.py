"""Fields of options classes: their kind stands in their annotation, and checks them on construction.

    grace: Annotated[Duration, DurationKind("what running handlers get to end", maximum_ms=HOUR_MS)] = "25s"
    grace_ms: int = field(init=False)

A duration keeps its public name with a canonical text ("25s"), and its milliseconds stand in a field beside it: so
`dataclasses.replace(options, grace="5s")` copies with changes, as with any dataclass.
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

__all__ = ["Options", "kinds_of", "unknown_option"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """Base of options classes: a value, checked on construction. Raises `InvalidOptionError` naming the field."""

    #: The table of the configuration file that holds its keys; empty: the top of the file.
    section: ClassVar[str] = ""

    def __post_init__(self) -> None:
        for name, kind in kinds_of(type(self)).items():
            value = kind.check(getattr(self, name), name)
            object.__setattr__(self, name, value)
            if isinstance(kind, DurationKind):
                value_ms = None if value is None else duration_ms(value, name)
                object.__setattr__(self, f"{name}_ms", value_ms)
        self._check_together()

    def _check_together(self) -> None:
        """Check what one field alone does not show."""


def kinds_of(options: type[Options]) -> dict[str, Kind]:
    """Name the fields of an options class that may be given, with what they accept, in their order."""
    return _kinds_of(cast(Hashable, options))


@functools.cache
def _kinds_of(options: Hashable) -> dict[str, Kind]:
    found = {}
    for name, annotation in typing.get_type_hints(options, include_extras=True).items():
        kinds = [each for each in getattr(annotation, "__metadata__", ()) if isinstance(each, Kind)]
        if kinds:
            found[name] = kinds[0]
    return found


def unknown_option(field: str, name: object, known: Iterable[str]) -> InvalidOptionError:
    """Make the error for a name at `field` that is no option, with the nearest one that is."""
    names = list(known)
    close = get_close_matches(str(name), names, 1)
    return InvalidOptionError(
        field,
        "is unknown",
        f"did you mean {close[0]}?" if close else f"known are {', '.join(names)}",
    )
