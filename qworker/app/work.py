"""What chains and groups consist of: calls, and what is made of calls."""

from __future__ import annotations

from typing import Generic, TypeVar

__all__ = ["Following", "Work"]

A = TypeVar("A")
T_co = TypeVar("T_co", covariant=True)


class Work(Generic[T_co]):
    """A call, a chain, or a group of calls with its callback; its value is a T."""

    __slots__ = ()


class Following(Generic[A, T_co]):
    """A later step of a chain: a call, or a group of them, that gets the value before it, an A; its own is a T."""

    __slots__ = ()
