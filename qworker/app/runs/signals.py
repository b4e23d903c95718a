"""Waits of a run for signals: their names, and the types of their values."""

from __future__ import annotations

from types import UnionType
from typing import Generic, Literal, TypeVar, Union, get_origin

import msgspec

from qworker.errors import InvalidOptionError, InvalidResultError, SignalTimeoutError, shown
from qworker.wire.names import check_step_name

__all__ = ["SignalWait", "named_decoder"]

T = TypeVar("T")
#: Kinds of types without a name of their own. What `__name__` says of them depends on Python and how they are written.
_NAMELESS = (Union, UnionType, Literal)


def named_decoder(signal: type[T], name: str | None) -> tuple[str, msgspec.json.Decoder[T]]:
    """Return the name of a wait, by default that of the type, and what reads its value.

    Raises `InvalidNameError`, and `InvalidOptionError` for a type without a name or that cannot be read.
    """
    if name is None and get_origin(signal) not in _NAMELESS:
        name = getattr(signal, "__name__", None)
    if name is None:
        problem = f"{shown(signal)} is not a type with a name"
        raise InvalidOptionError("signal", problem, "give the wait a name=")
    check_step_name(name, "signal")
    try:
        return name, msgspec.json.Decoder(signal)
    except TypeError as error:
        problem = f"cannot be read: {error}"
        raise InvalidOptionError(f"signal {name!r}", problem, "wait for another type") from error


class SignalWait(msgspec.Struct, Generic[T], frozen=True):
    """A wait for a signal: the fields of its value and its end."""

    run_id: str
    name: str
    signal: str
    end: str
    delay_ms: int | None
    decoder: msgspec.json.Decoder[T]

    def value(self, stored: bytes) -> T:
        """Convert the value that was given. Raises `SignalTimeoutError` if none was given in time."""
        if not stored:
            raise SignalTimeoutError(self.name)
        try:
            return self.decoder.decode(stored)
        except msgspec.MsgspecError as error:
            raise InvalidResultError(
                f"signal {self.name!r}",
                f"is not of the declared type: {error}",
                f"when the run is dead: qworker workflow signal {self.run_id} {self.name} JSON --replace, then redrive",
            ) from error
