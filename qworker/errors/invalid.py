"""Values that are not accepted: names, options, bodies, arguments and results."""

from __future__ import annotations

from typing import Self

from qworker.errors.base import QworkerError

__all__ = [
    "ArgumentsError",
    "BodyTooLargeError",
    "InvalidBodyError",
    "InvalidError",
    "InvalidNameError",
    "InvalidOptionError",
    "InvalidResultError",
    "NoResultError",
    "WrongNamespaceError",
]


class InvalidError(QworkerError, ValueError):
    """`field` had `problem`; `limit` says what is accepted. Nothing was written."""

    def __init__(self, field: str, problem: str, limit: str) -> None:
        super().__init__(field, problem, limit)
        self.field = field
        self.problem = problem
        self.limit = limit

    def __str__(self) -> str:
        return f"{self.field}: {self.problem}; {self.limit}"

    def at(self, field: str) -> Self:
        """Copy the error for another field."""
        return type(self)(field, self.problem, self.limit)


class InvalidNameError(InvalidError):
    """A queue, task, namespace or schedule name that breaks the rules of `qworker.wire.names`."""


class InvalidOptionError(InvalidError):
    """An option, queue attribute or configuration value out of its range or of the wrong type."""


class InvalidBodyError(InvalidError):
    """A body that cannot be encoded or decoded; `field` is the path of the wrong value, such as `items[3].price`."""


class ArgumentsError(InvalidError):
    """Arguments that do not fit the task's signature; `field` is `task(argument)`."""


class BodyTooLargeError(InvalidError):
    """A body has `size` bytes, but only `maxsize` bytes are allowed."""

    def __init__(self, field: str, size: int, maxsize: int) -> None:
        super().__init__(field, f"is {size} bytes", f"the limit (maxsize) is {maxsize} bytes")
        self.size = size
        self.maxsize = maxsize

    def at(self, field: str) -> Self:
        """Copy the error for another field."""
        return type(self)(field, self.size, self.maxsize)

    def __reduce__(self) -> tuple[type[BodyTooLargeError], tuple[str, int, int]]:
        return type(self), (self.field, self.size, self.maxsize)


class InvalidResultError(InvalidError):
    """A result that is too large, that JSON cannot carry, or that is not of the type which its task declares."""


class NoResultError(InvalidError):
    """The task keeps no results: it was declared without `result`, or the message is acked before it runs."""


class WrongNamespaceError(InvalidError):
    """The handle belongs to another namespace, which has its message."""
