"""The command that asks many queues at once whether they have messages to receive."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final, NamedTuple

from qworker.client.commands.command import Command
from qworker.client.commands.replies import accepted
from qworker.store.scripts import load_script
from qworker.wire.keys import QueueKeys

__all__ = ["MAX_POLLED", "Available", "poll"]

#: Queues of one call at most.
MAX_POLLED: Final = 500


class Available(NamedTuple):
    """What a queue can give now. `problem`: which of its keys holds another type, '' where none does."""

    ready: int
    suspects: int
    problem: str = ""


def poll(queues: Sequence[QueueKeys]) -> Command[dict[int, Available]]:
    """Say which of up to 500 queues have messages to receive, by their places in `queues`; O(queues).

    Queues that hold nothing, or whose output is paused, are not named. In a Cluster all of them have to be in one slot.
    """

    def decode(reply: Any) -> dict[int, Available]:
        words = accepted(reply, "")[2:]
        return {
            place - 1: Available(0, 0, more.decode("utf-8", "replace"))
            if ready < 0
            else Available(ready, more)
            for place, ready, more in zip(words[::3], words[1::3], words[2::3], strict=True)
        }

    names = tuple(
        name for keys in queues for name in (*keys.ready, keys.suspect, keys.wake, keys.meta)
    )
    return Command(load_script("poll"), names, (), decode)
