"""Groups of calls: whether they are listed, whether what follows them exists, and whether the calls they wait for do.

The last one takes a walk through every queue, since a call may be a chain that goes through any of them. A message may
move against the walk, so a call counts as gone only if two walks meet neither it nor its end.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, Final

from qworker.client.calls import read_group
from qworker.client.inspect.walk import SortedSetWalk, StreamWalk
from qworker.engine.calls import End, count_ends
from qworker.engine.raw import raw
from qworker.engine.repair import MAX_PAIRS, repair_join
from qworker.formats import count
from qworker.fsck.damage import REMEDIES, Damage, DamageKind
from qworker.fsck.leases import ask_with_leases
from qworker.fsck.reading import StoredItems, ask
from qworker.wire.envelope import Envelope

if TYPE_CHECKING:
    from qworker.client.execute.sync import Client
    from qworker.wire.keys import QueueKeys

__all__ = ["check_calls", "check_joins"]

_PAGE: Final = 500
#: Skip a group that began since then: its calls may be anywhere.
_SETTLED_MS: Final = 60_000
_WALKS: Final = 2
#: Calls that are named.
_NAMED: Final = 10
_MARKS: Final = re.compile(r"[.-]")
_PROBLEMS: Final = {
    "missing": "it is listed, and its state is gone: its callback is not sent, and waits for that do not end",
    "unlisted": "it waits for calls, but neither doctor nor `qworker calls ls` shows it",
    "listed": "it is decided, but still listed as waiting for calls",
    "left": "its callback or its run has ended, and the values of its calls are kept forever",
}


def check_joins(
    client: Client, keys: QueueKeys, names: Iterable[bytes], *, repair: bool
) -> Iterator[Damage | str]:
    """Check the groups of a queue; `names` are those with a state. Yields a text if that could not be done."""
    groups = dict.fromkeys(names)
    for page in SortedSetWalk(keys.joins, _PAGE).pages(client.run):
        groups |= dict.fromkeys(member for member, _ in page)
    for first in range(0, len(groups), MAX_PAIRS):
        some = [*groups][first : first + MAX_PAIRS]
        question = partial(repair_join, keys, some, repair=repair)
        why, problems = ask_with_leases(client, keys, question)
        if why:
            yield f"{keys.queue}: could not check {count(len(groups), 'group')} of calls: {why}"
            return
        for name, problem in zip(some, problems, strict=True):
            if problem:
                where = f"calls {name.decode('utf-8', 'replace')}"
                yield Damage(keys.queue, DamageKind.CALLS, where, _PROBLEMS[problem], repair)
        yield from _shared_ids(client, keys, some)


def _shared_ids(client: Client, keys: QueueKeys, names: Sequence[bytes]) -> Iterator[Damage]:
    """Name the ids that a run has as well, which no start allows any more, while either is at work."""
    ids = [name.decode("utf-8", "replace") for name in names]
    runs = client.execute_each([raw("EXISTS", keys.run(one), decode=int) for one in ids])
    for one, is_run in zip(ids, runs, strict=True):
        if is_run == 1:
            started, began = (ask(client, "ZSCORE", key, one) for key in (keys.runs, keys.joins))
            if started is not None or began is not None:
                text = (
                    "a run and a group of calls have this id, which an earlier version gave to both: "
                    "they keep their results in one key, so a wait may get that of the other"
                )
                kind = DamageKind.SHARED_ID
                yield Damage(keys.queue, kind, f"id {one}", text, left=REMEDIES[kind])


class _Waiting:
    """A group, and the calls that it waits for: number → whether its dead letter is counted."""

    def __init__(self, keys: QueueKeys, name: str, members: dict[int, bool]) -> None:
        self.keys, self.name, self.members = keys, name, members

    def message(self, member: int) -> str:
        """The id of the message of a call, or what that begins with."""
        return f"{self.name}.{member}"


def check_calls(
    client: Client,
    queues: Sequence[QueueKeys],
    survey: Callable[[], tuple[Sequence[QueueKeys], Mapping[str, Sequence[bytes]]]],
    incomplete: Callable[[], bool],
    *,
    repair: bool,
) -> Iterator[Damage]:
    """Check that each call that the groups of `queues` wait for is somewhere, or on its way.

    `survey` names all queues of the namespace and their outboxes as they are then: a call may go on in a new queue. If
    it was `incomplete`, no call counts as gone.
    """
    waiting = [group for keys in queues for group in _groups(client, keys)]
    dead: set[str] = set()
    for _ in range(_WALKS):
        if not waiting:
            return
        there, dead = _there(client, *survey(), waiting)
        if incomplete():
            return
        for group in waiting:
            for member, counted in [*group.members.items()]:
                name = group.message(member)
                if name in there or (counted and name in dead):
                    del group.members[member]
        waiting = [group for group in waiting if group.members]
    for group in waiting:
        still = _awaited(client, group.keys, group.name)
        lost = [n for n, counted in group.members.items() if still.get(n) is counted]
        ended = [n for n in lost if group.message(n) in dead]
        gone = [n for n in lost if n not in ended]
        where = f"calls {group.name}"
        if gone:
            if repair:
                _count(client, group, gone, b"discarded")
            text = (
                f"it waits for {_named(gone)} whose messages are gone, so its callback is not sent"
            )
            yield Damage(group.keys.queue, DamageKind.LOST_CALL, where, text, repair)
        if ended:
            if repair:
                _count(client, group, ended, b"dead untold -\n")
            text = f"it waits for {_named(ended)} and was not told that they are dead letters"
            yield Damage(group.keys.queue, DamageKind.UNTOLD_CALL, where, text, repair)


def _named(members: Sequence[int]) -> str:
    some = ", ".join(map(str, members[:_NAMED])) + (", …" if len(members) > _NAMED else "")
    return f"{count(len(members), 'call')} ({some})"


def _groups(client: Client, keys: QueueKeys) -> Iterator[_Waiting]:
    for page in SortedSetWalk(keys.joins, _PAGE).pages(client.run):
        for member, _ in page:
            name = member.decode("utf-8", "replace")
            if members := _awaited(client, keys, name):
                yield _Waiting(keys, name, members)


def _awaited(client: Client, keys: QueueKeys, name: str) -> dict[int, bool]:
    """The calls that a group waits for, also those that are dead letters; none of one that is new or starting."""
    words = ask(client, "HMGET", keys.join(name), "@size", "@sent", "@made", "@dead", "@over")
    size, sent, made, dead, over = words
    age_ms = int(ask(client, "TIME")[0]) * 1000 - int(made or 0)
    if size is None or over is not None or sent != size or age_ms < _SETTLED_MS:
        return {}
    state = client.run(read_group(keys, name))
    if state is None:
        return {}
    can_return = {int(number) for number in (dead or b"").split()}
    return {
        n: n in can_return for n, ended in enumerate(state.ends) if not ended or n in can_return
    }


def _count(client: Client, group: _Waiting, members: Sequence[int], words: bytes) -> None:
    """Count ends of calls, as their queues would have reported them."""
    for first in range(0, len(members), _PAGE):
        some = enumerate(members[first : first + _PAGE], 1)
        ends = [End(number, group.name.encode(), member, words) for number, member in some]
        client.execute(count_ends(group.keys, "", ends))


def _there(
    client: Client,
    queues: Sequence[QueueKeys],
    outboxes: Mapping[str, Sequence[bytes]],
    waiting: Sequence[_Waiting],
) -> tuple[set[str], set[str]]:
    """Find which calls are in a queue or an outbox, or are groups that wait themselves; and which are dead letters."""
    wanted = {group.message(member) for group in waiting for member in group.members}
    there: set[str] = set()
    dead: set[str] = set()

    def note(name: str, found: set[str]) -> None:
        # A later step of a chain, or a call of a group in the group, has an id that begins with that of the call.
        begins = [name[: mark.start()] for mark in _MARKS.finditer(name)]
        found.update(wanted.intersection([*begins, name]))

    for keys in queues:
        for destination in outboxes.get(keys.queue, ()):
            for name in _in_outbox(client, keys.outbox(destination.decode("utf-8", "replace"))):
                note(name, there)
        for location in StoredItems(client, keys):
            if (envelope := Envelope.parse(location.item)) is not None:
                note(envelope.id, dead if location.place == "dead" else there)
        for page in SortedSetWalk(keys.joins, _PAGE).pages(client.run):
            for member, _ in page:
                note(member.decode("utf-8", "replace"), there)
    return there, dead


def _in_outbox(client: Client, stream: str) -> Iterator[str]:
    """The messages of an outbox, and those whose ends it reports."""
    for page in StreamWalk(stream, _PAGE).pages(client.run):
        for _, flat in page:
            fields: dict[bytes, Any] = dict(zip(flat[::2], flat[1::2], strict=True))
            if b"join" in fields:
                yield f"{fields[b'join'].decode()}.{fields[b'member'].decode()}"
            elif b"open" in fields:
                yield fields[b"open"].decode("utf-8", "replace")
            elif b"head" in fields:
                yield fields[b"head"].decode("utf-8", "replace").split(" ")[1]
