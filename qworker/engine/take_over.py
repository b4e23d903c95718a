"""The commands that store messages of another system."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

from qworker.engine.arguments import given
from qworker.engine.command import Command, Word
from qworker.engine.raw import raw
from qworker.engine.replies import accepted
from qworker.engine.scripts import load_script
from qworker.wire.envelope import head
from qworker.wire.keys import QueueKeys

__all__ = ["MAX_PER_TAKE", "NewArrival", "TakenOver", "begin_import", "take_over"]

#: Messages that one call stores atomically, and marks that it forgets.
MAX_PER_TAKE: Final = 1000


@dataclass(frozen=True, slots=True, kw_only=True)
class NewArrival:
    """A message to store: `mark` is its name in the system that it comes from, `tail` its envelope from the flags on.

    Times are relative, since the clocks of two servers differ: it becomes ready in `delay_ms`, expires in `ttl_ms`
    (None: the queue's, 0: never), was sent `age_ms` ago.
    """

    mark: str
    id: str
    tail: bytes
    delay_ms: int = 0
    ttl_ms: int | None = None
    age_ms: int = 0
    receives: int = 0


@dataclass(frozen=True, slots=True)
class TakenOver:
    """The result of a call: messages `stored` by it, and those `known` from an earlier one.

    `superseded`: a later import has begun; nothing was written.
    """

    stored: int
    known: int
    superseded: bool = False


def begin_import(keys: QueueKeys, run: str) -> Command[int]:
    """Make `run` the only import that may write to the queue; it supersedes an earlier one."""
    return raw("HSET", keys.imported, "run", run, decode=int)


def take_over(
    keys: QueueKeys,
    run: str,
    arrivals: Sequence[NewArrival],
    forget: Sequence[str] = (),
    *,
    priority: int = 0,
    now_ms: int | None = None,
) -> Command[TakenOver]:
    """Store up to `MAX_PER_TAKE` messages that the ledger does not know, and forget marks; one atomic call.

    Without messages it ends the import. The reply raises `QueueFullError`, `QueuePausedError` or `BrokenQueueError`;
    then nothing was written.
    """
    args: list[Word] = [given(now_ms), run, priority, len(forget), *forget]
    args.append(len(arrivals))
    for new in arrivals:
        args += (new.mark, new.delay_ms, given(new.ttl_ms), new.age_ms, new.receives)
        args += (head(new.id), new.tail)

    def decode(reply: Any) -> TakenOver:
        if reply[0] == b"SUPERSEDED":
            return TakenOver(0, 0, superseded=True)
        _, _, stored, known, _ = accepted(reply, keys.queue)
        return TakenOver(stored, known)

    return Command(
        load_script("take_over"),
        (
            keys.ready[priority],
            keys.delayed,
            keys.wake,
            keys.meta,
            keys.stats,
            keys.imported,
            keys.journal,
        ),
        tuple(args),
        decode,
    )
