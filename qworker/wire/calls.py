"""Groups of calls as they are stored: what begins one, and where its members are counted."""

from __future__ import annotations

import re
from hashlib import blake2b
from typing import Any, Final, Literal
from urllib.parse import unquote

import msgspec

from qworker.errors import InvalidBodyError
from qworker.wire.codec import decode_call
from qworker.wire.envelope import flag_text
from qworker.wire.keyring import Keyring
from qworker.wire.numbers import whole

__all__ = [
    "MAX_MEMBERS",
    "GroupMember",
    "MemberCall",
    "MemberRef",
    "Policy",
    "Spec",
    "callback_flag",
    "callback_task",
    "gather_id",
    "lane_of",
    "member_of",
    "open_member",
    "run_of",
    "write_member",
    "write_spec",
]

#: When the callback of a group is sent.
Policy = Literal["all", "successes", "first"]
#: Members of one group.
MAX_MEMBERS: Final = 10_000
#: The tail of a callback is bytes that the servers store as text.
_CALLBACK: Final = msgspec.msgpack.Decoder(tuple[int, str, str, str, msgspec.Raw])
_RUN: Final = msgspec.msgpack.Decoder(tuple[str, str])


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
    `queues`: where messages of it may be besides those of its members: later steps of chains, calls of inner groups.
    `rest`: the first success cancels the other calls; their later steps by queue, as in `lua/calls/join.lua`.
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
    queues: list[str] | None = None
    rest: dict[str, str] | None = None


class MemberRef(msgspec.Struct, frozen=True, array_like=True):
    """Where a member is counted: the queue (or shard) of what follows, the id of the group, and its number."""

    queue: str
    id: str
    number: int

    def flag(self, task: str) -> str:
        """Write the flag i of a message of this task."""
        return f"{self.queue}:{self.id}:{self.number}:{task}"


def member_of(flag: str) -> MemberRef | None:
    """Return where a member is counted, by the flag i of its message; None without one."""
    queue, _, rest = flag.partition(":")
    group_id, _, rest = rest.partition(":")
    number = whole(rest.partition(":")[0])
    return MemberRef(queue, group_id, number) if queue and group_id and number is not None else None


def write_spec(spec: Spec) -> bytes:
    """Write a part of a group, as MessagePack."""
    fields = {name: getattr(spec, name) for name in spec.__struct_fields__}
    return _packed({name: value for name, value in fields.items() if value is not None})


def callback_task(stored: bytes | None) -> str:
    """Return the task of a callback, as a group keeps it; '' if there is none, or its body is encrypted."""
    try:
        *_, packed = _CALLBACK.decode(stored or b"")
        header, _, body = bytes(packed).partition(b"\n")
        return "" if b" e=" in header else decode_call(body).task
    except (msgspec.MsgspecError, UnicodeDecodeError, InvalidBodyError):
        return ""


def callback_flag(stored: bytes | None, flag: str) -> str:
    """Return a flag of a callback, as a group keeps it; '' without one."""
    try:
        *_, packed = _CALLBACK.decode(stored or b"")
        header = bytes(packed).partition(b"\n")[0].decode()
    except (msgspec.MsgspecError, UnicodeDecodeError):
        return ""
    found = re.search(f" {flag}=([^ ]*)", header)
    return "" if found is None else unquote(found[1])


def run_of(stored: bytes | None) -> str:
    """Return the message id of the run that follows a group, as that keeps it; '' if a callback does."""
    try:
        return _RUN.decode(stored or b"")[0]
    except (msgspec.MsgspecError, UnicodeDecodeError):
        return ""


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


def gather_id(run_id: str, signal: str) -> str:
    """Name the group of the calls that a run gathers, and that end with this signal (`!<name>#<number>`)."""
    digest = blake2b(f"{run_id} {signal}".encode(), digest_size=8)
    return f"{run_id[:20]}.{digest.hexdigest()}"


def write_member(value: bytes, keyring: Keyring, namespace: str, member: MemberRef) -> bytes:
    """Write the value of a member as it is counted, signed and encrypted as messages are if the keyring has keys."""
    if not keyring:
        return b"ok\n" + value
    flags: dict[str, str] = {}
    queue = member.queue.partition("/")[0]
    stored = keyring.protect(namespace, queue, _name(member.id, member.number), value, flags)
    return b"ok" + flag_text(flags).encode() + b"\n" + stored


def open_member(stored: bytes, keyring: Keyring, namespace: str, member: MemberRef) -> bytes:
    """Return the JSON of a value that `write_member` has written. Raises `ProtectionError`."""
    line, _, value = stored.partition(b"\n")
    if not keyring and b" e=" not in line:
        return value
    queue, flags = (
        member.queue.partition("/")[0],
        line.decode("utf-8", "replace").removeprefix("ok"),
    )
    header = f"q1 {_name(member.id, member.number)} 0 0 0 0 0{flags}\n".encode()
    return keyring.open(namespace, queue, header + value)[len(header) :]


def _name(group_id: str, number: int) -> str:
    # The value of a member must not pass for another one's, nor for that of another group.
    return "member." + blake2b(f"{group_id} {number}".encode(), digest_size=24).hexdigest()
