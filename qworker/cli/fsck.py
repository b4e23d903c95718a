"""`qworker fsck`: check what stands in Redis while queues are in use, and repair it."""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Final

import click

from qworker.cli.failures import FOUND
from qworker.cli.parameters import QUEUE
from qworker.cli.screen import (
    Cell,
    Column,
    note,
    print_hanging,
    print_json,
    print_line,
    print_table,
)
from qworker.cli.verbs import Verb, json_option, yes_option

if TYPE_CHECKING:
    from qworker.cli.session import Session
    from qworker.fsck.finding import Finding

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


@click.command(cls=Verb)
@click.argument("queues", type=QUEUE, nargs=-1, metavar="[QUEUE...]")
@click.option("--repair", is_flag=True, help="Repair what is found; it is shown first.")
@yes_option
@json_option
@click.pass_obj
def command(
    session: Session, queues: tuple[str, ...], repair: bool, yes: bool, as_json: bool
) -> None:
    """Check that every message is in one place and all that belongs to it is right; all queues unless some are named.

    Workers, senders and reapers go on meanwhile. A repair deletes no message: what cannot be understood becomes a dead
    letter, and a key of another type is renamed. Exit code 3 if anything was found, repaired or not.
    """
    if repair and not yes and not (sys.stdin.isatty() and sys.stderr.isatty()):
        raise click.UsageError(
            "nobody can be asked without a terminal; give --yes to repair, or leave --repair out to look first"
        )
    for name in queues:
        _check_exists(session, name)
    looked = _Look(session, queues)
    findings = looked.run(repair=repair and yes)
    if repair and not yes and findings:
        from qworker.cli.confirm import confirm
        from qworker.cli.formats import count

        if not as_json:
            _print(findings)
            print_line()
        confirm(f"repair {count(len(findings), 'finding')}?", yes=False)
        findings = looked.run(repair=True)
    if as_json:
        documents = [each.document() for each in findings]
        unchecked = looked.unchecked
        print_json({"clean": not findings, "findings": documents, "unchecked": unchecked})
    else:
        _print(findings)
        for text in looked.unchecked:
            note(text)
        _print_summary(findings, looked.messages)
    if findings:
        raise click.exceptions.Exit(FOUND)


class _Look:
    """One or two runs of the check."""

    def __init__(self, session: Session, queues: Sequence[str]) -> None:
        self._session = session
        self._queues = tuple(dict.fromkeys(queues))
        #: What could not be looked at, of the last run.
        self.unchecked: list[str] = []
        self.messages = 0

    def run(self, *, repair: bool) -> list[Finding]:
        """Check, with a progress bar."""
        from qworker.cli.progress import progress
        from qworker.fsck.check import check

        session = self._session
        findings: list[Finding] = []
        self.unchecked, self.messages = [], 0
        with progress("checking messages", self._total()) as advance:

            def told(more: int) -> None:
                self.messages += more
                advance(more)

            for each in check(
                session.client, session.namespace, self._queues, repair=repair, told=told
            ):
                if isinstance(each, str):
                    self.unchecked.append(each)
                else:
                    findings.append(each)
        return findings

    def _total(self) -> int:
        """About how many messages there are; nothing is counted where nobody sees it."""
        if not sys.stderr.isatty():
            return 0
        from qworker.client.commands.inspecting import Inspection
        from qworker.errors import ServerError

        try:
            seen = self._session.inspect(self._queues or self._session.queues())
        except ServerError:
            return 0  # The registry holds another type, which is told in a moment.
        found = [each for each in seen.values() if isinstance(each, Inspection)]
        return sum(each.stored + each.dead for each in found)


def _check_exists(session: Session, name: str) -> None:
    """Raise `InvalidOptionError` for a queue of which there is neither a key nor an entry."""
    from qworker.wire.keys import QueueKeys

    if not session.ask("EXISTS", *QueueKeys(session.namespace, name).all()):
        session.queue(name)


def _print(findings: Sequence[Finding]) -> None:
    from qworker.cli.formats import count

    if not findings:
        return
    seen: Counter[Any] = Counter()
    rows: list[list[Cell | str]] = []
    advice: dict[str, None] = {}
    for each in findings:
        seen[each.queue, each.kind] += 1
        remedy = each.remedy
        if remedy.then:
            advice[f"{each.kind.value}: {remedy.then}"] = None
        if seen[each.queue, each.kind] <= _LISTED:
            done = Cell(f"done: {remedy.repair}", "good") if each.repaired else remedy.repair
            kind = Cell(each.kind.value, "" if each.repaired else "bad")
            rows.append([each.queue, kind, each.where, each.problem, done])
    print_table(_COLUMNS, rows)
    for (queue, kind), number in seen.items():
        if number > _LISTED:
            print_line(f"{queue}: {count(number - _LISTED)} more of {kind.value} (--json)")
    for text in advice:
        print_hanging("-> ", text)


def _print_summary(findings: Sequence[Finding], messages: int) -> None:
    from qworker.cli.formats import count

    looked = f"{count(messages, 'message')} looked at"
    if gone := sum(each.gone for each in findings):
        written_off = all(each.repaired for each in findings if each.gone)
        what = "are written off" if written_off else "are not counted off yet"
        print_line(f"{count(gone, 'message')} that had been stored are gone, and {what}", "bad")
    if not findings:
        print_line(f"clean: {looked}", "good")
    elif all(each.repaired for each in findings):
        print_line(f"{count(len(findings), 'finding')} repaired, {looked}")
    else:
        print_hanging(
            "", f"{count(len(findings), 'finding')}, {looked}; qworker fsck --repair mends them"
        )
