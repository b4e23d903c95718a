"""The command that checks many queues for messages to receive."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final, NamedTuple

from qworker.engine.command import Command
from qworker.engine.replies import accepted
from qworker.engine.scripts import load_script
from qworker.wire.keys import QueueKeys

__all__ = ["MAX_POLLED", "Available", "poll"]

#: Queues per call.
MAX_POLLED: Final = 500


class Available(NamedTuple):
    """What can be received from a queue now. `problem`: its key of another type, or ''."""

    ready: int
    suspects: int
    problem: str = ""


def poll(queues: Sequence[QueueKeys]) -> Command[dict[int, Available]]:
    """Return which of up to 500 queues have messages to receive, by their index in `queues`; O(queues).

    Empty queues, and those with paused output, are left out. In a Cluster all must be in one slot.
    """

    def decode(reply: Any) -> dict[int, Available]:
        words = accepted(reply, "")[2:]
        return {
            number - 1: Available(0, 0, more.decode("utf-8", "replace"))
            if ready < 0
            else Available(ready, more)
            for number, ready, more in zip(words[::3], words[1::3], words[2::3], strict=True)
        }

    names = tuple(
        name for keys in queues for name in (*keys.ready, keys.suspect, keys.wake, keys.meta)
    )
    return Command(load_script("poll"), names, (), decode)
