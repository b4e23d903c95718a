"""Steps of chains: those that are left travel in the body of each message, signed and encrypted as any other."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import timedelta
from typing import Final

import msgspec
from msgspec import Raw

from qworker.engine.options import LARGEST_MAXSIZE, SendOptions
from qworker.engine.send import NewMessage
from qworker.engine.settle import Effect, out_effect, push_effect
from qworker.errors import InvalidBodyError
from qworker.wire.codec import check_size, is_too_deep
from qworker.wire.envelope import tail
from qworker.wire.keyring import Keyring

__all__ = ["Step", "end_flag", "following", "next_message", "with_steps"]

#: Gets the task, body and flags of a message that is sent, and may change the flags.
Sending = Callable[[str, bytes, dict[str, str]], None]


class Step(msgspec.Struct, frozen=True, omit_defaults=True):
    """A call that follows another one, whose value is its first argument. `args` are those after it.

    Times in ms, None for the queue's. `keep_ms` is set for the last step, if the result of the chain is kept. `group`
    is a stored name.
    """

    task: str
    queue: str
    id: str
    args: list[Raw] = []
    kwargs: dict[str, Raw] = {}
    priority: int = 0
    delay_ms: int | None = None
    ttl_ms: int | None = None
    max_receives: int | None = None
    visibility_ms: int | None = None
    keep_ms: int | None = None
    group: str = ""


class _Chained(msgspec.Struct):
    """The part of a body that names the steps which follow."""

    then: list[Step] = []


_STEPS: Final = msgspec.json.Decoder(list[Step])
_CHAINED: Final = msgspec.json.Decoder(_Chained)
_encode: Final = msgspec.json.Encoder().encode


def with_steps(body: bytes, steps: Sequence[Step]) -> bytes:
    """Add the steps that follow to the body of a call."""
    return body[:-1] + b',"then":' + _encode(steps) + b"}" if steps else body


def following(body: bytes) -> list[Step]:
    """Read the steps that follow a call; none of a body that names none, or is not a call."""
    try:
        return _CHAINED.decode(body).then
    except msgspec.MsgspecError:
        return []


def end_flag(task: str, steps: Sequence[Step]) -> str:
    """Write the flag j of a step of this task: where the end of the chain is waited for, see `lua/lib/ends.lua`."""
    last = steps[-1]
    return f"{last.queue}:{last.id}:{last.keep_ms}:{task}" if last.keep_ms else "-"


def next_message(
    then: Raw,
    value: bytes,
    *,
    namespace: str,
    queue: str,
    keyring: Keyring,
    trace: str | None = None,
    sending: Sending | None = None,
) -> Effect:
    """Make the message of the next step, as an effect of the ack of a message of `queue`; `value` is its result, JSON.

    Raises `InvalidBodyError` and `BodyTooLargeError`.
    """
    step, *rest = _STEPS.decode(then)
    call: dict[str, object] = {"task": step.task, "args": [Raw(value), *step.args]}
    if step.kwargs:
        call["kwargs"] = step.kwargs
    body = with_steps(_encode(call), rest)
    if is_too_deep(body):
        raise InvalidBodyError("body", "is nested deeper than 64 levels", "return flatter values")
    check_size(body, LARGEST_MAXSIZE)
    flags = {"w": trace} if trace else {}
    for flag, number in (
        ("r", step.keep_ms),
        ("m", step.max_receives),
        ("p", step.priority or None),
        ("v", step.visibility_ms),
    ):
        if number is not None:
            flags[flag] = str(number)
    if step.group:
        flags["g"] = step.group
    if rest:
        flags["j"] = end_flag(step.task, rest)
    if sending is not None:
        sending(step.task, body, flags)
    if keyring:
        body = keyring.protect(namespace, step.queue, step.id, body, flags)
        check_size(body, LARGEST_MAXSIZE)
    message = NewMessage(step.id, tail(body, flags))
    options = SendOptions(
        priority=step.priority, delay=_duration(step.delay_ms), ttl=_duration(step.ttl_ms)
    )
    if step.queue == queue:
        return push_effect(message, options)
    return out_effect(step.queue, message, options)


def _duration(ms: int | None) -> timedelta | None:
    return None if ms is None else timedelta(milliseconds=ms)
