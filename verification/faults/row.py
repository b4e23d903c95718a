"""A row of the fault matrix, and the bounds that it is held to.

What holds in every row is not written there: nothing lost, nothing unexpected, nothing acked twice or started after
its ack, the queues drained, `fsck` clean.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path

from verification.faults.load import Load
from verification.faults.server import FaultServer
from verification.faults.stage import Stage

__all__ = ["ALWAYS", "Bound", "Row", "at_least", "at_most", "exactly", "within"]

#: Kinds of damage, in the words of the account.
ALWAYS = ("lost", "unexpected", "acked_twice", "started_after_ack", "acked_unstarted")


@dataclass(frozen=True)
class Bound:
    """One figure and its limit: a number, or the name of another figure.

    `timing`: a busy machine makes it larger, so a run may be told to be patient.
    """

    figure: str
    sign: str
    limit: float | str
    timing: bool = False

    def __str__(self) -> str:
        limit = self.limit if isinstance(self.limit, str) else f"{self.limit:g}"
        return f"{self.figure} {self.sign} {limit}"

    def holds(self, figures: Mapping[str, float], *, patience: float = 1.0) -> bool:
        """Whether the figure keeps to its limit; a figure that was not measured does not."""
        if self.figure not in figures:
            return False
        value = figures[self.figure]
        limit = figures.get(self.limit, 0.0) if isinstance(self.limit, str) else self.limit
        match self.sign:
            case "≤":
                return value <= limit * (patience if self.timing else 1.0)
            case "≥":
                return value >= limit
            case _:
                return value == limit


def at_most(figure: str, limit: float | str) -> Bound:
    """Bound a figure from above."""
    return Bound(figure, "≤", limit)


def at_least(figure: str, limit: float | str) -> Bound:
    """Bound a figure from below: the fault has to have happened."""
    return Bound(figure, "≥", limit)


def exactly(figure: str, limit: float | str) -> Bound:
    """Fix a figure."""
    return Bound(figure, "=", limit)


def within(figure: str, seconds: float) -> Bound:
    """Bound a time from above, in seconds."""
    return Bound(figure, "≤", seconds, timing=True)


@dataclass(frozen=True, kw_only=True)
class Row:
    """One fault: `name` as in `--faults`, `fault` what is done, `course` does it to a stage under load.

    `server` makes the server (it is entered later); `before` prepares the stage, before anything runs. `takes` says
    why sent messages may be gone for good, '' where they may not; `undoes` why messages may come back after a
    confirmed ack. What was so is measured, `taken` and `undone`, in messages, and each such row bounds it. `needs`
    says why the row cannot run on this machine, or ''. `commit_s`: for this long it runs for every commit. `repairs`:
    kinds of repairs by `fsck` that the fault makes needful. `unfinished`: the figure of messages that were acked before
    they began and never ended. `miscounts`: why the server's counters may be wrong afterwards, '' where they may not.
    `figures` reads more figures from the history. `each`: the figure that `--each` asks for, '' where it asks for flows
    or for nothing.
    """

    name: str
    fault: str
    course: Callable[[Stage], None]
    load: Load = field(default_factory=Load)
    bounds: tuple[Bound, ...] = ()
    seconds: float = 12.0
    commit_s: float = 0.0
    server: Callable[[ExitStack, Path], FaultServer] = lambda stack, directory: FaultServer()
    before: Callable[[Stage], None] = lambda stage: None
    takes: str = ""
    undoes: str = ""
    mends: tuple[str, ...] = ()
    unfinished: str = ""
    miscounts: str = ""
    needs: Callable[[], str] = lambda: ""
    figures: Callable[[Path], Mapping[str, float]] = lambda history: {}
    each: str = ""

    @property
    def commit(self) -> bool:
        """Whether it runs for every commit."""
        return self.commit_s > 0
