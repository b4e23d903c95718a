"""The history of a run: one append-only file per process, outside of Redis.

A line is `<monotonic ns> <word> <rest>`. It is written by one call before the event that it records continues, so that
a SIGKILL loses none, and synced to disk if it records something that the server has confirmed. `time.monotonic`
counts for all processes of a machine alike, whatever happens to their clocks.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

__all__ = ["Event", "History", "events_of"]


@dataclass(frozen=True, slots=True)
class Event:
    """One line: when (ns), by which process, its word, and the words behind it."""

    at: int
    pid: int
    word: str
    rest: tuple[str, ...]


class History:
    """The file of this process; made at the first note."""

    def __init__(self, directory: str) -> None:
        self._directory = directory
        self._file = -1
        self._pid = 0

    def note(self, word: str, *rest: object, synced: bool = False) -> None:
        """Append one line; `synced`: wait until the disk has it. No word may hold white space."""
        self.note_all(word, [rest], synced=synced)

    def note_all(
        self, word: str, rests: Iterable[Sequence[object]], *, synced: bool = False
    ) -> None:
        """Append a line with the same word for each of `rests`, by one call and one wait for the disk."""
        if self._pid != os.getpid():
            self._pid = os.getpid()
            name = f"{self._pid}-{time.monotonic_ns()}.history"
            flags = os.O_APPEND | os.O_CREAT | os.O_EXCL | os.O_WRONLY
            self._file = os.open(os.path.join(self._directory, name), flags, 0o600)
        at = time.monotonic_ns()
        lines = (" ".join(map(str, (at, word, *rest))) for rest in rests)
        os.write(self._file, "".join(f"{line}\n" for line in lines).encode())
        if synced:
            os.fsync(self._file)


def events_of(directory: Path) -> Iterator[Event]:
    """Read all histories, file by file; each in its order. A line on its way is left out."""
    for path in sorted(directory.glob("*.history")):
        pid = int(path.name.partition("-")[0])
        for line in path.read_text().rpartition("\n")[0].split("\n"):
            if line:
                at, word, *rest = line.split(" ")
                yield Event(int(at), pid, word, tuple(rest))
