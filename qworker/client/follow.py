"""What an ack sends when a call has ended: the message of the next step, or the members of a group of calls."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import msgspec
from msgspec import Raw, Struct

from qworker.chunks import chunks
from qworker.client.steps import ChainStep, Fan, MessageWriter, Past, queues_of
from qworker.engine.arguments import given
from qworker.engine.effects import Effect, member_effect, open_effect, out_effect, push_effect
from qworker.errors import InvalidBodyError
from qworker.formats import size
from qworker.wire.calls import GroupMember, MemberCall, MemberRef, Spec, write_member, write_spec
from qworker.wire.envelope import head

__all__ = ["MAX_NESTED", "NewGroup", "next_effects", "open_fan"]

#: Members and bytes of one spec.
_PART_MEMBERS: Final = 1000
_PART_BYTES: Final = 2**20
#: Bytes of a group that begins in another one, or as a step of a chain.
MAX_NESTED: Final = 8 * 2**20

_STEPS: Final = msgspec.json.Decoder(list[ChainStep])


def next_effects(
    then: Raw, value: bytes, *, queue: str, writer: MessageWriter, past: Sequence[Past] = ()
) -> list[Effect]:
    """Make what follows a call, as effects of the ack of a message of `queue`; `value` is its result, JSON.

    `past`: the call and the steps before it. Raises `InvalidBodyError` and `BodyTooLargeError`.
    """
    step, *rest = _STEPS.decode(then)
    if step.join is not None:
        stored = write_member(value, writer.keyring, writer.namespace, step.join)
        return [member_effect(step.join.queue, step.join.id, step.join.number, stored)]
    if step.fan is not None:
        opened = open_fan(step.fan, rest, writer, value)
        if opened.bytes > MAX_NESTED:
            raise InvalidBodyError(
                "value",
                f"makes {opened.bytes:,} bytes of {opened.size} calls, each of which gets it",
                f"a group in a chain has at most {size(MAX_NESTED)}; return a reference",
            )
        return [open_effect(opened.queue, opened.id, spec) for spec in opened.specs]
    message = writer.message(step, rest, value, past=past)
    if step.queue == queue:
        return [push_effect(message, step)]
    return [out_effect(step.queue, message, step)]


class NewGroup(Struct, frozen=True):
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
    sizes: dict[str, int] = {}


def open_fan(
    fan: Fan,
    rest: Sequence[ChainStep],
    writer: MessageWriter,
    value: bytes | None = None,
    *,
    start: bytes | None = None,
    start_keep_ms: int | None = None,
    run: tuple[str, str, str] | None = None,
) -> NewGroup:
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
    rows = [
        _row(chain, MemberRef(queue, callback.id, number), writer, value, sizes)
        for number, chain in enumerate(fan.members)
    ]
    named = {row.queue for row in rows}
    elsewhere = sorted({name for chain in fan.members for name in queues_of(chain)} - named) or None

    def spec(at: int, some: list[MemberCall | GroupMember]) -> bytes:
        target = None if run is None else (run[1], run[2])
        return write_spec(
            Spec(
                callback.id,
                len(rows),
                fan.policy,
                at,
                some,
                then,
                target,
                start,
                start_keep_ms,
                elsewhere,
                _later_steps(fan, at, len(some)) if fan.cancel_rest else None,
            )
        )

    specs: list[bytes] = []
    ends = [0]
    parts = chunks(rows, _bytes_of, most_bytes=_PART_BYTES, most=_PART_MEMBERS)
    for part in list(parts) or [[]]:
        specs.append(spec(ends[-1], part))
        ends.append(ends[-1] + len(part))
    total = sum(map(_bytes_of, rows))
    return NewGroup(queue, callback.id, len(rows), start or b"", specs, ends[1:], total, sizes)


def _later_steps(fan: Fan, at: int, number: int) -> dict[str, str]:
    """Name the later steps of some members by queue: what their ids have after that of the group."""
    steps: dict[str, str] = {}
    for chain in fan.members[at : at + number]:
        for step in chain[1:]:
            part = step.id.removeprefix(f"{fan.callback.id}.")
            steps[step.queue] = f"{steps.get(step.queue, '')} {part}"
    return steps


def _row(
    chain: Sequence[ChainStep],
    member: MemberRef,
    writer: MessageWriter,
    value: bytes | None,
    sizes: dict[str, int],
) -> MemberCall | GroupMember:
    """Write one member of a group, and note its bodies in `sizes`."""
    first, *others = chain
    after = [*others, ChainStep(join=member)]
    if first.fan is None:
        message = writer.message(first, after, value)
        _note_sizes(sizes, {first.queue: message.size})
        return MemberCall(first.queue, *_words(first), message.tail)
    inner = open_fan(first.fan, after, writer, value)
    if inner.bytes > MAX_NESTED:
        raise InvalidBodyError(
            "group",
            f"has a group with {inner.bytes:,} bytes of calls",
            f"a group in a group has at most {size(MAX_NESTED)}",
        )
    _note_sizes(sizes, inner.sizes)
    return GroupMember(inner.queue, inner.id, inner.specs)


def _note_sizes(sizes: dict[str, int], more: dict[str, int]) -> None:
    for queue, bytes_ in more.items():
        sizes[queue] = max(sizes.get(queue, 0), bytes_)


def _bytes_of(row: MemberCall | GroupMember) -> int:
    return len(row.tail) if isinstance(row, MemberCall) else sum(map(len, row.specs))


def _words(step: ChainStep) -> tuple[int, str, str, str]:
    return (step.priority, str(given(step.delay_ms)), str(given(step.ttl_ms)), head(step.id))
