"""Errors about a value that may hold a password: they name what is wrong and never quote it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from qworker.errors import InvalidOptionError

__all__ = ["unquoted"]


@contextmanager
def unquoted(field: str, problem: str, limit: str) -> Iterator[None]:
    """Turn a ValueError or OSError into ours, without its text: that may quote a password."""
    try:
        yield
    except (ValueError, OSError):
        raise InvalidOptionError(field, problem, limit) from None
