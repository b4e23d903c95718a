"""A progress bar on stderr, where that is a terminal and the work takes long enough to wonder."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from qworker.cli.screen import console

__all__ = ["progress"]


@contextmanager
def progress(title: str, total: int) -> Iterator[Callable[[int], None]]:
    """Give a function that is told how many more are done. It shows nothing into a pipe, and leaves nothing behind."""
    if not sys.stderr.isatty():
        yield lambda _: None
        return
    from rich.progress import (
        BarColumn,
        Progress,
        TextColumn,
        TimeRemainingColumn,
    )

    with Progress(
        TextColumn("{task.description}"),
        BarColumn(),
        TextColumn("{task.completed:,.0f} of {task.total:,.0f}"),
        TimeRemainingColumn(compact=True),
        console=console(stderr=True),
        transient=True,
    ) as bar:
        task = bar.add_task(title, total=total)
        yield lambda more: bar.advance(task, more)
