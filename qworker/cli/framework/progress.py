"""A progress bar on stderr, if that is a terminal."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from qworker.cli.framework.terminal import console

__all__ = ["progress"]


@contextmanager
def progress(title: str, total: int | None = None) -> Iterator[Callable[[int], None]]:
    """Give a function that advances the bar; without a total only the number is shown.

    Nothing is shown in a pipe, and nothing stays on the screen.
    """
    if not sys.stderr.isatty():
        yield lambda _: None
        return
    from rich.progress import (
        BarColumn,
        Progress,
        TextColumn,
        TimeRemainingColumn,
    )

    bounded = (
        BarColumn(),
        TextColumn("{task.completed:,.0f} of {task.total:,.0f}"),
        TimeRemainingColumn(compact=True),
    )
    with Progress(
        TextColumn("{task.description}"),
        *([TextColumn("{task.completed:,.0f}")] if total is None else bounded),
        console=console(stderr=True),
        transient=True,
    ) as bar:
        task = bar.add_task(title, total=total)
        yield lambda more: bar.advance(task, more)
