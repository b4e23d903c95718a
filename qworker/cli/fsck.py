"""`qworker fsck`: check queues in Redis while they are in use, and repair them."""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any, Final

import click

from qworker.cli.framework.commands import VerbCommand, json_option, yes_option
from qworker.cli.framework.errors import FOUND, UNTOLD
from qworker.cli.framework.output import Block, Hanging, Line, Note, Output, Table
from qworker.cli.framework.parameters import QUEUE
from qworker.cli.framework.terminal import Cell, Column

if TYPE_CHECKING:
    from qworker.cli.framework.context import Session
    from qworker.fsck.damage import Damage

__all__ = ["command"]

#: Findings of one kind in one queue that a table lists; --json has all.
_LISTED: Final = 20
_COLUMNS: Final = (
    Column("QUEUE"),
    Column("KIND"),
    Column("WHERE", wide=True),
    Column("PROBLEM", wide=True),
    Column("REPAIR", wide=True),
)


@click.command(cls=VerbCommand)
@click.argument("queues", type=QUEUE, nargs=-1, metavar="[QUEUE...]")
@click.option("--repair", is_flag=True, help="Repair the findings, after showing them.")
@yes_option
@json_option
@click.pass_obj
def command(session: Session, queues: tuple[str, ...], repair: bool, yes: bool) -> Iterator[Output]:
    """Check that every message is stored once, with correct counters and keys, in all queues or those named.

    Workers, senders and reapers can keep running. A repair deletes no message: one that cannot be read becomes a
    dead letter, and a key of the wrong type is renamed. Exit code 3 if anything was found, repaired or not; else 5 if a
    part could not be checked, such as a queue that no node of a Cluster serves. The other queues are checked.
    """
    if repair and not yes and not (sys.stdin.isatty() and sys.stderr.isatty()):
        raise click.UsageError(
            "cannot prompt: not a terminal; pass --yes to repair, or omit --repair to check only"
        )
    for name in queues:
        _check_exists(session, name)
    check = _Check(session, queues)
    damages = check.run(repair=repair and yes)
    repairable = [damage for damage in damages if damage.left is None]
    if repair and not yes and repairable:
        from qworker.cli.framework.confirm import confirm
        from qworker.formats import count

        yield Output(text=[*_listing(damages), Line()])
        confirm(f"Repair {count(len(repairable), 'finding')}?", yes=False)
        damages = check.run(repair=True)
    yield Output(
        {
            "clean": not damages and not check.unchecked,
            "findings": [damage.document() for damage in damages],
            "unchecked": check.unchecked,
        },
        [*_listing(damages), *map(Note, check.unchecked), *_summary(damages, check)],
    )
    if damages or check.unchecked:
        raise click.exceptions.Exit(FOUND if damages else UNTOLD)


def _check_exists(session: Session, name: str) -> None:
    """Raise an error if there is no such queue. The check itself names one that no node serves now."""
    from qworker.errors import RetryRule, ServerError

    try:
        session.queues.get(name)
    except ServerError as error:
        if not session.server.clustered or error.retry is RetryRule.NEVER:
            raise


class _Check:
    """One or two runs of the check."""

    def __init__(self, session: Session, queues: Sequence[str]) -> None:
        self._session = session
        self._queues = tuple(dict.fromkeys(queues))
        #: What the last run could not read.
        self.unchecked: list[str] = []
        self.messages = 0
        #: Whether the last run has repaired what it could.
        self.repaired = False

    def run(self, *, repair: bool) -> list[Damage]:
        """Check, with a progress bar."""
        from qworker.cli.framework.progress import progress
        from qworker.fsck.check import check

        session = self._session
        damages: list[Damage] = []
        self.unchecked, self.messages, self.repaired = [], 0, repair
        with progress("checking messages", self._total()) as advance:

            def count(messages: int) -> None:
                self.messages += messages
                advance(messages)

            for result in check(
                session.client, session.namespace, self._queues, repair=repair, on_progress=count
            ):
                if isinstance(result, str):
                    self.unchecked.append(result)
                else:
                    damages.append(result)
        return damages

    def _total(self) -> int:
        """Estimate the number of messages for the progress bar; 0 if there is no terminal to draw it."""
        if not sys.stderr.isatty():
            return 0
        from qworker.client.inspect.peek import Inspection
        from qworker.errors import ServerError

        try:
            inspections = self._session.queues.inspect(self._queues or None)
        except ServerError:
            return 0  # The index holds another type: the check reports it.
        return sum(
            queue.stored + queue.dead
            for queue in inspections.values()
            if isinstance(queue, Inspection)
        )


def _listing(damages: Sequence[Damage]) -> Iterator[str | Block]:
    from qworker.formats import count

    if not damages:
        return
    numbers: Counter[Any] = Counter()
    rows: list[list[Cell | str]] = []
    advice: dict[str, None] = {}
    for damage in damages:
        numbers[damage.queue, damage.kind] += 1
        remedy = damage.remedy
        if remedy.then:
            advice[f"{damage.kind.value}: {remedy.then}"] = None
        if numbers[damage.queue, damage.kind] <= _LISTED:
            done = Cell(f"done: {remedy.repair}", "good") if damage.repaired else remedy.repair
            kind = Cell(damage.kind.value, "" if damage.repaired else "bad")
            rows.append([damage.queue, kind, damage.where, damage.problem, done])
    yield Table(_COLUMNS, rows)
    for (queue, damage_kind), number in numbers.items():
        if number > _LISTED:
            yield f"{queue}: {count(number - _LISTED)} more of {damage_kind.value} (--json)"
    for text in advice:
        yield Hanging("-> ", text)


def _summary(damages: Sequence[Damage], check: _Check) -> Iterator[Block]:
    from qworker.formats import count

    checked = f"{count(check.messages, 'message')} checked"
    if gone := sum(damage.gone for damage in damages):
        written_off = all(damage.repaired for damage in damages if damage.gone)
        what = "gone and written off" if written_off else "gone, and not written off yet"
        yield Line(f"{count(gone, 'stored message')} {what}", "bad")
    if not damages and check.unchecked:
        yield Line(f"nothing found, {checked}, but not everything could be checked", "warn")
    elif not damages:
        yield Line(f"clean: {checked}", "good")
    else:
        yield Hanging("", _found(damages, checked, repaired=check.repaired))


def _found(damages: Sequence[Damage], checked: str, *, repaired: bool) -> str:
    """What was found, and what a repair has done or would do about it."""
    from qworker.formats import count

    left = sum(damage.left is not None for damage in damages)
    others = len(damages) - left
    if repaired:
        return f"{count(others, 'finding')} repaired, {f'{left} left, ' * bool(left)}{checked}"
    found = f"{count(len(damages), 'finding')}, {checked}; qworker fsck --repair"
    if not left:
        return f"{found} repairs them"
    return f"{found} repairs {others} of them" if others else f"{found} leaves them"
