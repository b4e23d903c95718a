"""The output of the demo: a live display on a terminal, plain ASCII lines into a pipe or file."""

from __future__ import annotations

import sys
import textwrap
from collections.abc import Sequence
from typing import IO, TYPE_CHECKING, Final, Protocol

from qworker.formats import count

if TYPE_CHECKING:
    from rich.console import Console, RenderableType

    from qworker.demo.outcome import DemoResult
    from qworker.demo.progress import DemoProgress

__all__ = ["DemoOutput", "PlainView", "TerminalView", "choose_view"]

#: Shortest interval between two plain lines of progress.
_PLAIN_EVERY_S: Final = 2.0
_BAR_WIDTH: Final = 36


class DemoOutput(Protocol):
    """The output of the demo."""

    def say(self, text: str, tone: str = "") -> None:
        """Print a line; `tone` is "", "good", "bad", "dim" or "title"."""

    def show(self, snapshot: DemoProgress) -> None:
        """Show the progress, in place of the last one."""

    def end(self, outcome: DemoResult | None) -> None:
        """Remove the live display, and print the table if there is an outcome."""


def choose_view(*, stderr: bool) -> DemoOutput:
    """Choose a live display if the terminal can draw one."""
    from rich.console import Console

    console = Console(stderr=stderr, highlight=False, markup=False, emoji=False)
    drawable = console.is_terminal and not console.is_dumb_terminal
    if drawable and console.encoding.lower().startswith("utf"):
        return TerminalView(console)
    return PlainView(sys.stderr if stderr else sys.stdout)


class PlainView:
    """Lines of ASCII, each written at once."""

    def __init__(self, stream: IO[str]) -> None:
        self._stream = stream
        self._next_s = 0.0

    def say(self, text: str, tone: str = "") -> None:
        """Write a line."""
        line = text.encode("ascii", "backslashreplace").decode()
        self._stream.write(line + "\n")
        self._stream.flush()

    def show(self, snapshot: DemoProgress) -> None:
        """Write the progress, at most every 2 s."""
        if snapshot.elapsed_s < self._next_s:
            return
        self._next_s = snapshot.elapsed_s + _PLAIN_EVERY_S
        self.say(
            f"{snapshot.elapsed_s:5.1f} s  {snapshot.ended:,} of {snapshot.sent:,} messages done, "
            f"{count(snapshot.retried, 'retry', 'retries')}, {snapshot.dead:,} dead"
        )

    def end(self, outcome: DemoResult | None) -> None:
        """Write the table."""
        if outcome is None:
            return
        self.say("")
        for name, number, words in outcome.rows():
            self.say(f"  {name:<15}{number:>10}   {words}".rstrip())
        self.say("")


class TerminalView:
    """Draws with rich, in place; lines are printed above the display."""

    def __init__(self, console: Console) -> None:
        from rich.live import Live

        self._console = console
        self._live = Live(console=console, auto_refresh=False, transient=True)
        self._drawing = False

    def say(self, text: str, tone: str = "") -> None:
        """Print a line above the display."""
        from rich.text import Text

        # Wrapped between words: a path that is longer than the terminal stays whole and can be copied.
        lines = textwrap.wrap(
            text, self._console.width, break_long_words=False, break_on_hyphens=False
        )
        for line in lines or [""]:
            self._console.print(Text(line, style=_STYLES.get(tone, "")), soft_wrap=True)

    def show(self, snapshot: DemoProgress) -> None:
        """Draw the progress."""
        if not self._drawing:
            self._drawing = True
            self._live.start()
        self._live.update(_display(snapshot), refresh=True)

    def end(self, outcome: DemoResult | None) -> None:
        """Remove the display and print the table."""
        if self._drawing:
            self._drawing = False
            self._live.stop()
        if outcome is not None:
            self._console.print(_table(list(outcome.rows())))


_STYLES: Final = {"good": "green", "bad": "bold red", "dim": "dim", "title": "bold"}


def _display(snapshot: DemoProgress) -> RenderableType:
    from rich.console import Group
    from rich.progress_bar import ProgressBar
    from rich.table import Table
    from rich.text import Text

    tasks = Table.grid(padding=(0, 2, 0, 0))
    for justify in ("left", "left", "right", "right", "left"):
        tasks.add_column(justify=justify, no_wrap=True)
    for task in snapshot.tasks:
        notes = [count(task.retried, "retry", "retries")] * bool(task.retried)
        notes += [f"{task.dead:,} dead"] * bool(task.dead)
        tasks.add_row(
            Text(f"  {task.name}", style="bold"),
            ProgressBar(total=max(1, task.sent), completed=task.ended, width=_BAR_WIDTH),
            f"{task.ended:,}",
            Text(f"of {task.sent:,}", style="dim"),
            Text(", ".join(notes), style="yellow"),
        )
    workers = Table.grid(padding=(0, 2, 0, 0))
    for worker in snapshot.workers:
        workers.add_row(
            Text(f"  worker {worker.pid}", style="cyan"),
            f"{worker.handled:,} handled",
            Text(worker.running, style="dim"),
        )
    rate = snapshot.ended / max(snapshot.elapsed_s, 0.1)
    foot = Text(f"  {snapshot.elapsed_s:.1f} s, {rate:,.0f} messages/s", style="dim")
    return Group(Text(), tasks, Text(), workers, foot)


def _table(rows: Sequence[tuple[str, str, str]]) -> RenderableType:
    from rich.padding import Padding
    from rich.table import Table
    from rich.text import Text

    table = Table.grid(padding=(0, 2, 0, 0))
    table.add_column(no_wrap=True)
    table.add_column(justify="right", no_wrap=True)
    table.add_column(overflow="fold")
    for name, number, words in rows:
        style = "bold"
        if name == "lost":
            style = "bold green" if number == "0" else "bold red"
        table.add_row(Text(name, style=style), Text(number, style=style), Text(words, style="dim"))
    return Padding(table, (1, 0, 1, 2))
