"""The live screen of `qworker top`: one thread takes snapshots, this one draws and reads keys, so `q` always works."""

from __future__ import annotations

import dataclasses
import importlib.util
import os
import queue
import select
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Final

from rich.console import Group, RenderableType
from rich.live import Live
from rich.text import Text

from qworker.cli.framework.errors import describe
from qworker.cli.framework.terminal import Cell, Column, console, make_table, styled, without_spare
from qworker.cli.top.sampler import TopSampler, TopSnapshot
from qworker.cli.top.tables import (
    HANDLER_COLUMNS,
    LIMIT_COLUMNS,
    QUEUE_COLUMNS,
    TOP_WORKER_COLUMNS,
    handler_rows,
    headline,
    limit_rows,
    queue_rows,
    worker_rows,
)
from qworker.errors import QworkerError
from qworker.formats import moment

if TYPE_CHECKING:
    from rich.console import Console

__all__ = ["compose", "watch"]

_KEY_S: Final = 0.1
_QUIT: Final = frozenset("qQ\x03")
#: Lines beside rows and problem: the facts, an empty line, a title and a header per table, the footer and one more.
_FRAME: Final = 13
_ROOM_FOR_LIMITS: Final = 12


def watch(sampler: TopSampler, every_s: float, hint: str = "") -> None:
    """Show snapshots until `q` or Ctrl-C, with a hint at the foot.

    While the server does not answer, the last one stays, with the problem.
    """
    snapshots: queue.SimpleQueue[TopSnapshot | Exception] = queue.SimpleQueue()
    ended = threading.Event()
    reader = threading.Thread(
        target=_read, args=(sampler, every_s, snapshots.put, ended), daemon=True
    )
    screen = console()
    with (
        _keys() as pressed,
        Live(Text("reading …"), console=screen, screen=True, auto_refresh=False) as live,
    ):
        reader.start()
        while not _QUIT & set(pressed()):
            snapshot = _latest(snapshots)
            if snapshot is not None:
                live.update(compose(snapshot, screen, hint), refresh=True)
    ended.set()


def compose(snapshot: TopSnapshot, screen: Console, hint: str = "") -> RenderableType:
    """Lay a snapshot out for the size of the screen: queues get half of the rows, workers and handlers the rest."""
    problem = _problem(snapshot)
    rows = max(3, screen.height - _FRAME - len(problem.wrap(screen, screen.width)))
    queues, workers = queue_rows(snapshot), worker_rows(snapshot)
    handlers = handler_rows(snapshot)
    # A small screen has no room for them.
    limits = limit_rows(snapshot)[: rows // 4] if rows >= _ROOM_FOR_LIMITS else []
    rows -= len(limits) + 3 if limits else 0
    least = max(1, rows // 4)
    for_workers = min(len(workers), max(least, rows - len(queues) - len(handlers)))
    for_handlers = min(len(handlers), max(least, rows - len(queues) - for_workers))
    parts: list[RenderableType] = [_facts(snapshot), *([problem] if problem else [])]
    width, for_queues = screen.width, rows - for_workers - for_handlers
    parts += _section("QUEUES", QUEUE_COLUMNS, queues, for_queues, width)
    if limits:
        parts += _section("LIMITS", LIMIT_COLUMNS, limits, len(limits), width)
    parts += _section("WORKERS", TOP_WORKER_COLUMNS, workers, for_workers, width)
    parts += _section("RUNNING HANDLERS", HANDLER_COLUMNS, handlers, for_handlers, width)
    parts.append(Text())
    foot = " · ".join(["q quits", "rates per second", *([hint] if hint else [])])
    parts.append(Text(foot, style="dim", no_wrap=True, overflow="ellipsis"))
    return Group(*parts)


def _facts(snapshot: TopSnapshot) -> Text:
    text = Text(no_wrap=True, overflow="ellipsis")
    text.append("qworker top", style="bold")
    for name, cell in headline(snapshot).items():
        text.append(f"   {name} ", style="dim")
        text.append_text(styled(cell))
    return text


def _problem(snapshot: TopSnapshot) -> Text:
    if not snapshot.problem:
        return Text()
    since = f"since {moment(snapshot.now_ms)}" if snapshot.now_ms else "yet"
    text = f"no answer from the server {since}, retrying: {snapshot.problem}"
    return styled(Cell(text, "bad"))


def _section(
    title: str,
    columns: Sequence[Column],
    rows: Sequence[Sequence[Cell | str]],
    room: int,
    width: int,
) -> Iterator[RenderableType]:
    yield Text()
    shown = rows[: max(1, room)]
    more = f", {len(rows) - len(shown)} not shown" if len(rows) > len(shown) else ""
    yield Text(f"{title} ({len(rows)}{more})", style="bold")
    if rows:
        yield make_table(*without_spare(columns, shown, width), fold=False)


def _read(
    sampler: TopSampler,
    every_s: float,
    put: Callable[[TopSnapshot | Exception], None],
    ended: threading.Event,
) -> None:
    last = TopSnapshot(sampler.server)
    while not ended.is_set():
        try:
            last = sampler.take()
            put(last)
        except QworkerError as error:
            put(dataclasses.replace(last, problem=describe(error)[0]))
        except Exception as error:  # noqa: BLE001  raised again by the thread that draws
            put(error)
        ended.wait(every_s)


def _latest(snapshots: queue.SimpleQueue[TopSnapshot | Exception]) -> TopSnapshot | None:
    latest = None
    while not snapshots.empty():
        snapshot = snapshots.get()
        if isinstance(snapshot, Exception):
            raise snapshot
        latest = snapshot
    return latest


@contextmanager
def _keys() -> Iterator[Callable[[], str]]:
    """Give a function that waits a moment and returns the keys pressed; restores the terminal afterwards."""
    if not sys.stdin.isatty() or importlib.util.find_spec("termios") is None:  # Only Ctrl-C.
        yield _no_keys
        return
    import termios
    import tty

    descriptor = sys.stdin.fileno()
    before = termios.tcgetattr(descriptor)

    def pressed() -> str:
        readable, _, _ = select.select([descriptor], [], [], _KEY_S)
        return os.read(descriptor, 64).decode("ascii", "ignore") if readable else ""

    try:
        tty.setcbreak(descriptor)
        yield pressed
    finally:
        termios.tcsetattr(descriptor, termios.TCSADRAIN, before)


def _no_keys() -> str:
    time.sleep(_KEY_S)
    return ""
