"""The commands that check many queues for messages to receive."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final, NamedTuple

from qworker.engine.command import Command
from qworker.engine.raw import raw
from qworker.engine.replies import accepted
from qworker.engine.scripts import load_script
from qworker.wire.keys import LEVELS, QueueKeys

__all__ = ["GROUPS", "MAX_POLLED", "Available", "Polled", "glance", "poll"]

#: Queues per call.
MAX_POLLED: Final = 500
#: Among the levels of a queue: it has groups.
GROUPS: Final = -1


class Available(NamedTuple):
    """The messages that can be received from a queue now. `problem`: its key of another type, or ''."""

    ready: int
    suspects: int
    problem: str = ""


class Polled(NamedTuple):
    """The result of a poll, by the index of the queue: messages to receive, and priorities in use but 0."""

    available: dict[int, Available]
    levels: dict[int, tuple[int, ...]]


def poll(queues: Sequence[QueueKeys], *, levels: bool = False) -> Command[Polled]:
    """Return which of up to 500 queues have messages to receive; O(queues).

    Empty queues, and those with paused output, are left out. `levels`: tell the priorities in use as well. In a Cluster
    all queues must be in one slot.
    """

    def decode(reply: Any) -> Polled:
        _, in_use, *words = accepted(reply, "")
        available = {
            number - 1: Available(0, 0, more.decode("utf-8", "replace"))
            if ready < 0
            else Available(ready, more)
            for number, ready, more in zip(words[::3], words[1::3], words[2::3], strict=True)
        }
        return Polled(
            available,
            {
                number - 1: (
                    *(level for level in range(1, LEVELS) if b"%d" % level in used),
                    *((GROUPS,) if b"g" in used else ()),
                )
                for number, used in zip(in_use[::2], in_use[1::2], strict=True)
            },
        )

    names = tuple(
        name for keys in queues for name in (*keys.ready, keys.suspect, keys.wake, keys.meta)
    )
    return Command(load_script("poll"), names, (int(levels),), decode)


def glance(queues: Sequence[tuple[QueueKeys, Sequence[int]]]) -> Command[int]:
    """Count the lists of queues that hold messages; each queue comes with its priorities in use but 0.

    In a Cluster all queues must be in one slot. A plain command that costs a tenth of a poll, which looks at every key
    of a queue. It knows no pauses.
    """
    names: list[str] = []
    for keys, levels in queues:
        names += (keys.ready[0], keys.suspect)
        for level in levels:
            # Groups that may run, and those that wait for a time, which may have come.
            names += (keys.turns, keys.later) if level == GROUPS else (keys.ready[level],)
    return raw("EXISTS", *names, decode=int)
