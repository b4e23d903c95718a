"""Groups: whether their slots match messages in flight, and whether all waiting members have a place."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from qworker.engine.repair import repair_groups, repair_seats
from qworker.fsck.damage import Damage, DamageKind
from qworker.wire.groups import shown
from qworker.wire.keys import QueueKeys

if TYPE_CHECKING:
    from qworker.client.execute.sync import Client

__all__ = ["check_groups"]


def check_groups(client: Client, keys: QueueKeys, *, repair: bool) -> Iterator[Damage | str]:
    """Compare groups with their messages; yields a text if that could not be done."""
    after = ""
    while True:
        after, lost = client.execute(repair_seats(keys, after, repair=repair))
        for message_id in lost:
            text = "it waits in no group, so no worker would receive it"
            yield Damage(keys.queue, DamageKind.GROUP, f"message {message_id}", text, repair)
        if not after:
            break
    cursor, seen = "0", set()
    while True:
        cursor, large, problems = client.execute(repair_groups(keys, cursor, repair=repair))
        for problem in problems:
            if problem not in seen:
                seen.add(problem)
                where = f"group {shown(problem.group)}"
                yield Damage(keys.queue, DamageKind.GROUP, where, f"{problem.words}", repair)
        if large:
            yield f"{keys.queue}: the slots of its groups were not counted: they are more than a script may read"
        if cursor == "0":
            return
