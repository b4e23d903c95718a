"""Commands for the groups of a queue, and for their limits."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final, NamedTuple

from qworker.engine.arguments import given, maybe, standard_keys
from qworker.engine.command import Command
from qworker.engine.raw import raw
from qworker.engine.replies import accepted
from qworker.engine.scripts import load_script
from qworker.wire.groups import ORDERED
from qworker.wire.keys import QueueKeys

__all__ = [
    "COUNTING",
    "GroupState",
    "LargeGroup",
    "end_wait",
    "group_page",
    "group_states",
    "largest",
    "limits",
    "running_page",
    "set_limit",
]


#: A cursor of `set_limit`: the limits are not stored yet.
COUNTING: Final = "c"


class GroupState(NamedTuple):
    """A group that waits or runs; or a parent, whose name ends with `/` and which only runs.

    `name` as stored. `concurrency`: None for no limit. `until_ms`: it waits until then, `by_handler`: because a handler
    raised `RateLimited`, `by_delay`: because it is ordered and its first message is delayed.
    """

    name: str
    waiting: int
    running: int
    concurrency: int | None
    until_ms: int | None
    by_parent: bool = False
    by_handler: bool = False
    by_delay: bool = False

    @property
    def reason(self) -> str:
        """Why its messages wait, '' if none wait.

        `rate` or `concurrency`, with " of its parent" for those of the parent; `turn`; `delayed`: of an
        ordered group, until its first message is due, a retry or a run that sleeps; or `rate_limited`: a handler raised
        `RateLimited`.
        """
        if not self.waiting:
            return ""
        of_parent = " of its parent" if self.by_parent else ""
        if self.until_ms is not None and self.by_delay:
            return "delayed"
        if self.until_ms is not None:
            return "rate_limited" if self.by_handler else "rate" + of_parent
        if self.by_parent or (self.concurrency is not None and self.running >= self.concurrency):
            return "concurrency" + of_parent
        return "turn"

    @property
    def told_to_wait(self) -> str:
        """The group or parent that a handler let wait by `RateLimited`, as people write it, where `reason` says so."""
        name = self.name.removeprefix(ORDERED)
        return name.partition("/")[0] + "/" if self.by_parent else name


class LargeGroup(NamedTuple):
    """A group with many waiting messages: `name` as stored, `since_ms`: since when its first one has waited."""

    name: str
    waiting: int
    running: int
    since_ms: int | None


def largest(
    keys: QueueKeys, most: int, *, now_ms: int | None = None
) -> Command[tuple[int, list[LargeGroup]]]:
    """Find the groups with the most waiting messages; returns the server's time in ms, and the largest first.

    A group with less than a 64th of all that wait in groups may be missed. O(1).
    """

    def decode(reply: Any) -> tuple[int, list[LargeGroup]]:
        _, now, *words = accepted(reply, keys.queue)
        found = [
            LargeGroup(
                words[at].decode("utf-8", "replace"),
                int(words[at + 1]),
                int(words[at + 2]),
                maybe(words[at + 3]),
            )
            for at in range(0, len(words), 4)
        ]
        return int(now), found

    return Command(load_script("largest"), standard_keys(keys), (given(now_ms), most), decode)


def set_limit(
    keys: QueueKeys,
    name: str,
    words: str,
    cursor: str = "0",
    *,
    before: str | None = None,
    now_ms: int | None = None,
) -> Command[str | None]:
    """Store the limits of a name ('' leaves all as they are); some of the groups that had to wait look at them.

    Returns the next cursor, "0" at the end. It is `COUNTING` before the first limits of a queue are stored: each such
    call counts a part of what is in flight; make it again. None, with nothing stored, if those of the name are not
    `before`, the words that the caller has read; without `before` if they are a share of a limit over several queues.
    Raises `TooManyLimitsError`, and with `before` `QueueNotFoundError` if the queue has been removed.
    """

    def decode(reply: Any) -> str | None:
        if reply[0] == b"CHANGED":
            return None
        return bytes(accepted(reply, keys.queue)[2]).decode()

    expected = () if before is None else (before,)
    args = (given(now_ms), name, words, cursor, *expected)
    return Command(load_script("limit"), standard_keys(keys), args, decode)


def end_wait(keys: QueueKeys, name: str, *, now_ms: int | None = None) -> Command[bool]:
    """End the wait of a parent (`acme/`) or group that a handler asked for; returns whether it waited for that."""
    return Command(
        load_script("resume_group"),
        standard_keys(keys),
        (given(now_ms), name),
        lambda reply: int(accepted(reply, keys.queue)[1]) > 0,
    )


def limits(keys: QueueKeys) -> Command[dict[str, str]]:
    """Read the limits as they are stored."""

    def decode(reply: Any) -> dict[str, str]:
        words = [word.decode("utf-8", "replace") for word in reply]
        return dict(zip(words[::2], words[1::2], strict=True))

    return raw("HGETALL", keys.limits, decode=decode)


def group_page(
    keys: QueueKeys, cursor: str = "0", *, now_ms: int | None = None
) -> Command[tuple[str, int, list[GroupState]]]:
    """Read a page of groups. Returns the next cursor ("0" at the end), the server's time in ms, and the groups.

    What runs of groups that nothing limits is in `running_page`.
    """

    def decode(reply: Any) -> tuple[str, int, list[GroupState]]:
        _, now, following, *words = accepted(reply, keys.queue)
        return following.decode(), int(now), _states(words)

    return Command(load_script("groups"), standard_keys(keys), (given(now_ms), cursor), decode)


def running_page(
    keys: QueueKeys, cursor: str = "r0", *, now_ms: int | None = None
) -> Command[tuple[str, dict[str, int]]]:
    """Read a page of what runs of groups that nothing limits: the next cursor ("0" at the end), and numbers by group.

    The numbers of a group in several pages add up.
    """

    def decode(reply: Any) -> tuple[str, dict[str, int]]:
        _, _, following, *words = accepted(reply, keys.queue)
        names = (name.decode("utf-8", "replace") for name in words[::2])
        return following.decode(), dict(zip(names, map(int, words[1::2]), strict=True))

    return Command(load_script("groups"), standard_keys(keys), (given(now_ms), cursor), decode)


def group_states(
    keys: QueueKeys, names: Sequence[str], *, now_ms: int | None = None
) -> Command[list[GroupState]]:
    """Read 1 to 100 groups by their stored names; one that does not exist neither waits nor runs."""

    def decode(reply: Any) -> list[GroupState]:
        return _states(accepted(reply, keys.queue)[3:])

    return Command(load_script("groups"), standard_keys(keys), (given(now_ms), "0", *names), decode)


def _states(words: Sequence[bytes]) -> list[GroupState]:
    return [
        GroupState(
            words[at].decode("utf-8", "replace"),
            int(words[at + 1]),
            int(words[at + 2]),
            maybe(words[at + 3]),
            maybe(words[at + 4]),
            words[at + 5] == b"1",
            words[at + 6] == b"1",
            words[at + 6] == b"2",
        )
        for at in range(0, len(words), 7)
    ]
