"""Go through all states of a world, nearest first, each once: so a breach is found by one of the shortest ways."""

from __future__ import annotations

import multiprocessing
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from multiprocessing.connection import Connection
from typing import Any, Final

from verification.interleavings.bench import open_bench
from verification.interleavings.explorer import Explorer, Share, digest
from verification.interleavings.story import Breach
from verification.interleavings.world import State, World

__all__ = ["Found", "Maker", "search"]

#: Makes a world and the scripts that differ in it; named by its arguments to its own process.
Maker = tuple[Callable[..., tuple[World, Mapping[str, bytes]]], tuple[Any, ...]]

#: States that a process is given at once.
_SHARE: Final = 500


@dataclass
class Found:
    """What a search has seen. `complete`: there is no state that it has not seen."""

    world: str
    states: int = 0
    tables: int = 0
    transitions: int = 0
    calls: int = 0
    depth: int = 0
    seconds: float = 0.0
    complete: bool = False
    breach: Breach | None = None


def search(maker: Maker, *, jobs: int = 1, engine: str = "valkey", most_s: float = 600.0) -> Found:
    """Go through the states of a world, in `jobs` processes with a server each, for at most `most_s` seconds."""
    make, arguments = maker
    world, scripts = make(*arguments)
    result = Found(world.name)
    started = time.monotonic()
    with ExitStack() as stack:
        explorer = Explorer(world, stack.enter_context(open_bench(engine, scripts)))
        helpers = [stack.enter_context(_helper(maker, engine)) for _ in range(jobs - 1)]
        first = explorer.begin()
        reached: dict[bytes, bytes] = {digest(first): b""}
        tables = {hash(first.table)}
        frontier = [(digest(first), first)]
        while frontier and result.breach is None and time.monotonic() - started < most_s:
            following: list[tuple[bytes, State]] = []
            broken = None
            for share in _shares(frontier, explorer, helpers, started + most_s):
                result.transitions += share.transitions
                result.calls += share.calls
                broken = broken or share.breach
                for name, (origin, state) in share.new.items():
                    if name not in reached:
                        reached[name] = origin
                        following.append((name, state))
                        tables.add(hash(state.table))
            if broken is not None:
                result.breach = explorer.retrace(_path(reached, broken))
            result.depth += 1
            frontier = following
        out_of_time = time.monotonic() - started >= most_s
        result.complete = result.breach is None and not frontier and not out_of_time
    result.states, result.tables = len(reached), len(tables)
    result.seconds = round(time.monotonic() - started, 1)
    return result


def _path(reached: Mapping[bytes, bytes], name: bytes) -> list[bytes]:
    path = [name]
    while reached[path[-1]]:
        path.append(reached[path[-1]])
    return path[::-1]


def _shares(
    frontier: Sequence[tuple[bytes, State]],
    explorer: Explorer,
    helpers: Sequence[Connection],
    deadline: float,
) -> Iterator[Share]:
    """Let all processes take shares of the frontier until there is none left, or no time."""
    parts = iter([frontier[at : at + _SHARE] for at in range(0, len(frontier), _SHARE)])
    busy: set[Connection] = set()
    for helper in helpers:
        if (part := next(parts, None)) is not None:
            helper.send(part)
            busy.add(helper)
    while (part := next(parts, None)) is not None and time.monotonic() < deadline:
        yield explorer.share(part)
        for helper in [process for process in busy if process.poll()]:
            yield helper.recv()
            if (more := next(parts, None)) is not None and time.monotonic() < deadline:
                helper.send(more)
            else:
                busy.discard(helper)
    for helper in busy:
        yield helper.recv()


@contextmanager
def _helper(maker: Maker, engine: str) -> Iterator[Connection]:
    """A process that takes shares; it ends when the connection does."""
    context = multiprocessing.get_context("spawn")
    ours, theirs = context.Pipe()
    process = context.Process(target=_help, args=(theirs, maker, engine), daemon=True)
    process.start()
    theirs.close()
    try:
        yield ours
    finally:
        ours.close()
        process.join(30)


def _help(connection: Connection, maker: Maker, engine: str) -> None:
    make, arguments = maker
    world, scripts = make(*arguments)
    with open_bench(engine, scripts) as bench:
        explorer = Explorer(world, bench)
        while True:
            try:
                states = connection.recv()
            except EOFError:
                return
            connection.send(explorer.share(states))
