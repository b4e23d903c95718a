"""`qworker doctor`: check everything once, and suggest fixes."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import TYPE_CHECKING, Final

import click

from qworker.cli.framework.commands import VerbCommand, json_option
from qworker.cli.framework.errors import FOUND
from qworker.cli.framework.output import Hanging, Line, Output

if TYPE_CHECKING:
    from qworker.cli.framework.context import Session
    from qworker.health.finding import Finding

__all__ = ["command", "text_of"]

#: How a status is written, and its tone.
_WORDS: Final = {
    "ok": ("ok", "good"),
    "warning": ("warning", "warn"),
    "problem": ("PROBLEM", "bad"),
}
_PATIENCE_S: Final = 2.0


@click.command(cls=VerbCommand)
@click.option("--strict", is_flag=True, help="Exit with 3 on warnings as well.")
@json_option
@click.pass_obj
def command(session: Session, strict: bool) -> Iterator[Output]:
    """Check server, clock, durability, memory, reapers, workers and queues, and suggest fixes.

    Changes nothing. Exit code 3 if there is a problem: messages are lost, stuck or refused. Warnings can wait.
    """
    from qworker.health.finding import Status
    from qworker.health.server import examine

    session.patience_s = _PATIENCE_S
    session.waits_once = True
    findings = []
    for finding in examine(session):
        findings.append(finding)
        yield Output(text=text_of(finding))
    statuses = Counter(finding.status for finding in findings)
    problems, warnings = statuses[Status.PROBLEM], statuses[Status.WARNING]
    yield Output(
        {"healthy": not problems, "findings": [finding.document() for finding in findings]},
        [Line(), _summary(problems, warnings)],
    )
    if problems or (strict and warnings):
        raise click.exceptions.Exit(FOUND)


def text_of(finding: Finding) -> Iterator[Hanging]:
    """Write a finding, and on its own line what to do about it."""
    word, tone = _WORDS[finding.status.value]
    yield Hanging(f"{word:<8} ", f"{finding.check}: {finding.text}", tone)
    if finding.fix:
        yield Hanging("         -> ", finding.fix)


def _summary(problems: int, warnings: int) -> str:
    from qworker.formats import count

    if not problems and not warnings:
        return "nothing to do"
    return f"{count(problems, 'problem')}, {count(warnings, 'warning')}"
