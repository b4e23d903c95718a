"""Commands that receive messages and settle received ones."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import IntEnum
from typing import Any, Final

from qworker.client.commands.command import Command, Word
from qworker.client.commands.replies import accepted
from qworker.store.scripts import load_script
from qworker.wire.keys import QueueKeys

__all__ = [
    "PAUSED",
    "UNKNOWN",
    "Batch",
    "Outcomes",
    "Settled",
    "Suspects",
    "extend",
    "settle",
    "settle_receive",
    "split",
    "standard_keys",
]

#: Values of `Batch.hint_ms` that are no time.
PAUSED: Final = -1
UNKNOWN: Final = -2

_ERROR_BYTES: Final = 2048
#: Bytes of the lines of one journal entry, see `lua/lib/journal.lua`.
_MAX_LINES: Final = 16384


class Suspects(IntEnum):
    """Whether a receive may take a suspect: a message that is delivered alone."""

    NEVER = 0
    IF_NOTHING_ELSE = 1
    FIRST = 2


@dataclass(slots=True)
class Outcomes:
    """What the messages of one lease came to. `ack_all` acks whatever is left in the lease."""

    lease_id: str
    ack_all: bool = False
    acks: list[str | int] = field(default_factory=list)
    #: index, unique key, message id of acked messages that hold a unique key
    uniques: list[Word] = field(default_factory=list)
    #: what the journal shall say of the acked messages: a line for each, in the order of uniques and acks; empty: the
    #: script finds out
    lines: bytes = b""
    _others: list[Word] = field(default_factory=list)
    _count: int = 0

    def __bool__(self) -> bool:
        return bool(self.ack_all or self.acks or self.uniques or self._count)

    def __len__(self) -> int:
        return len(self.acks) + len(self.uniques) // 3 + self._count

    def nack(
        self,
        index: int | str,
        delay_ms: int,
        *,
        max_receives: int | None = None,
        first_received_ms: int | None = None,
        error: tuple[str, str] = ("", ""),
        times: str = "",
    ) -> None:
        """Count a failure; the message comes back after `delay_ms`, or is dead at max receives."""
        self._add(
            "n",
            index,
            delay_ms,
            "" if max_receives is None else max_receives,
            "" if first_received_ms is None else first_received_ms,
            error,
            times,
        )

    def crash(
        self,
        index: int | str,
        *,
        max_receives: int | None = None,
        error: tuple[str, str] = ("", ""),
        times: str = "",
    ) -> None:
        """Count a failure that ended the worker; the message is delivered alone from now on, or is dead."""
        limit = "" if max_receives is None else max_receives
        self._add("c", index, b=limit, error=error, times=times)

    def release(self, index: int | str, delay_ms: int = 0, *, times: str = "") -> None:
        """Give a message back uncounted, to the head of ready; index '*' gives back all that is left."""
        self._add("r", index, delay_ms, times=times)

    def share(self, index: int | str, *, times: str = "") -> None:
        """Say that the worker died while this message and others ran."""
        self._add("s", index, times=times)

    def bury(
        self,
        index: int | str,
        reason: str,
        error: tuple[str, str] = ("", ""),
        *,
        times: str = "",
    ) -> None:
        """Move a message to the dead letters; `reason` is one word of a-z and _."""
        self._add("b", index, reason, error=error, times=times)

    def discard(self, index: int | str, *, times: str = "") -> None:
        """End a message by the handler's wish."""
        self._add("d", index, times=times)

    def expire(self, index: int | str) -> None:
        """End a message whose time to live is over."""
        self._add("e", index)

    def _add(
        self,
        kind: str,
        index: int | str,
        a: Word = "",
        b: Word = "",
        c: Word = "",
        error: tuple[str, str] = ("", ""),
        times: str = "",
    ) -> None:
        words = error[1].encode("utf-8", "replace")[:_ERROR_BYTES]
        name = error[0][:200].encode("utf-8", "replace")
        self._others += (kind, index, a, b, c, name, words, times)
        self._count += 1

    def words(self) -> list[Word]:
        """Write the outcomes as the scripts read them, see `lua/lib/outcomes.lua`."""
        if self.ack_all:
            words: list[Word] = ["*"]
        else:
            words = [len(self.acks), *self.acks]
        words.append(len(self.uniques) // 3)
        words += self.uniques
        words.append(self._count)
        words += self._others
        chunks = _chunks(self.lines)
        words.append(len(chunks))
        for number, lines in chunks:
            words += (number, lines)
        return words


def _chunks(lines: bytes) -> list[tuple[int, bytes]]:
    """Cut lines into texts of at most 16 KiB, each with the number of its lines; a longer line is cut."""
    chunks: list[tuple[int, bytes]] = []
    while len(lines) > _MAX_LINES:
        # The newline behind the last line that fits.
        end = lines.rfind(b"\n", 0, _MAX_LINES + 1)
        if end < 0:
            line, _, lines = lines.partition(b"\n")
            some = line[:_MAX_LINES]
        else:
            some, lines = lines[:end], lines[end + 1 :]
        chunks.append((some.count(b"\n") + 1, some))
    if lines:
        chunks.append((lines.count(b"\n") + 1, lines))
    return chunks


@dataclass(frozen=True, slots=True)
class Batch:
    """One delivered lease. `items` are the envelopes as stored, `indices` their places in the lease.

    `hint_ms`: 0 more is ready · n the next delayed message is due in n ms · `PAUSED` · `UNKNOWN`.
    `alone`: the one message is a suspect; `suspects` more wait. `settled`: messages settled per lease of the call.
    `journal`: it is written, and takes lines of what is acked.
    """

    lease_id: str
    items: list[bytes]
    indices: list[str]
    now_ms: int
    deadline_ms: int
    ready_left: int
    hint_ms: int
    alone: bool
    degraded: bool
    settled: tuple[int, ...]
    suspects: int = 0
    journal: bool = False


@dataclass(frozen=True, slots=True)
class Settled:
    """Messages settled per lease, and per outcome whether it counted (False: the receipt was stale)."""

    per_lease: tuple[int, ...]
    counted: tuple[bool, ...]
    now_ms: int


def standard_keys(keys: QueueKeys, *lease_ids: str) -> tuple[str, ...]:
    """Declare the keys of `lua/lib/keys.lua`, with the leases of the call at the end."""
    return (
        *keys.ready,
        keys.suspect,
        keys.delayed,
        keys.unacked,
        keys.wake,
        keys.dead,
        keys.meta,
        keys.stats,
        keys.unique,
        keys.cancelled,
        keys.journal,
        *(keys.lease(lease_id) for lease_id in lease_ids),
    )


def settle_receive(
    keys: QueueKeys,
    lease_id: str,
    count: int,
    *,
    outcomes: Sequence[Outcomes] = (),
    visibility_ms: int | None = None,
    suspects: Suspects = Suspects.IF_NOTHING_ELSE,
    who: str = "",
    now_ms: int | None = None,
    resume: bool = False,
) -> Command[Batch]:
    """Settle `outcomes`, then receive up to `count` messages into the new lease, in one trip.

    A repetition settles again (idempotent) and returns what the lease holds, without creating it. `who` makes the call,
    `<host>:<pid>`, for the journal.
    """
    args: list[Word] = [
        "" if now_ms is None else now_ms,
        int(resume),
        count,
        "" if visibility_ms is None else visibility_ms,
        int(suspects),
        who,
        len(outcomes),
    ]
    for outcome in outcomes:
        args += outcome.words()

    def decode(reply: Any) -> Batch:
        answer = accepted(reply, keys.queue)
        _, now, deadline, left, hint, alone, degraded, settled, items, indices, suspects, on = (
            answer
        )
        if not indices:
            number = len(items)
            indices = ["0"] if number == 1 else [str(index) for index in range(1, number + 1)]
        else:
            indices = [index.decode() for index in indices]
        return Batch(
            lease_id,
            items,
            indices,
            int(now),
            int(deadline),
            left,
            int(hint),
            alone == 1,
            degraded == 1,
            tuple(settled),
            suspects,
            on == 1,
        )

    return Command(
        load_script("settle_receive"),
        standard_keys(keys, *(outcome.lease_id for outcome in outcomes), lease_id),
        tuple(args),
        decode,
        resume_at=None if resume or count == 0 else 1,
    )


def settle(
    keys: QueueKeys, outcomes: Sequence[Outcomes], *, who: str = "", now_ms: int | None = None
) -> Command[Settled]:
    """Settle received messages and say of each outcome whether it counted; `who` as of `settle_receive`."""
    args: list[Word] = ["" if now_ms is None else now_ms, who, len(outcomes)]
    for outcome in outcomes:
        args += outcome.words()

    def decode(reply: Any) -> Settled:
        _, now, _, per_lease, counted = accepted(reply, keys.queue)
        return Settled(tuple(per_lease), tuple(each == 1 for each in counted), int(now))

    return Command(
        load_script("settle"),
        standard_keys(keys, *(outcome.lease_id for outcome in outcomes)),
        tuple(args),
        decode,
    )


def extend(
    keys: QueueKeys, lease_ids: Sequence[str], visibility_ms: int, *, now_ms: int | None = None
) -> Command[dict[str, int]]:
    """Move deadlines to `visibility_ms` from now, never nearer. Returns lease id → deadline ms, 0 for a lease
    that is gone.
    """

    def decode(reply: Any) -> dict[str, int]:
        answer = accepted(reply, keys.queue)
        return dict(zip(lease_ids, (int(each) for each in answer[2:]), strict=True))

    return Command(
        load_script("extend"),
        (keys.unacked, keys.meta),
        ("" if now_ms is None else now_ms, visibility_ms, *lease_ids),
        decode,
    )


def split(
    keys: QueueKeys,
    lease_id: str,
    index: int | str,
    new_lease_id: str,
    visibility_ms: int | None,
    *,
    half: bool = False,
    now_ms: int | None = None,
) -> Command[int]:
    """Give one message a lease of its own. Returns its deadline ms; 0 where the receipt is stale.

    `visibility_ms` None takes the message's own, else the queue's. With `half` the reply raises `TooLateError` where
    half of its time to live is over.
    """

    def decode(reply: Any) -> int:
        return int(accepted(reply, keys.queue)[2])

    return Command(
        load_script("split"),
        (keys.unacked, keys.meta, keys.lease(lease_id), keys.lease(new_lease_id)),
        (
            "" if now_ms is None else now_ms,
            index,
            "" if visibility_ms is None else visibility_ms,
            *([1] if half else []),
        ),
        decode,
    )
