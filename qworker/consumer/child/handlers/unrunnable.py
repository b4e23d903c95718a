"""Pauses of messages that only other workers can run: their task, or the key that protects them, is unknown here.

In a rolling update, producers or schedules of a new version often start before its workers. So such a message waits for
a worker that knows it: it is put back uncounted, after a delay that grows with the time that it has waited, until
`--unknown-wait` is over. Messages of paused tasks go back in the same way while the pause lasts.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Final

from msgspec import Struct

__all__ = ["Patience", "pause_ms", "pause_of_paused_ms"]

#: A message is delivered again after this fraction of the time that it has waited: a worker that knows it gets it at
#: most a fifth later than possible, and in an hour it is delivered about forty times.
_PART: Final = 5
_FIRST_MS: Final = 2_000
_LONGEST_MS: Final = 300_000
#: A message of a paused task comes back this soon: a resume may take as long.
_LONGEST_PAUSED_MS: Final = 60_000


def pause_of_paused_ms(paused_ms: int, chance: Callable[[], float] = random.random) -> int:
    """How long to put a message back whose task has been paused for `paused_ms`: 2 s to 1 min."""
    plain_ms = min(max(paused_ms // _PART, _FIRST_MS), _LONGEST_PAUSED_MS)
    return round(plain_ms * (1 + chance() / 10))


def pause_ms(
    waited_ms: int, limit_ms: int, chance: Callable[[], float] = random.random
) -> int | None:
    """How long to put a message back that has waited for `waited_ms` so far; None once `limit_ms` are over.

    2 s to 5 min and up to a tenth more, so that messages of one batch do not come back together; the last pause ends
    with the limit. A limit of 0 means no wait.
    """
    left_ms = limit_ms - max(0, waited_ms)
    if left_ms <= 0:
        return None
    plain_ms = min(max(waited_ms // _PART, _FIRST_MS), _LONGEST_MS)
    return min(round(plain_ms * (1 + chance() / 10)), left_ms)


class Patience(Struct, frozen=True):
    """How long messages, and runs, wait for a worker that knows their task or key; None: for any time.

    A run keeps its place in its work, so it is worth waiting for.
    """

    messages_ms: int
    runs_ms: int | None = None

    def pause_ms(self, waited_ms: int, *, is_run: bool) -> int | None:
        """How long to put a message back that has waited for `waited_ms` so far; None once its wait is over."""
        limit_ms = self.runs_ms if is_run else self.messages_ms
        return pause_ms(waited_ms, waited_ms + 2 * _LONGEST_MS if limit_ms is None else limit_ms)
