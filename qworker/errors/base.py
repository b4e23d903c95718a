"""The base of all errors: the root of the tree, refusals, and values written for texts."""

from __future__ import annotations

__all__ = [
    "QworkerError",
    "RefusedError",
    "shown",
]


def shown(value: object, length: int = 80) -> str:
    """Write a value for an error text: escaped, at most `length` characters."""
    text = ascii(value)
    return text if len(text) <= length else text[: length - 3] + "..."


class QworkerError(Exception):
    """Base of every error that qworker raises."""


class RefusedError(QworkerError):
    """The server refused the call: nothing was written."""
