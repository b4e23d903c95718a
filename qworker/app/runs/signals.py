"""Waits of a run for signals: their names, and the types of their values."""

from __future__ import annotations

from typing import Generic, TypeVar

import msgspec

from qworker.errors import InvalidResultError, SignalTimeoutError

__all__ = ["SignalWait"]

T = TypeVar("T")


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
