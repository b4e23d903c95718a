"""Commands for limits over several queues: what each shard has of them (see `lua/queue/allot.lua`)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final, NamedTuple

from qworker.engine.arguments import given, maybe, standard_keys
from qworker.engine.command import Command, Word
from qworker.engine.raw import raw
from qworker.engine.replies import accepted
from qworker.engine.scripts import load_script
from qworker.wire.keys import QueueKeys, shared_limits_key

__all__ = [
    "MAX_LIMITED_SHARDS",
    "NO_LIMITS",
    "OTHERS_TURN",
    "OWN_TURN",
    "TAKEN_AWAY",
    "WHOLE",
    "Allotted",
    "Report",
    "Wish",
    "allot",
    "declare",
    "forget",
    "share",
    "shared_limits",
    "take_turn",
]

#: The whole of a rate, of which shards have parts.
WHOLE: Final = 1_000_000
#: Shards among which a limit can be divided, and limits of one call.
MAX_LIMITED_SHARDS: Final = 100
#: Answers of `take_turn`.
NO_LIMITS: Final = 0
OTHERS_TURN: Final = 1
OWN_TURN: Final = 2
#: Words that take a share away from a queue.
TAKEN_AWAY: Final = "-"


class Report(NamedTuple):
    """What a shard does with its share: `concurrency` None for no limit; `version` 0 without a share."""

    version: int
    concurrency: int | None
    running: int
    waiting: int
    started: int


class Wish(NamedTuple):
    """What a shard should have; `slots` None: as before. `report` None: it did not answer. `drop`: nothing any more."""

    shard: str
    report: Report | None
    slots: int | None
    part: int
    drop: bool = False


class Allotted(NamedTuple):
    """What a shard has from now on: `slots` None for no limit. `held`: it may use more until it reports it."""

    version: int
    slots: int | None
    part: int
    held: bool


def share(
    keys: QueueKeys, shares: Sequence[tuple[str, int, str]], *, now_ms: int | None = None
) -> Command[list[Report] | None]:
    """Give a shard its shares (limit, version, words; '' reports alone), and read what it does with each.

    None before the first limit of its queue is stored: each such call counts a part of what is in flight; make it
    again.
    """

    def decode(reply: Any) -> list[Report] | None:
        if reply[0] == b"COUNTING":
            return None
        words = accepted(reply, keys.queue)[2:]
        return [
            Report(
                int(words[at]),
                maybe(words[at + 1]),
                *(int(word) for word in words[at + 2 : at + 5]),
            )
            for at in range(0, len(words), 5)
        ]

    args = (given(now_ms), *(word for each in shares for word in each))
    return Command(load_script("share"), standard_keys(keys), args, decode)


def allot(
    namespace: str, name: str, words: str, wishes: Sequence[Wish], *, rest_ms: int
) -> Command[dict[str, Allotted] | None]:
    """Divide a limit among shards; None if it is no longer as `words` say."""
    key = shared_limits_key(namespace)
    args: list[Word] = [name, words, rest_ms]
    for wish in wishes:
        report = wish.report
        args += (
            wish.shard,
            "" if report is None else report.version,
            "" if report is None else given(report.concurrency),
            0 if report is None else report.running,
            "-" if wish.drop else given(wish.slots),
            wish.part,
        )

    def decode(reply: Any) -> dict[str, Allotted] | None:
        if reply[0] == b"CHANGED":
            return None
        found = accepted(reply, key)[1:]
        return {
            wish.shard: Allotted(
                int(found[at]), maybe(found[at + 1]), int(found[at + 2]), found[at + 3] == 1
            )
            for wish, at in zip(wishes, range(0, len(found), 4), strict=True)
        }

    return Command(load_script("allot"), (key,), tuple(args), decode)


def shared_limits(namespace: str) -> Command[dict[str, str]]:
    """Read the limits over several queues and what their shards have, as they are stored."""

    def decode(reply: Any) -> dict[str, str]:
        words = [word.decode("utf-8", "replace") for word in reply]
        return dict(zip(words[::2], words[1::2], strict=True))

    return raw("HGETALL", shared_limits_key(namespace), decode=decode)


def take_turn(namespace: str, reaper: str, for_ms: int) -> Command[int]:
    """Ask whether this reaper divides the limits now: `NO_LIMITS`, `OTHERS_TURN` or `OWN_TURN`.

    It keeps the turn until it has not asked for `for_ms`.
    """
    key = shared_limits_key(namespace)
    args = (reaper, for_ms)
    return Command(load_script("turn"), (key,), args, lambda reply: int(accepted(reply, key)[1]))


def declare(namespace: str, name: str, before: str, words: str) -> Command[bool]:
    """Store a limit over several queues, '' removes it; False, with nothing stored, if it is no longer as in `before`.

    `before`: its words as the caller has read them, '' for none.
    """
    key = shared_limits_key(namespace)

    def decode(reply: Any) -> bool:
        return reply[0] != b"CHANGED" and bool(accepted(reply, key))

    return Command(load_script("declare"), (key,), (name, before, words), decode)


def forget(namespace: str, names: Sequence[str]) -> Command[int]:
    """Remove shares (`<limit>\\n<shard>`) from the key of the namespace."""
    return raw("HDEL", shared_limits_key(namespace), *names, decode=int)
