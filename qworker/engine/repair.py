"""Commands that check one thing again inside a script, and repair it there: the scripts in `lua/repair`.

With `repair` False each only reports the problem. A message that has moved since it was first seen is not a problem.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from qworker.engine.arguments import given, standard_keys
from qworker.engine.command import Command, Word
from qworker.engine.replies import accepted
from qworker.engine.scripts import load_script
from qworker.wire.keys import QueueKeys

__all__ = [
    "LANE_PREFIX",
    "MAX_PAIRS",
    "CounterRepair",
    "Location",
    "repair_counters",
    "repair_groups",
    "repair_item",
    "repair_join",
    "repair_key",
    "repair_lane",
    "repair_lease",
    "repair_run",
    "repair_seats",
    "repair_twice",
    "repair_unique",
]

#: Prefix of a lane that is stored among the counters.
LANE_PREFIX = b"lane:"
#: Unique keys, or runs, per call.
MAX_PAIRS = 100


@dataclass(frozen=True, slots=True)
class Location:
    """Where an item is stored: `place` is 0-9 (a level of ready), suspect, delayed, lease or dead.

    `at`: the index in the lease, or the entry id of the dead letter. `score` of a delayed item. `whole`: False for a
    dead letter without an envelope.
    """

    place: str
    item: bytes
    lease_id: str = ""
    at: str = ""
    score: float = 0.0
    whole: bool = True

    def text(self) -> str:
        """Write it for display."""
        if self.place == "lease":
            return f"lease:{self.lease_id} {self.at}"
        if self.place.isdecimal():
            return "ready" if self.place == "0" else f"ready:{self.place}"
        return f"{self.place} {self.at}" if self.at else self.place


@dataclass(frozen=True, slots=True)
class CounterRepair:
    """Wrong counters: name, stored value, right value. `busy`: messages could not be counted."""

    busy: bool
    problems: tuple[tuple[str, str, str], ...]


def repair_key(
    keys: QueueKeys, key: str, aside: str, kind: str, *, repair: bool
) -> Command[tuple[str, str]]:
    """Check the type of a key, and that it does not expire. Returns the problem and the type."""

    def decode(reply: Any) -> tuple[str, str]:
        problem, kind = accepted(reply, keys.queue)[2:]
        return problem.decode(), kind.decode()

    return Command(
        load_script("repair_key"), (key, aside, keys.meta), ("", int(repair), kind), decode
    )


def repair_lease(keys: QueueKeys, lease_id: bytes, *, repair: bool) -> Command[str]:
    """Check a lease, or an entry among the deadlines. Returns the problem."""
    names = standard_keys(keys, *_texts(lease_id))
    return Command(
        load_script("repair_lease"), names, ("", int(repair), lease_id), _problem(keys.queue)
    )


def repair_item(keys: QueueKeys, location: Location, *, repair: bool) -> Command[str]:
    """Check the item at a location. Returns the problem."""
    words, leases = _words([location])
    return Command(
        load_script("repair_item"),
        standard_keys(keys, *leases),
        ("", int(repair), *words),
        _problem(keys.queue),
    )


def repair_twice(keys: QueueKeys, stays: Location, goes: Location, *, repair: bool) -> Command[str]:
    """Check two locations of one message. Returns the problem."""
    words, leases = _words([stays, goes])
    return Command(
        load_script("repair_twice"),
        standard_keys(keys, *leases),
        ("", int(repair), *words),
        _problem(keys.queue),
    )


def repair_lane(keys: QueueKeys, place: str, field: bytes, *, repair: bool) -> Command[str]:
    """Check a lane: a field of `place`, which is the key of producers or stats. Returns the problem."""
    words = ("", int(repair), field)
    return Command(load_script("repair_lane"), (place, keys.meta), words, _problem(keys.queue))


class GroupProblem(NamedTuple):
    """What is wrong with a group: its kind (slot, busy or turn), its stored name, and words."""

    kind: str
    group: str
    words: str


def repair_groups(
    keys: QueueKeys, cursor: str = "0", *, repair: bool, now_ms: int | None = None
) -> Command[tuple[str, bool, list[GroupProblem]]]:
    """Count the slots of a page of groups. Returns the next cursor, whether they are too many, and problems."""

    def decode(reply: Any) -> tuple[str, bool, list[GroupProblem]]:
        _, _, following, why, *words = accepted(reply, keys.queue)
        texts = [word.decode("utf-8", "replace") for word in words]
        found = [GroupProblem(*texts[at : at + 3]) for at in range(0, len(texts), 3)]
        return following.decode(), why == b"large", found

    args = (given(now_ms), int(repair), cursor)
    return Command(load_script("repair_groups"), standard_keys(keys), args, decode)


def repair_seats(
    keys: QueueKeys, after: str = "", *, repair: bool, now_ms: int | None = None
) -> Command[tuple[str, list[str]]]:
    """Find waiting members that their groups do not know. Returns where to go on ("": at the end), and their ids."""

    def decode(reply: Any) -> tuple[str, list[str]]:
        _, _, following, *ids = accepted(reply, keys.queue)
        return following.decode(), [each.decode("utf-8", "replace") for each in ids]

    args = (given(now_ms), int(repair), after)
    return Command(load_script("repair_seats"), standard_keys(keys), args, decode)


def repair_unique(
    keys: QueueKeys,
    pairs: Sequence[tuple[bytes, bytes]],
    lease_ids: Sequence[str],
    *,
    repair: bool,
) -> Command[tuple[str, list[bool]]]:
    """Look up the holders of up to `MAX_PAIRS` unique keys. Returns why not, or for each whether it is gone."""

    def decode(reply: Any) -> tuple[str, list[bool]]:
        _, _, why, *gone = accepted(reply, keys.queue)
        return why.decode(), [flag == 1 for flag in gone]

    words: list[Word] = ["", int(repair)]
    for key, value in pairs:
        words += (key, value)
    return Command(
        load_script("repair_unique"), standard_keys(keys, *lease_ids), tuple(words), decode
    )


def repair_join(
    keys: QueueKeys,
    group_ids: Sequence[bytes],
    lease_ids: Sequence[str],
    *,
    repair: bool,
    keep_ms: int = 86_400_000,
) -> Command[tuple[str, list[str]]]:
    """Check groups of calls; `lease_ids` are all leases. Returns why it could not be checked, or what is wrong of each.

    Missing, unlisted, listed or left, see the script; empty if nothing is. `keep_ms` as of `repair_run`.
    """

    def decode(reply: Any) -> tuple[str, list[str]]:
        _, _, why, *problems = accepted(reply, keys.queue)
        return why.decode(), [problem.decode() for problem in problems]

    return Command(
        load_script("repair_join"),
        standard_keys(keys, *lease_ids),
        ("", int(repair), keep_ms, *group_ids),
        decode,
    )


def repair_run(
    keys: QueueKeys,
    message_ids: Sequence[bytes],
    lease_ids: Sequence[str],
    *,
    repair: bool,
    keep_ms: int = 86_400_000,
) -> Command[tuple[str, list[bool]]]:
    """Look up the messages of up to `MAX_PAIRS` runs. Returns why not, or for each whether it is gone."""

    def decode(reply: Any) -> tuple[str, list[bool]]:
        _, _, why, *gone = accepted(reply, keys.queue)
        return why.decode(), [flag == 1 for flag in gone]

    return Command(
        load_script("repair_run"),
        standard_keys(keys, *lease_ids),
        ("", int(repair), keep_ms, *message_ids),
        decode,
    )


def repair_counters(
    keys: QueueKeys, lease_ids: Sequence[str], *, repair: bool
) -> Command[CounterRepair]:
    """Compare counters, levels and journal numbers with the queue."""

    def decode(reply: Any) -> CounterRepair:
        _, _, busy, *words = accepted(reply, keys.queue)
        texts = [word.decode("utf-8", "replace") for word in words]
        return CounterRepair(
            busy == 1, tuple(zip(texts[::3], texts[1::3], texts[2::3], strict=True))
        )

    return Command(
        load_script("repair_counters"), standard_keys(keys, *lease_ids), ("", int(repair)), decode
    )


def _problem(queue: str) -> Any:
    def decode(reply: Any) -> str:
        problem: bytes = accepted(reply, queue)[2]
        return problem.decode()

    return decode


def _texts(lease_id: bytes) -> tuple[str, ...]:
    """Return the lease id as part of a key's name; nothing if it is not text."""
    try:
        return (lease_id.decode(),)
    except UnicodeDecodeError:
        return ()


def _words(locations: Sequence[Location]) -> tuple[list[Word], list[str]]:
    words: list[Word] = []
    leases: list[str] = []
    for location in locations:
        number = ""
        if location.place == "lease":
            leases.append(location.lease_id)
            number = str(len(leases))
        words += (location.place, number, location.at, location.item)
    return words, leases
