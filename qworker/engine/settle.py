"""The command that settles received messages."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Final

import msgspec

from qworker.engine.arguments import given, standard_keys
from qworker.engine.command import Command, Word
from qworker.engine.effects import RELAYED, Effect, size_of
from qworker.engine.replies import accepted
from qworker.engine.scripts import load_script
from qworker.wire.keys import QueueKeys

__all__ = [
    "MAX_GROUP",
    "Group",
    "Outcomes",
    "Settled",
    "settle",
]

#: Events of acks for the journal: how many, and their text.
Group = tuple[int, bytes]

_ERROR_BYTES: Final = 2048
#: Bytes of a group, see `lua/lib/journal.lua`.
MAX_GROUP: Final = 16384


@dataclass(slots=True)
class Outcomes:
    """The outcomes of the messages of one lease. `ack_all` acks all that is left in the lease."""

    lease_id: str
    ack_all: bool = False
    acks: list[str | int] = field(default_factory=list)
    #: index, unique key, message id of acked messages that hold a unique key
    uniques: list[Word] = field(default_factory=list)
    #: events of the acks for the journal, in the order of uniques and acks; empty: the script writes them itself
    groups: list[Group] = field(default_factory=list)
    #: How many bytes their effects have.
    effect_bytes: int = 0
    #: Whether some of them concern other queues, and must be relayed.
    relayed: bool = False
    #: Acks with effects, which may be repeated as other acks may.
    _kept: list[Word] = field(default_factory=list)
    _kept_count: int = 0
    _others: list[Word] = field(default_factory=list)
    _count: int = 0

    def __bool__(self) -> bool:
        return bool(self.ack_all or self.acks or self.uniques or self._kept_count or self._count)

    def __len__(self) -> int:
        return len(self.acks) + len(self.uniques) // 3 + self._kept_count + self._count

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
            given(max_receives),
            given(first_received_ms),
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
        limit = given(max_receives)
        self._add("c", index, b=limit, error=error, times=times)

    def release(
        self,
        index: int | str,
        delay_ms: int = 0,
        *,
        started: bool = False,
        unknown_since_ms: int | None = None,
        error: tuple[str, str] = ("", ""),
        times: str = "",
    ) -> None:
        """Give a message back to the head of ready, not counted against max receives; index '*': all that is left.

        `started`: its handler had begun, so it counts as a delivery (`receives`). `unknown_since_ms`: the worker does
        not know its task or key, and this is when a worker first reported that.
        """
        since, begun = given(unknown_since_ms), "1" if started else ""
        self._add("r", index, delay_ms, b=begun, c=since, error=error, times=times)

    def limit(
        self, index: int | str, delay_ms: int, *, of_parent: bool = False, times: str = ""
    ) -> None:
        """Put a started message back uncounted; nothing of its group, or else its queue, is delivered for `delay_ms`.

        `of_parent`: nothing of the parent of its group.
        """
        self._add("l", index, delay_ms, 2 if of_parent else "", times=times)

    def share(self, index: int | str, *, times: str = "") -> None:
        """Report that the worker died while this message and others ran."""
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
        """End a message at the request of its handler."""
        self._add("d", index, times=times)

    def cancel(self, index: int | str, *, times: str = "") -> None:
        """End a message that was cancelled while its handler ran."""
        self._add("k", index, times=times)

    def park(
        self,
        index: int | str,
        delay_ms: int | None,
        name: str,
        signal: str = "",
        *,
        keep_ms: int | None = None,
        times: str = "",
    ) -> None:
        """Let a run sleep for `delay_ms` (None: until it is woken), from when it first did so under this `name`.

        `signal` wakes it. `keep_ms`: how long the state of a run is kept that was not sent as one.
        """
        self._others += ("p", index, given(delay_ms), "", given(keep_ms), name, signal, times)
        self._count += 1

    def ack_with(self, index: int | str, effects: Sequence[Effect], *, times: str = "") -> None:
        """Ack a message; its effects are applied if the ack counts. Frees its unique key, if it has one."""
        self._kept += ("t", index, len(effects), "", "", "", "", times)
        self._kept_count += 1
        for effect in effects:
            self._kept += effect
            self.effect_bytes += size_of(effect)
            self.relayed = self.relayed or effect[0] in RELAYED

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
        text = error[1].encode("utf-8", "replace")[:_ERROR_BYTES]
        name = error[0][:200].encode("utf-8", "replace")
        self._others += (kind, index, a, b, c, name, text, times)
        self._count += 1

    def only_acks(self) -> tuple[Outcomes, int]:
        """Return the acks by themselves, and how many other outcomes there are."""
        acks = Outcomes(self.lease_id, self.ack_all, self.acks, self.uniques, self.groups)
        acks.effect_bytes, acks.relayed = self.effect_bytes, self.relayed
        acks._kept, acks._kept_count = self._kept, self._kept_count
        return acks, self._count

    def words(self) -> list[Word]:
        """Return the outcomes as the scripts read them, see `lua/lib/outcomes.lua`."""
        if self.ack_all:
            words: list[Word] = ["*"]
        else:
            words = [len(self.acks), *self.acks]
        words.append(len(self.uniques) // 3)
        words += self.uniques
        words.append(self._kept_count + self._count)
        words += self._kept
        words += self._others
        words.append(len(self.groups))
        for group in self.groups:
            words += group
        return words


class Settled(msgspec.Struct, frozen=True):
    """Messages settled per lease, and per outcome whether it counted (False: the receipt was stale)."""

    per_lease: tuple[int, ...]
    counted: tuple[bool, ...]
    now_ms: int


def settle(
    keys: QueueKeys,
    outcomes: Sequence[Outcomes],
    *,
    caller: str = "",
    now_ms: int | None = None,
    heavy: bool = False,
) -> Command[Settled]:
    """Settle received messages; returns per outcome whether it counted. `caller` as of `settle_receive`.

    `heavy`: their effects may take more memory than the messages leave, so a full server refuses them.
    """
    args: list[Word] = [given(now_ms), caller, len(outcomes)]
    for outcome in outcomes:
        args += outcome.words()

    def decode(reply: Any) -> Settled:
        _, now, _, per_lease, counted = accepted(reply, keys.queue)
        return Settled(tuple(per_lease), tuple([flag == 1 for flag in counted]), int(now))

    return Command(
        load_script("conclude" if heavy else "settle"),
        standard_keys(keys, *(outcome.lease_id for outcome in outcomes)),
        tuple(args),
        decode,
        settled=lambda: settle(keys, outcomes, caller=caller, heavy=heavy),
    )
