"""Errors about values that may contain a password: they name the problem and never quote the value."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from qworker.errors import InvalidOptionError

__all__ = ["redacted"]


@contextmanager
def redacted(field: str, problem: str, limit: str) -> Iterator[None]:
    """Turn a ValueError or OSError into an `InvalidOptionError`, without its text: that may quote a password."""
    try:
        yield
    except (ValueError, OSError):
        raise InvalidOptionError(field, problem, limit) from None
