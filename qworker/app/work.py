"""The parts of chains and groups: calls, and compositions of calls."""

from __future__ import annotations

from typing import Generic, TypeVar

__all__ = ["Following", "Work"]

A = TypeVar("A")
T_co = TypeVar("T_co", covariant=True)


class Work(Generic[T_co]):
    """A call, a chain, or a group of calls with its callback; its value is a T."""

    __slots__ = ()


class Following(Generic[A, T_co]):
    """A later step of a chain: a call or a group that gets the value of the step before, an A; its own is a T."""

    __slots__ = ()
