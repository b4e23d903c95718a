"""Errors of the Spark pipeline."""

from __future__ import annotations

from qworker.errors.base import QworkerError

__all__ = [
    "ArchiveDamagedError",
    "EventsLostError",
    "JavaMissingError",
    "JournalRolledBackError",
    "PipelineError",
    "SparkMissingError",
]


class PipelineError(QworkerError):
    """The Spark pipeline cannot continue."""


class SparkMissingError(PipelineError):
    """pyspark or one of its Python packages is missing or too new."""


class JavaMissingError(PipelineError):
    """No Java that Spark can use; `refused` lists the candidates and why each was rejected."""

    def __init__(self, refused: list[str]) -> None:
        super().__init__(refused)
        self.refused = refused

    def __str__(self) -> str:
        found = f" ({'; '.join(self.refused)})" if self.refused else ""
        return (
            f"Spark needs Java 17 or newer, and none was found{found}; install one (Debian: apt install "
            "openjdk-17-jre-headless), set JAVA_HOME to one, or run: pip install 'qworker-redis[jre]'"
        )


class ArchiveDamagedError(PipelineError):
    """A file of an archive cannot be read."""

    def __init__(self, file: str, problem: str) -> None:
        super().__init__(file, problem)
        self.file, self.problem = file, problem

    def __str__(self) -> str:
        return (
            f"{self.file}: {self.problem}; restore it from a copy, or move it out of the archive: `qworker spark "
            "audit` then names the events that are missing"
        )


class EventsLostError(PipelineError):
    """Entries `first` to `last` of an epoch of a queue's journal were trimmed or deleted before they were read."""

    def __init__(self, queue: str, epoch: int, first: int, last: int) -> None:
        super().__init__(queue, epoch, first, last)
        self.queue, self.epoch, self.first, self.last = queue, epoch, first, last

    def __str__(self) -> str:
        return (
            f"journal of queue {self.queue!r}: entries {self.first} to {self.last} of epoch {self.epoch} "
            "were trimmed or deleted before they were read; read more often or raise the cap "
            f"(qworker queue set {self.queue} journal_cap=…), and continue with failOnDataLoss=false, "
            "which puts a 'gap' row in their place"
        )


class JournalRolledBackError(PipelineError):
    """The journal of a queue in Redis is older than the one that was read, or another one."""

    def __init__(self, queue: str, epoch: int, entry: int, now_epoch: int, now_entry: int) -> None:
        super().__init__(queue, epoch, entry, now_epoch, now_entry)
        self.queue, self.epoch, self.entry = queue, epoch, entry
        self.now_epoch, self.now_entry = now_epoch, now_entry

    def __str__(self) -> str:
        went = (
            f"entries {self.now_entry} to {self.entry - 1} of epoch {self.epoch} were read, and are no longer in Redis"
            if self.now_epoch == self.epoch and self.now_entry < self.entry
            else f"the entries up to {self.entry - 1} of epoch {self.epoch} that were read differ from those in Redis"
        )
        return (
            f"journal of queue {self.queue!r}: {went}: the server came back with older data (a failover or a restored "
            "copy), or the queue was removed; continue with failOnDataLoss=false, which puts a 'gap' row there and "
            "reads all that is stored"
        )
