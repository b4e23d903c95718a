"""Who relays outboxes, and who runs runs."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any, Final

from verification.interleavings.actors import Actor, Known, Sight, Step, Then
from verification.interleavings.bench import Refused
from verification.interleavings.consumers import effects_of
from verification.interleavings.fixed import Call
from verification.interleavings.flow_calls import entries_of

__all__ = ["Relayer", "Runner"]

_NOTHING: Final = ("", "0")


class Relayer(Actor):
    """Reads the head of the outbox, stores it, and lets it be forgotten once that was answered.

    In doubt it begins again. Known: the lane, the number up to which all is stored, and the entries that it has read.
    """

    def steps(self, known: Known, sight: Sight) -> Iterator[Step]:
        """Read and forget, or store."""
        if not known:
            if sight.view.outbox:
                yield from self.issue(("forward", *_NOTHING), self._read, ())
            return
        lane, number, entries = known
        if not entries:
            yield from self.issue(("forward", lane, number), self._read, ())
            return
        # Entries of one kind are stored by one call.
        kind = entries[0][0]
        some = tuple(entry for at, entry in enumerate(entries) if _alike(entries[: at + 1], kind))
        call = ("store", lane, some)

        def stored(result: Any) -> Known:
            if isinstance(result, Refused):
                return ()
            number = result if isinstance(result, int) else result.number
            left = tuple(entry for entry in entries if int(entry[1]) > number)
            return (lane, str(number), left)

        yield from self.issue(call, stored, ())

    @staticmethod
    def _read(page: Any) -> Known:
        return (page.lane, "0", entries_of(page)) if page.entries else ()


def _alike(entries: Known, kind: str) -> bool:
    return all(entry[0] == kind for entry in entries)


class Runner(Actor):
    """Runs a run: what it does in an activation depends on what it has recalled at its beginning.

    `plan` step: records one step, and ends with its value. wait: waits for the signal `!s`, and ends. gather: begins a
    group, waits for it, and ends. It acks members of groups that it receives.

    Known: (its lease or '', what it has recalled or None, or the name of a member, how far it is, the call in doubt or
    None).
    """

    start: Known = ("", None, 0, None)

    def __init__(
        self,
        name: str,
        plan: str,
        *,
        members: int = 1,
        dies: bool = True,
        faulty: Iterable[str] = (),
    ) -> None:
        super().__init__(name, faulty)
        self._plan, self._members, self._dies = plan, members, dies

    def steps(self, known: Known, sight: Sight) -> Iterator[Step]:
        """Receive, recall, and go on."""
        lease, recalled, at, doubt = known
        if doubt is not None:
            again = (*doubt[:4], 1, doubt[5]) if doubt[0] == "receive" else doubt
            yield from self._issue(again, known)
        elif not lease:
            yield from self._issue(("receive", sight.fresh(self.name), 1, (), 0, 1), known)
        elif recalled is None:
            seen = tuple(sorted(sight.view.runs.get("r", {})))
            yield self.alone("recalls", (lease, seen, 0, None))
        else:
            yield from self._issue(self._next(lease, recalled, at), known)
        if self._dies and known != self.start:
            yield self.alone("dies", self.start)

    def _issue(self, call: Call, known: Known) -> Iterator[Step]:
        yield from self.issue(call, self._answered(call, known), (*known[:3], call))

    def _next(self, lease: str, recalled: Any, at: int) -> Call:
        if isinstance(recalled, str):
            effects = effects_of(recalled, self.name)
            return ("settle", ((lease, (), (("value", "0", effects),), ()),))
        awaited = {"wait": "s", "gather": "gx"}.get(self._plan)
        if self._plan == "step" and at == 0:
            return ("step", lease, "r", "a", self.name)
        if awaited is not None and f"!{awaited}" not in recalled:
            if self._plan == "gather" and at == 0:
                return ("begin", awaited, self._members, self._members, "all", lease)
            return ("settle", ((lease, (), (("park", "0", awaited),), ()),))
        return ("settle", ((lease, (), (("value", "0", (("result", f"ok\n{at}"),)),), ()),))

    def _answered(self, call: Call, known: Known) -> Then:
        lease, recalled, at, _ = known

        def then(result: Any) -> Known:
            if isinstance(result, Refused) or call[0] == "settle":
                return self.start
            if call[0] == "receive":
                if not result.items:
                    return self.start
                name = result.items[0].split(b" ")[1].decode()
                return (result.lease_id, None if name == "r" else name, 0, None)
            return (lease, recalled, at + 1, None)

        return then
