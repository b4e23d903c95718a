"""Results of tasks: written by workers and read by handles, both by the return annotation of the function."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

import msgspec
from msgspec import Raw

from qworker.app.arguments.parameters import returned_by
from qworker.errors import InvalidBodyError, InvalidResultError
from qworker.formats import size
from qworker.wire import codec
from qworker.wire.result import MAX_RESULT

__all__ = ["ResultType"]

_ERRORS: Final = (ValueError, RecursionError, msgspec.MsgspecError)


class ResultType:
    """The return value of a task. Without an annotation it is any JSON.

    Raises `InvalidOptionError` for an annotation that cannot be resolved or that JSON cannot be converted to.
    """

    __slots__ = ("_declared", "_field", "_number_keys")

    def __init__(self, function: Callable[..., object], task: str) -> None:
        self._declared = returned_by(function, task)
        self._field = f"{task}(result)"
        self._number_keys = self._declared.has_number_keys

    def encode(self, value: object) -> bytes:
        """Write a result as JSON that `decode` reads. Raises `InvalidResultError`. O(size)."""
        try:
            data = codec.encode(value, number_keys=self._number_keys)
            if len(data) > MAX_RESULT:
                raise InvalidResultError(
                    self._field,
                    f"has {len(data):,} bytes of JSON",
                    f"at most {size(MAX_RESULT)}: store it elsewhere and return a reference to it",
                )
            read = self.decode(data)
            if self._number_keys:
                codec.check_number_keys(value, read)
        except InvalidBodyError as error:
            path = error.field.removeprefix("body")
            dot = "." if path and path == error.field else ""
            raise InvalidResultError(
                f"{self._field}{dot}{path}",
                error.problem,
                error.limit.replace("a body", "a result"),
            ) from error
        return data

    def decode(self, data: bytes) -> Any:
        """Read a result of the declared type. Raises `InvalidResultError`. O(size)."""
        try:
            return self._declared.decode(Raw(data))
        except _ERRORS as error:
            if isinstance(error, InvalidResultError):
                raise
            raise InvalidResultError(
                self._field,
                f"is not of the declared type: {error}",
                f"the task returns `{self._declared}`",
            ) from error
