"""Journals in Redis forged entry by entry, in the format of docs/protocol.md; events as of tests/journals.py.

journal = ForgedJournal(redis, namespace, "emails")
journal.write(line("acked", "m1", sent=T0_MS, delivered=T0_MS + 5), t=T0_MS + 9)
journal.skip(3)                     three entries that are gone
journal.begin(epoch=T0_MS + 1000)   counters lost
"""

from __future__ import annotations

import redis

from qworker.wire.keys import QueueKeys, queues_key
from tests.journals import groups_of

__all__ = ["T0_MS", "ForgedJournal", "groups", "line"]

T0_MS = 1_935_655_200_000
DASH = "-"


def line(
    event: str,
    message_id: str = "m0",
    *,
    sent: int = T0_MS,
    delivered: int | str = DASH,
    started: int | str = DASH,
    run_us: int | str = DASH,
    task: str = DASH,
    reason: str = DASH,
    error: str = DASH,
    receives: int = 0,
    flags: str = "",
) -> bytes:
    """Write one event; `flags` as they stand in a header: 'm=5 t=…'."""
    flags = f" {flags}" if flags else ""
    return (
        f"{event} {delivered} {started} {run_us} {task} {reason} {error} "
        f"{message_id} {sent} {receives} 0 0 0{flags}"
    ).encode()


def groups(*lines: bytes) -> bytes:
    """The groups of one entry."""
    return b"\n\n".join(group for _, group in groups_of(line.decode("latin-1") for line in lines))


class ForgedJournal:
    """The journal of one queue; counters are kept as the scripts keep them."""

    def __init__(
        self, client: redis.Redis, namespace: str, queue: str, *, epoch: int = T0_MS
    ) -> None:
        self.keys = QueueKeys(namespace, queue)
        self._redis = client
        self._written = 0
        client.hset(queues_key(namespace), queue, 1)
        self.begin(epoch)

    def begin(self, epoch: int) -> None:
        """Begin a new epoch."""
        self.epoch, self.entries, self.events = epoch, 0, 0
        self._redis.hset(self.keys.meta, "journal_epoch", epoch)

    def skip(self, entries: int = 0, *, events: int | None = None) -> None:
        """Leave out entries (of one event each by default), or with 0 only events: they were shed."""
        self.entries += entries
        self.events += entries if events is None else events
        self._count()

    def write(self, *lines: bytes, t: int | None = None, w: str = "web-1:7") -> str:
        """Write one entry; returns its id."""
        self._redis.execute_command(*self._command(lines, t, w))
        entry_id = f"{self.epoch}-{self.entries}"
        self._advance(lines)
        self._count()
        return entry_id

    def fill(self, entries: int, lines: tuple[bytes, ...], *, t: int | None = None) -> None:
        """Write many entries of the same lines."""
        pipeline = self._redis.pipeline(transaction=False)
        for number in range(1, entries + 1):
            pipeline.execute_command(*self._command(lines, t, "web-1:7"))
            self._advance(lines)
            if number % 500 == 0:
                pipeline.execute()
        pipeline.execute()
        self._count()

    def trim(self, entries: int) -> None:
        """Delete the first entries of the epoch, up to number `entries`."""
        self._redis.xtrim(self.keys.journal, minid=f"{self.epoch}-{entries}", approximate=False)

    def _command(self, lines: tuple[bytes, ...], t: int | None, w: str) -> list[object]:
        return [
            *("XADD", self.keys.journal, f"{self.epoch}-{self.entries}"),
            *("n", self.events, "k", len(lines), "b", self._written),
            *("t", T0_MS + self.entries if t is None else t, "w", w, "e1", groups(*lines)),
        ]

    def _advance(self, lines: tuple[bytes, ...]) -> None:
        self.entries += 1
        self.events += len(lines)
        self._written += len(groups(*lines)) + 64

    def _count(self) -> None:
        self._redis.hset(
            self.keys.stats,
            mapping={"journal_entries": self.entries, "journal_events": self.events},
        )
