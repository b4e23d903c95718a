"""Loops of runs: iterators that read a source and keep their position, for plain and async workflows."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import AsyncIterator, Iterable, Iterator, Sequence
from contextvars import copy_context
from typing import TYPE_CHECKING, Any, Final, Generic, TypeVar

from qworker.app.functions import is_async
from qworker.errors import InvalidOptionError, QworkerError, shown
from qworker.telemetry.guarded import guarded

if TYPE_CHECKING:
    from qworker.app.runs.items import OpenLoop
    from qworker.app.runs.loops import Loop
    from qworker.app.runs.open_steps import OpenSteps
    from qworker.app.runs.steps import Steps
    from qworker.client.execute.aio import AsyncClient
    from qworker.client.execute.sync import Client

__all__ = ["AsyncEach", "Each", "check_source", "keep_behind", "keep_behind_async"]

T = TypeVar("T")

_log = guarded(__name__)
_NONE: Final = object()


def check_source(items: object, key: object) -> None:
    """Raise `InvalidOptionError` unless `items` can be read again from a position."""
    if key is not None and not callable(key):
        raise InvalidOptionError(
            "key", f"{shown(key)} is not a function", "write key=lambda row: row.id"
        )
    if key is not None:
        if not callable(items):
            raise InvalidOptionError(
                "each",
                f"{shown(items)} is not a function, and a key is given",
                "leave the key out, or give a function that returns the items behind a key",
            )
    elif isinstance(items, str | bytes | dict | set | frozenset) or not hasattr(
        items, "__aiter__" if hasattr(items, "__aiter__") else "__iter__"
    ):
        raise InvalidOptionError(
            "each",
            "is given a function without key="
            if callable(items)
            else f"cannot resume in {shown(items)}",
            "give a list, another iterable that returns the same items again, or a function with key=",
        )


class Each(Generic[T]):
    """The items of a loop of a plain workflow."""

    def __init__(self, loop: Loop[T], source: Any, client: Client) -> None:
        self._loop, self._source, self._client = loop, source, client
        self._items: Iterator[T] | None = None

    def __iter__(self) -> Iterator[T]:
        return self

    def __next__(self) -> T:
        """Keep the position if it is time to, and return the next item."""
        loop = self._loop
        if loop.finish():
            self._keep()
        if loop.ended:
            raise StopIteration
        loop.check()
        if self._items is None:
            if (command := loop.read()) is not None:
                loop.learn(self._client.execute(command))
            if not loop.resume():
                raise StopIteration
            self._items = _items(loop, self._source)
        item: Any = next(self._items, _NONE)
        if item is _NONE:
            loop.end()
            self._keep()
            raise StopIteration
        return loop.give(item)

    def _keep(self) -> None:
        _keep(self._loop, self._client)


class AsyncEach(Generic[T]):
    """The items of a loop of an async workflow."""

    def __init__(
        self, loop: Loop[T], source: Any, client: AsyncClient, open_steps: OpenSteps
    ) -> None:
        self._loop, self._source, self._client, self._open = loop, source, client, open_steps
        self._items: AsyncIterator[T] | None = None

    def __aiter__(self) -> AsyncIterator[T]:
        return self

    async def __anext__(self) -> T:
        """Keep the position if it is time to, and return the next item."""
        async with self._open:
            return await self._next()

    async def _next(self) -> T:
        loop = self._loop
        if loop.finish():
            await self._keep()
        if loop.ended:
            raise StopAsyncIteration
        loop.check()
        if self._items is None:
            if (command := loop.read()) is not None:
                loop.learn(await self._client.execute(command))
            if not loop.resume():
                raise StopAsyncIteration
            self._items = _async_items(loop, self._source)
        item: Any = await anext(self._items, _NONE)
        if item is _NONE:
            loop.end()
            await self._keep()
            raise StopAsyncIteration
        return loop.give(item)

    async def _keep(self) -> None:
        await _keep_async(self._loop, self._client)


def keep_behind(steps: Steps, client: Client) -> None:
    """Keep the positions of open loops as the function ends; a failure is logged, and costs a repetition of items."""
    for loop in steps.unkept():
        try:
            _keep(loop, client)
        except QworkerError as error:
            _not_kept(loop, error)


async def keep_behind_async(steps: Steps, client: AsyncClient) -> None:
    """Keep the positions of open loops, as `keep_behind` does."""
    for loop in steps.unkept():
        try:
            await _keep_async(loop, client)
        except QworkerError as error:
            _not_kept(loop, error)


def _keep(loop: OpenLoop, client: Client) -> None:
    client.execute(loop.keep())
    while loop.was_kept():
        client.execute(loop.keep())
    while (command := loop.abandon()) is not None:
        client.execute(command)


async def _keep_async(loop: OpenLoop, client: AsyncClient) -> None:
    await client.execute(loop.keep())
    while loop.was_kept():
        await client.execute(loop.keep())
    while (command := loop.abandon()) is not None:
        await client.execute(command)


def _not_kept(loop: OpenLoop, error: QworkerError) -> None:
    _log.warning("position_not_kept", loop=loop.name[1:], done=loop.done, error=str(error))


def _items(loop: Loop[T], source: Any) -> Iterator[T]:
    """Read a source from the position on."""
    if loop.is_paged:
        while True:
            after = loop.after
            last: Any = _NONE
            for last in _checked(loop, source(after), after):
                yield last
            if last is _NONE:
                return
            loop.next_page(last)
    elif isinstance(source, Sequence):
        yield from _indexed(loop, source)
    else:
        items = iter(source)
        for number in range(loop.done):
            if next(items, _NONE) is _NONE:
                raise loop.shrank(number)
        yield from items


async def _async_items(loop: Loop[T], source: Any) -> AsyncIterator[T]:
    """Read a source, which may be async, from the position on."""
    if loop.is_paged:
        while True:
            after = loop.after
            last: Any = _NONE
            page = await _page(source, after)
            if hasattr(page, "__aiter__"):
                async for item in page:
                    if last is _NONE:
                        loop.check_page(item, after)
                    last = item
                    yield item
            else:
                for last in _checked(loop, page, after):
                    yield last
            if last is _NONE:
                return
            loop.next_page(last)
    elif hasattr(source, "__aiter__"):
        items = aiter(source)
        for number in range(loop.done):
            if await anext(items, _NONE) is _NONE:
                raise loop.shrank(number)
        async for item in items:
            yield item
    else:
        for item in _items(loop, source):
            yield item


async def _page(source: Any, after: Any) -> Any:
    """Call a source; a plain function is called in a thread."""
    if is_async(source) or inspect.isasyncgenfunction(source):
        page = source(after)
    else:
        context = copy_context()
        page = await asyncio.get_running_loop().run_in_executor(
            None, lambda: context.run(source, after)
        )
    return await page if inspect.isawaitable(page) else page


def _checked(loop: Loop[T], page: Iterable[T], after: Any) -> Iterator[T]:
    for number, item in enumerate(page):
        if number == 0:
            loop.check_page(item, after)
        yield item


def _indexed(loop: Loop[T], source: Sequence[T]) -> Iterator[T]:
    number = loop.done
    loop.check_length(len(source))
    while number < len(source):
        yield source[number]
        number += 1
        loop.check_length(len(source))
