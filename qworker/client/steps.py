"""What follows a call: the steps of its chain, and the group of calls that it is a member of.

It travels in the body of each message (`then`), signed and encrypted as any other. A group of calls begins with its
spec, see `lua/calls/join.lua`; a member ends with a step that only names the group, which older workers refuse to read:
they bury the member instead of losing its end.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Final

import msgspec
from msgspec import Raw

from qworker.engine.arguments import given
from qworker.engine.options import LARGEST_MAXSIZE, SendOptions
from qworker.engine.send import NewMessage
from qworker.engine.settle import Effect, member_effect, open_effect, out_effect, push_effect
from qworker.errors import InvalidBodyError
from qworker.formats import size
from qworker.wire.calls import (
    GroupMember,
    MemberCall,
    Place,
    Policy,
    Spec,
    write_member,
    write_spec,
)
from qworker.wire.codec import check_size, is_too_deep
from qworker.wire.envelope import head, tail
from qworker.wire.keyring import Keyring

__all__ = [
    "MAX_NESTED",
    "Fan",
    "Opened",
    "Sending",
    "Step",
    "Writer",
    "end_flag",
    "following",
    "groups_of",
    "next_effects",
    "open_fan",
    "with_steps",
]

#: Gets the task, body and flags of a message that is sent, and may change the flags.
Sending = Callable[[str, bytes, dict[str, str]], None]

#: Members and bytes of one spec.
_PART_MEMBERS: Final = 1000
_PART_BYTES: Final = 2**20
#: Bytes of a group that begins in another one, or as a step of a chain.
MAX_NESTED: Final = 8 * 2**20


class Step(msgspec.Struct, frozen=True, omit_defaults=True):
    """A call that follows another one, whose value is its first argument. `args` are those after it, or all if `whole`.

    Times in ms, None for the queue's. `keep_ms` is set for the last step, if the result of the chain is kept. `group`
    is a stored name. A step with `fan` is a group of calls, one with `join` a member's end.
    """

    task: str = ""
    queue: str = ""
    id: str = ""
    args: list[Raw] = []
    kwargs: dict[str, Raw] = {}
    priority: int = 0
    delay_ms: int | None = None
    ttl_ms: int | None = None
    max_receives: int | None = None
    visibility_ms: int | None = None
    keep_ms: int | None = None
    whole: bool = False
    run: bool = False
    group: str = ""
    fan: Fan | None = None
    join: Place | None = None


class Fan(msgspec.Struct, frozen=True, omit_defaults=True):
    """A group of calls: each member is a chain of steps, of which the first may be a group. `callback` follows them."""

    policy: Policy
    members: list[list[Step]]
    callback: Step


class _Chained(msgspec.Struct):
    """The part of a body that names the steps which follow."""

    then: list[Step] = []


_CHAINED: Final = msgspec.json.Decoder(_Chained)
_STEPS: Final = msgspec.json.Decoder(list[Step])
_encode: Final = msgspec.json.Encoder().encode


@dataclass(frozen=True, slots=True)
class Writer:
    """Writes messages of a namespace; `sending` is the middleware, `trace` of the call that they come of."""

    namespace: str
    keyring: Keyring
    trace: str | None = None
    sending: Sending | None = None

    def message(
        self, step: Step, rest: Sequence[Step], value: bytes | None = None, *, gather: str = ""
    ) -> NewMessage:
        """Make the message of a step; `rest` follows it. `gather`: it is a callback, by the policy of its group.

        Raises `InvalidBodyError` and `BodyTooLargeError`.
        """
        first = [] if value is None or step.whole or gather else [Raw(value)]
        call: dict[str, object] = {"task": step.task, "args": [*first, *step.args]}
        if step.kwargs:
            call["kwargs"] = step.kwargs
        if gather:
            call["gather"] = gather
        body = with_steps(_encode(call), rest)
        if is_too_deep(body):
            raise InvalidBodyError(
                "body", "is nested deeper than 64 levels", "return flatter values"
            )
        check_size(body, LARGEST_MAXSIZE)
        flags = {"w": self.trace} if self.trace else {}
        for flag, number in (
            ("r", step.keep_ms),
            ("m", step.max_receives),
            ("p", step.priority or None),
            ("v", step.visibility_ms),
        ):
            if number is not None:
                flags[flag] = str(number)
        if step.run:
            flags["c"] = "1"
        if step.group:
            flags["g"] = step.group
        flags |= _ends(step.task, rest)
        if gather:
            flags |= {"h": "1", "j": flags.get("j", "-")}
        if self.sending is not None:
            self.sending(step.task, body, flags)
        if self.keyring:
            body = self.keyring.protect(self.namespace, step.queue, step.id, body, flags)
            check_size(body, LARGEST_MAXSIZE)
        return NewMessage(step.id, tail(body, flags), group=step.group)


def with_steps(body: bytes, steps: Sequence[Step]) -> bytes:
    """Add the steps that follow to the body of a call."""
    return body[:-1] + b',"then":' + _encode(steps) + b"}" if steps else body


def following(body: bytes) -> list[Step]:
    """Read the steps that follow a call, a group of calls as its callback; none of a body that is not a call."""
    try:
        steps = _CHAINED.decode(body).then
    except msgspec.MsgspecError:
        return []
    return [step.fan.callback if step.fan else step for step in steps if step.join is None]


def groups_of(steps: Sequence[Step]) -> list[tuple[str, str]]:
    """Queue and group of the messages of steps that have one: they are sent without a choice of the shard."""
    found = []
    for step in steps:
        if step.fan is not None:
            for chain in (*step.fan.members, [step.fan.callback]):
                found += groups_of(chain)
        elif step.group:
            found.append((step.queue, step.group))
    return list(dict.fromkeys(found))


def _ends(task: str, rest: Sequence[Step]) -> dict[str, str]:
    """Write the flags that say who is told of the end of a message of this task."""
    if not rest:
        return {}
    place = rest[-1].join
    if place is not None:
        # Flag j lets older workers read what follows, and stop there.
        return {"i": place.flag(task), "j": "-"}
    return {"j": end_flag(task, rest)}


def end_flag(task: str, steps: Sequence[Step]) -> str:
    """Write the flag j of a step of this task: where the end of the chain is waited for, see `lua/lib/ends.lua`."""
    last = steps[-1].fan.callback if steps[-1].fan else steps[-1]
    return f"{last.queue}:{last.id}:{last.keep_ms}:{task}" if last.keep_ms else "-"


def next_effects(then: Raw, value: bytes, *, queue: str, writer: Writer) -> list[Effect]:
    """Make what follows a call, as effects of the ack of a message of `queue`; `value` is its result, JSON.

    Raises `InvalidBodyError` and `BodyTooLargeError`.
    """
    step, *rest = _STEPS.decode(then)
    if step.join is not None:
        words = write_member(value, writer.keyring, writer.namespace, step.join)
        return [member_effect(step.join.queue, step.join.id, step.join.number, words)]
    if step.fan is not None:
        opened = open_fan(step.fan, rest, writer, value)
        if opened.bytes > MAX_NESTED:
            raise InvalidBodyError(
                "value",
                f"makes {opened.bytes:,} bytes of {opened.size} calls, each of which gets it",
                f"a group in a chain has at most {size(MAX_NESTED)}; return a reference",
            )
        return [open_effect(opened.queue, opened.id, spec) for spec in opened.specs]
    message = writer.message(step, rest, value)
    if step.queue == queue:
        return [push_effect(message, _options(step))]
    return [out_effect(step.queue, message, _options(step))]


@dataclass(frozen=True, slots=True)
class Opened:
    """A group of calls to begin: the queue of its callback, its id, its specs, and its members' bytes.

    `ends`: how many members there are up to each spec. `sizes` are the largest bodies by queue.
    """

    queue: str
    id: str
    size: int
    start: bytes
    specs: list[bytes]
    ends: list[int]
    bytes: int
    sizes: dict[str, int] = field(default_factory=dict)


def open_fan(
    fan: Fan,
    rest: Sequence[Step],
    writer: Writer,
    value: bytes | None = None,
    *,
    start: bytes | None = None,
    start_keep_ms: int | None = None,
    run: tuple[str, str, str] | None = None,
) -> Opened:
    """Write the specs of a group of calls; its callback is followed by `rest`.

    `start`, `start_keep_ms`: what it was started with, kept so that it is not started again. `run`: the queue or shard,
    message id and signal of a run that follows instead of the callback, whose `id` is then that of the group alone.
    """
    callback = fan.callback
    sizes: dict[str, int] = {}
    if run is None:
        message = writer.message(callback, rest, gather=fan.policy)
        then = (*_words(callback), message.tail)
        sizes[callback.queue] = message.size
        queue = callback.queue
    else:
        queue, then = run[0], None
    rows: list[MemberCall | GroupMember] = []
    for number, chain in enumerate(fan.members):
        first, *others = chain
        after = [*others, Step(join=Place(queue, callback.id, number))]
        if first.fan is not None:
            inner = open_fan(first.fan, after, writer, value)
            if inner.bytes > MAX_NESTED:
                raise InvalidBodyError(
                    "group",
                    f"has a group with {inner.bytes:,} bytes of calls",
                    f"a group in a group has at most {size(MAX_NESTED)}",
                )
            _note_sizes(sizes, inner.sizes)
            rows.append(GroupMember(inner.queue, inner.id, inner.specs))
        else:
            message = writer.message(first, after, value)
            _note_sizes(sizes, {first.queue: message.size})
            rows.append(MemberCall(first.queue, *_words(first), message.tail))

    def spec(at: int, some: list[MemberCall | GroupMember]) -> bytes:
        target = None if run is None else (run[1], run[2])
        return write_spec(
            Spec(callback.id, len(rows), fan.policy, at, some, then, target, start, start_keep_ms)
        )

    specs: list[bytes] = []
    ends: list[int] = []
    part: list[MemberCall | GroupMember] = []
    used = total = 0
    for number, row in enumerate(rows):
        row_bytes = _bytes_of(row)
        if part and (len(part) == _PART_MEMBERS or used + row_bytes > _PART_BYTES):
            specs.append(spec(number - len(part), part))
            ends.append(number)
            part, used = [], 0
        part.append(row)
        used, total = used + row_bytes, total + row_bytes
    specs.append(spec(len(rows) - len(part), part))
    ends.append(len(rows))
    return Opened(queue, callback.id, len(rows), start or b"", specs, ends, total, sizes)


def _note_sizes(sizes: dict[str, int], more: dict[str, int]) -> None:
    for queue, bytes_ in more.items():
        sizes[queue] = max(sizes.get(queue, 0), bytes_)


def _bytes_of(row: MemberCall | GroupMember) -> int:
    return len(row.tail) if isinstance(row, MemberCall) else sum(map(len, row.specs))


def _words(step: Step) -> tuple[int, str, str, str]:
    return (step.priority, str(given(step.delay_ms)), str(given(step.ttl_ms)), head(step.id))


def _options(step: Step) -> SendOptions:
    return SendOptions(
        priority=step.priority, delay=_duration(step.delay_ms), ttl=_duration(step.ttl_ms)
    )


def _duration(ms: int | None) -> timedelta | None:
    return None if ms is None else timedelta(milliseconds=ms)
