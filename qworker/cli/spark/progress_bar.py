"""A bar on the terminal while Spark works: tasks done of those in the stages that run."""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Final

from qworker.cli.framework.terminal import console

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

__all__ = ["tasks_of", "watched"]

_EVERY_S: Final = 0.25


def tasks_of(spark: SparkSession) -> tuple[int, int]:
    """Return how many tasks of the stages that run now are done, and how many they have."""
    tracker = spark.sparkContext.statusTracker()
    stages = [tracker.getStageInfo(number) for number in tracker.getActiveStageIds()]
    running = [stage for stage in stages if stage is not None]
    return (
        sum(stage.numCompletedTasks for stage in running),
        sum(stage.numTasks for stage in running),
    )


@contextmanager
def watched(spark: SparkSession, text: str) -> Iterator[Callable[[str], None]]:
    """Show a bar until the block ends, then nothing. Gives a function that adds what is done now.

    Call it on a terminal only. It asks Spark four times a second, from its own thread.
    """
    from py4j.protocol import Py4JError
    from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

    assert sys.stderr.isatty()
    ended = threading.Event()
    columns = (TextColumn("{task.description}"), BarColumn(), TextColumn("{task.fields[tasks]}"))
    with Progress(
        *columns, TimeElapsedColumn(), console=console(stderr=True), transient=True
    ) as bar:
        shown = bar.add_task(f"{text} …", total=None, tasks="")

        def watch() -> None:
            while not ended.wait(_EVERY_S):
                try:
                    done, number = tasks_of(spark)
                except (Py4JError, OSError):
                    return  # Spark has ended: so does the block.
                tasks = f"{done:,} of {number:,} tasks" if number else ""
                bar.update(shown, completed=done, total=number or None, tasks=tasks)

        watcher = threading.Thread(target=watch, name="qworker-spark-bar", daemon=True)
        watcher.start()
        try:
            yield lambda more: bar.update(shown, description=f"{text}: {more} …")
        finally:
            ended.set()
            watcher.join()
