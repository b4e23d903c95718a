"""Kinds of names: one, several, or several with weights."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Final

from qworker.config.kinds import DIGITS, Kind
from qworker.errors import InvalidOptionError, shown

__all__ = ["NameKind", "NamesKind", "WeightsKind", "check_host"]

_HOST: Final = re.compile(r"[A-Za-z0-9._:%-]{1,255}", re.ASCII)


def check_host(value: object, name: str) -> str:
    """Return an address or a host name to listen on; raise `InvalidOptionError` for anything else."""
    if not isinstance(value, str) or _HOST.fullmatch(value) is None:
        raise InvalidOptionError(
            name, f"{shown(value)} is not a host", "write an address or a host name"
        )
    return value


@dataclass(frozen=True, slots=True)
class NameKind(Kind):
    """A name; `rule` checks it: a function of `qworker.wire.names`, or `check_host`."""

    rule: Callable[[object, str], str] = dataclasses.field(kw_only=True)

    @property
    def limit(self) -> str:
        """For an empty text; the rule's own errors say more."""
        return "it must be a name"

    def _checked(self, value: object, field: str) -> str:
        return self.rule(value, field)


@dataclass(frozen=True, slots=True)
class NamesKind(Kind):
    """Names without duplicates; as text separated by commas. May be empty, but not as text."""

    rule: Callable[[object, str], str] = dataclasses.field(kw_only=True)

    @property
    def limit(self) -> str:
        """The two forms."""
        return "it must be a list of names, as text 'a,b'"

    def show(self, value: object) -> str:
        """Write names with commas."""
        return ",".join(value) if isinstance(value, tuple) else ""

    def _checked(self, value: object, field: str) -> tuple[str, ...]:
        if isinstance(value, str) or not isinstance(value, Iterable):
            raise self._refused(value, field, "is not a list of names")
        names = tuple(self.rule(name, field) for name in value)
        if len(set(names)) < len(names):
            raise self._refused(list(names), field, "has a name twice")
        return names

    def _parsed(self, text: str) -> object:
        return text.split(",")


@dataclass(frozen=True, slots=True)
class WeightsKind(Kind):
    """Names with whole weights; as text 'a=3,b=1'."""

    rule: Callable[[object, str], str] = dataclasses.field(kw_only=True)
    maximum: int = dataclasses.field(default=1000, kw_only=True)

    @property
    def limit(self) -> str:
        """The two forms, and the range."""
        return (
            f"it must be a table of names with weights from 1 to {self.maximum}, as text 'a=3,b=1'"
        )

    def show(self, value: object) -> str:
        """Write names with their weights."""
        return (
            ",".join(f"{name}={weight}" for name, weight in value.items())
            if isinstance(value, Mapping)
            else ""
        )

    def _checked(self, value: object, field: str) -> Mapping[str, int]:
        if not isinstance(value, Mapping):
            raise self._refused(value, field, "is not a table of weights")
        for name, weight in value.items():
            self.rule(name, field)
            if (
                isinstance(weight, bool)
                or not isinstance(weight, int)
                or not 1 <= weight <= self.maximum
            ):
                raise self._refused(weight, f"{field}.{name}", "is not a valid weight")
        return MappingProxyType(dict(value))

    def _parsed(self, text: str) -> object:
        pairs = [pair.partition("=") for pair in text.split(",")]
        if len({name for name, _, _ in pairs}) < len(pairs):
            return text
        return {
            name: int(weight) if DIGITS.fullmatch(weight) else weight for name, _, weight in pairs
        }
