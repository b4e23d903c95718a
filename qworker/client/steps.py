"""The steps after a call as its body carries them: those of its chain, and the group that it is a member of.

They travel in the body of each message (`then`), signed and encrypted as any other. A group of calls begins with its
spec, see `lua/calls/join.lua`; a member ends with a step that only names the group, which older workers refuse to read:
they bury the member instead of losing its end.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Annotated, Final

import msgspec
from msgspec import Raw, Struct

from qworker.engine.options import LARGEST_MAXSIZE
from qworker.engine.send import NewMessage
from qworker.errors import InvalidBodyError
from qworker.wire.calls import (
    MemberRef,
    Policy,
)
from qworker.wire.codec import check_size, is_too_deep
from qworker.wire.envelope import tail
from qworker.wire.keyring import Keyring

__all__ = [
    "ChainStep",
    "Fan",
    "MessageWriter",
    "Past",
    "Sending",
    "end_flag",
    "following",
    "groups_of",
    "past_of",
    "queues_of",
    "steps_after",
    "with_steps",
]

#: Gets the task, body and flags of a message that is sent, and may change the flags.
Sending = Callable[[str, bytes, dict[str, str]], None]

#: Steps before a step that its body names: the latest.
_MAX_PAST: Final = 20
#: Bytes of a body that names the steps before it: one that is larger does not.
_WITH_PAST: Final = 65_536


_Ms = Annotated[int, msgspec.Meta(ge=0, le=2**53)]


class ChainStep(msgspec.Struct, frozen=True, omit_defaults=True):
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
    join: MemberRef | None = None


class Fan(msgspec.Struct, frozen=True, omit_defaults=True):
    """A group of calls: each member is a chain of steps, of which the first may be a group. `callback` follows them.

    `cancel_rest`: the first success cancels the other members, which have no groups in them.
    """

    policy: Policy
    members: list[list[ChainStep]]
    callback: ChainStep
    cancel_rest: bool = False


class Past(msgspec.Struct, frozen=True, array_like=True):
    """A step that has ended, for display: its call, when it was sent, and how long its handler ran, in ms."""

    task: str
    queue: str
    id: str
    sent_ms: _Ms
    ran_ms: _Ms


class _Chained(msgspec.Struct):
    """The part of a body that names the steps which follow."""

    then: list[ChainStep] = []


class _Followed(msgspec.Struct):
    """The part of a body that names the steps before."""

    past: list[Past] = []


_CHAINED: Final = msgspec.json.Decoder(_Chained)
_FOLLOWED: Final = msgspec.json.Decoder(_Followed)
_encode: Final = msgspec.json.Encoder().encode


class MessageWriter(Struct, frozen=True):
    """Writes messages of a namespace; `sending` is the middleware, `trace` of the call that they come of."""

    namespace: str
    keyring: Keyring
    trace: str | None = None
    sending: Sending | None = None

    def message(
        self,
        step: ChainStep,
        rest: Sequence[ChainStep],
        value: bytes | None = None,
        *,
        gather: str = "",
        past: Sequence[Past] = (),
    ) -> NewMessage:
        """Make the message of a step; `rest` follows it. `gather`: it is a callback, by the policy of its group.

        `past`: the steps before it, which a large body does not name. Raises `InvalidBodyError` and
        `BodyTooLargeError`.
        """
        first = [] if value is None or step.whole or gather else [Raw(value)]
        call: dict[str, object] = {"task": step.task, "args": [*first, *step.args]}
        if step.kwargs:
            call["kwargs"] = step.kwargs
        if gather:
            call["gather"] = gather
        body = with_steps(_encode(call), rest)
        if past:
            named = body[:-1] + b',"past":' + _encode(past[-_MAX_PAST:]) + b"}"
            body = named if len(named) <= _WITH_PAST else body
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


def with_steps(body: bytes, steps: Sequence[ChainStep]) -> bytes:
    """Add the steps that follow to the body of a call."""
    return body[:-1] + b',"then":' + _encode(steps) + b"}" if steps else body


def steps_after(body: bytes) -> list[ChainStep]:
    """Read the steps that follow a call, as its body names them; none of a body that is not a call."""
    try:
        return _CHAINED.decode(body).then
    except msgspec.MsgspecError:
        return []


def following(body: bytes) -> list[ChainStep]:
    """Read the steps that follow a call, a group of calls as its callback; none of a body that is not a call."""
    return [
        step.fan.callback if step.fan else step for step in steps_after(body) if step.join is None
    ]


def past_of(body: bytes) -> list[Past]:
    """Read the steps before a call, as its body names them; none of a body that is not a call."""
    try:
        return _FOLLOWED.decode(body).past
    except msgspec.MsgspecError:
        return []


def groups_of(steps: Sequence[ChainStep]) -> list[tuple[str, str]]:
    """Queue and group of the messages of steps that have one: they are sent without a choice of the shard."""
    found = []
    for step in steps:
        if step.fan is not None:
            for chain in (*step.fan.members, [step.fan.callback]):
                found += groups_of(chain)
        elif step.group:
            found.append((step.queue, step.group))
    return list(dict.fromkeys(found))


def queues_of(steps: Sequence[ChainStep]) -> Iterator[str]:
    """Yield the queues of the messages of steps."""
    for step in steps:
        if step.fan is None:
            yield step.queue
        else:
            yield step.fan.callback.queue
            for chain in step.fan.members:
                yield from queues_of(chain)


def _ends(task: str, rest: Sequence[ChainStep]) -> dict[str, str]:
    """Write the flags that say where the end of a message of this task is announced."""
    if not rest:
        return {}
    member = rest[-1].join
    if member is not None:
        # Flag j lets older workers read what follows, and stop there.
        return {"i": member.flag(task), "j": "-"}
    return {"j": end_flag(task, rest)}


def end_flag(task: str, steps: Sequence[ChainStep]) -> str:
    """Write the flag j of a step of this task: where the end of its chain is announced, see `lua/lib/ends.lua`."""
    last = steps[-1].fan.callback if steps[-1].fan else steps[-1]
    return f"{last.queue}:{last.id}:{last.keep_ms}:{task}" if last.keep_ms else "-"
