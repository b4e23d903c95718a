"""Divide what is sent, moved or read into calls that keep a server for a few ms each."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import TypeVar

__all__ = ["chunks"]

T = TypeVar("T")


def chunks(
    items: Iterable[T], size_of: Callable[[T], int], *, most_bytes: int, most: int | None = None
) -> Iterator[list[T]]:
    """Divide items into lists, in order, of up to `most_bytes` together and `most` in number; no list is empty.

    `size_of`: the bytes of an item. One that is larger than `most_bytes` has a list of its own.
    """
    chunk: list[T] = []
    total = 0
    for item in items:
        size = size_of(item)
        if chunk and (len(chunk) == most or total + size > most_bytes):
            yield chunk
            chunk, total = [], 0
        chunk.append(item)
        total += size
    if chunk:
        yield chunk
