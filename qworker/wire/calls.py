"""Groups of calls as they are stored: what begins one, and where its members are counted."""

from __future__ import annotations

from hashlib import blake2b
from typing import Any, Final, Literal

import msgspec

from qworker.wire.envelope import flag_text
from qworker.wire.keyring import Keyring

__all__ = [
    "MAX_MEMBERS",
    "GroupMember",
    "MemberCall",
    "Place",
    "Policy",
    "Spec",
    "lane_of",
    "open_member",
    "write_member",
    "write_spec",
]

#: When the callback of a group is sent.
Policy = Literal["all", "successes", "first"]
#: Members of one group.
MAX_MEMBERS: Final = 10_000


class MemberCall(msgspec.Struct, frozen=True, array_like=True):
    """A message of a group. `delay` and `ttl` in ms, empty for those of its queue."""

    queue: str
    priority: int
    delay: str
    ttl: str
    head: str
    tail: bytes


class GroupMember(msgspec.Struct, frozen=True, array_like=True):
    """A group of calls in a group, by its specs in order; `queue` is that of its callback, `id` its own."""

    queue: str
    id: str
    specs: list[bytes]


class Spec(msgspec.Struct, frozen=True):
    """A part of a group that begins: its members from `first` on, see `lua/calls/join.lua`.

    `then` is the callback as priority, delay, ttl, head and tail; or `run` a message id and the signal it gets.
    """

    id: str
    size: int
    policy: str
    first: int
    members: list[Any]
    then: tuple[int, str, str, str, bytes] | None = None
    run: tuple[str, str] | None = None
    start: bytes | None = None
    keep: int | None = None


class Place(msgspec.Struct, frozen=True, array_like=True):
    """Where a member is counted: the queue (or shard) of what follows, the id of the group, and its number."""

    queue: str
    id: str
    number: int

    def flag(self, task: str) -> str:
        """Write the flag i of a message of this task."""
        return f"{self.queue}:{self.id}:{self.number}:{task}"


def write_spec(spec: Spec) -> bytes:
    """Write a part of a group, as MessagePack."""
    words = {name: getattr(spec, name) for name in spec.__struct_fields__}
    return _packed({name: value for name, value in words.items() if value is not None})


def _packed(value: Any) -> bytes:
    """Write MessagePack that the servers read: they know its strings, but not its type of binary data."""
    if isinstance(value, bytes):
        for mark, size in ((0xD9, 1), (0xDA, 2), (0xDB, 4)):
            if len(value) < 256**size:
                return bytes((mark,)) + len(value).to_bytes(size, "big") + value
    if isinstance(value, str):
        return _packed(value.encode())
    if isinstance(value, int):
        return msgspec.msgpack.encode(value)
    if isinstance(value, dict):
        words = [_packed(word) for pair in value.items() for word in pair]
        return b"\xdf" + len(value).to_bytes(4, "big") + b"".join(words)
    if isinstance(value, msgspec.Struct):
        value = msgspec.structs.astuple(value)
    return b"\xdd" + len(value).to_bytes(4, "big") + b"".join(map(_packed, value))


def lane_of(group_id: str) -> str:
    """Name the lane on which a group begins: a call that is repeated after a lost reply does nothing."""
    return "out-" + blake2b(group_id.encode(), digest_size=12).hexdigest()


def write_member(value: bytes, keyring: Keyring, namespace: str, place: Place) -> bytes:
    """Write the value of a member as it is counted, signed and encrypted as messages are if the keyring has keys."""
    if not keyring:
        return b"ok\n" + value
    flags: dict[str, str] = {}
    queue = place.queue.partition("/")[0]
    stored = keyring.protect(namespace, queue, _name(place.id, place.number), value, flags)
    return b"ok" + flag_text(flags).encode() + b"\n" + stored


def open_member(stored: bytes, keyring: Keyring, namespace: str, place: Place) -> bytes:
    """Return the JSON of a value that `write_member` has written. Raises `ProtectionError`."""
    line, _, value = stored.partition(b"\n")
    if not keyring and b" e=" not in line:
        return value
    queue, flags = place.queue.partition("/")[0], line.decode("utf-8", "replace").removeprefix("ok")
    header = f"q1 {_name(place.id, place.number)} 0 0 0 0 0{flags}\n".encode()
    return keyring.open(namespace, queue, header + value)[len(header) :]


def _name(group_id: str, number: int) -> str:
    # The value of a member must not pass for another one's, nor for that of another group.
    return "member." + blake2b(f"{group_id} {number}".encode(), digest_size=24).hexdigest()
