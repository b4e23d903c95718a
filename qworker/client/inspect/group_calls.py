"""The calls of a group, each as it has ended: a part of them at a time."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from qworker.client.per_shard import until_found
from qworker.client.plan import Plan
from qworker.client.queue_ref import QueueRef
from qworker.engine import calls as commands
from qworker.errors import ProtectionError
from qworker.wire.calls import MemberRef, open_member
from qworker.wire.result import read_end

__all__ = ["MAX_READ_BYTES", "EndedCall", "read_calls"]

#: Bytes of values after which no further calls are read.
MAX_READ_BYTES: Final = 2**22


@dataclass(frozen=True, slots=True)
class EndedCall:
    """A call of a group by its number: `state` is '' until it has ended, else ok, dead, cancelled and so on.

    `value`: JSON, of ok; `reason` and `error` (its class) are those of a dead letter. `closed`: why the value cannot be
    read. `queue`, `message_id`: of the message that ended without a value; '' if that is not known.
    """

    number: int
    state: str
    value: bytes = b""
    reason: str = ""
    error: str = ""
    closed: str = ""
    queue: str = ""
    message_id: str = ""


@until_found
def read_calls(
    queue: QueueRef, group_id: str, first: int, count: int
) -> Plan[list[EndedCall] | None]:
    """Read up to `count` calls of a group, from number `first` on; fewer if their values are large.

    None if the group is unknown.
    """
    calls: list[EndedCall] = []
    read_bytes = 0
    while len(calls) < count and read_bytes < MAX_READ_BYTES:
        values: commands.Values = yield commands.read_values(
            queue.keys, group_id, first + len(calls)
        )
        if not values.size:
            return None
        if not values.ends:
            break
        read_bytes += sum(map(len, values.ends))
        calls += [
            _call(queue, group_id, first + len(calls) + at, stored)
            for at, stored in enumerate(values.ends)
        ]
    return calls[:count]


def _call(queue: QueueRef, group_id: str, number: int, stored: bytes) -> EndedCall:
    state = stored.partition(b"\n")[0].partition(b" ")[0].decode("utf-8", "replace")
    if state == "ok":
        member = MemberRef(queue.keys.queue, group_id, number)
        try:
            value = open_member(stored, queue.keyring, queue.namespace, member)
        except ProtectionError as error:
            return EndedCall(number, state, closed=error.problem)
        return EndedCall(number, state, value)
    if not state:
        return EndedCall(number, "")
    end = read_end(stored)
    where, _, message_id = end.step or ("", "", "")
    name = where.partition("/")[0]
    return EndedCall(number, state, b"", end.reason, end.error, "", name, message_id)
