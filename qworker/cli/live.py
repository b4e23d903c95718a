"""The live screen of `qworker top`: one thread looks, this one draws and reads keys, so that `q` always works."""

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

from qworker.cli.failures import describe
from qworker.cli.formats import moment
from qworker.cli.pictures import (
    HANDLER_COLUMNS,
    QUEUE_COLUMNS,
    TOP_WORKER_COLUMNS,
    Album,
    Picture,
    handler_rows,
    headline,
    queue_rows,
    worker_rows,
)
from qworker.cli.screen import Cell, Column, console, make_table, styled, without_spare
from qworker.errors import QworkerError

if TYPE_CHECKING:
    from rich.console import Console

__all__ = ["compose", "watch"]

_KEY_S: Final = 0.1
_QUIT: Final = frozenset("qQ\x03")
#: Lines beside rows and problem: the facts, an empty line, a title and a header for each table, the foot and one more.
_FRAME: Final = 13


def watch(album: Album, every_s: float) -> None:
    """Show pictures until `q` or Ctrl-C. While the server does not answer, the last picture stays, and says so."""
    pictures: queue.SimpleQueue[Picture | Exception] = queue.SimpleQueue()
    ended = threading.Event()
    looking = threading.Thread(
        target=_look, args=(album, every_s, pictures.put, ended), daemon=True
    )
    screen = console()
    with (
        _keys() as pressed,
        Live(Text("looking …"), console=screen, screen=True, auto_refresh=False) as live,
    ):
        looking.start()
        while not _QUIT & set(pressed()):
            picture = _latest(pictures)
            if picture is not None:
                live.update(compose(picture, screen), refresh=True)
    ended.set()


def compose(picture: Picture, screen: Console) -> RenderableType:
    """Lay a picture out for the size of the screen: queues get half of the rows, workers and handlers the rest."""
    problem = _problem(picture)
    rows = max(3, screen.height - _FRAME - len(problem.wrap(screen, screen.width)))
    queues, workers = queue_rows(picture), worker_rows(picture)
    handlers = handler_rows(picture)
    least = max(1, rows // 4)
    for_workers = min(len(workers), max(least, rows - len(queues) - len(handlers)))
    for_handlers = min(len(handlers), max(least, rows - len(queues) - for_workers))
    parts: list[RenderableType] = [_facts(picture), *([problem] if problem else [])]
    width, for_queues = screen.width, rows - for_workers - for_handlers
    parts += _section("QUEUES", QUEUE_COLUMNS, queues, for_queues, width)
    parts += _section("WORKERS", TOP_WORKER_COLUMNS, workers, for_workers, width)
    parts += _section("RUNNING HANDLERS", HANDLER_COLUMNS, handlers, for_handlers, width)
    parts.append(Text())
    parts.append(Text("q quits · rates per second", style="dim"))
    return Group(*parts)


def _facts(picture: Picture) -> Text:
    text = Text(no_wrap=True, overflow="ellipsis")
    text.append("qworker top", style="bold")
    for name, cell in headline(picture).items():
        text.append(f"   {name} ", style="dim")
        text.append_text(styled(cell))
    return text


def _problem(picture: Picture) -> Text:
    if not picture.problem:
        return Text()
    since = f"since {moment(picture.now_ms)}" if picture.now_ms else "yet"
    text = f"no answer from the server {since}, trying again: {picture.problem}"
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
    more = f", {len(rows) - len(shown)} more are not shown" if len(rows) > len(shown) else ""
    yield Text(f"{title} ({len(rows)}{more})", style="bold")
    if rows:
        yield make_table(*without_spare(columns, shown, width), fold=False)


def _look(
    album: Album,
    every_s: float,
    put: Callable[[Picture | Exception], None],
    ended: threading.Event,
) -> None:
    last = Picture(album.server)
    while not ended.is_set():
        try:
            last = album.take()
            put(last)
        except QworkerError as error:
            put(dataclasses.replace(last, problem=describe(error)[0]))
        except Exception as error:  # noqa: BLE001  raised again where somebody sees it
            put(error)
        ended.wait(every_s)


def _latest(pictures: queue.SimpleQueue[Picture | Exception]) -> Picture | None:
    latest = None
    while not pictures.empty():
        picture = pictures.get()
        if isinstance(picture, Exception):
            raise picture
        latest = picture
    return latest


@contextmanager
def _keys() -> Iterator[Callable[[], str]]:
    """Give a function that waits a moment and returns the keys pressed; the terminal is as before afterwards."""
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
