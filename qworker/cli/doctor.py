"""`qworker doctor`: check everything once, and say what to do."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import click

from qworker.cli.failures import FOUND
from qworker.cli.screen import print_hanging, print_json, print_line
from qworker.cli.verbs import Verb, json_option

if TYPE_CHECKING:
    from qworker.cli.finding import Finding
    from qworker.cli.session import Session

__all__ = ["command", "print_finding"]

#: How a status is written, and its tone.
_WORDS: Final = {
    "ok": ("ok", "good"),
    "warning": ("warning", "warn"),
    "problem": ("PROBLEM", "bad"),
}
_PATIENCE_S: Final = 2.0


@click.command(cls=Verb)
@click.option("--strict", is_flag=True, help="A warning gives exit code 3 as well.")
@json_option
@click.pass_obj
def command(session: Session, strict: bool, as_json: bool) -> None:
    """Check server, clock, durability, memory, reapers, workers and queues; say what to do.

    Changes nothing. Exit code 3 if there is a problem: messages are lost, stuck or refused. A warning is for the day.
    """
    from qworker.cli.checks import examine
    from qworker.cli.finding import Status

    session.patience_s = _PATIENCE_S
    findings = []
    for finding in examine(session):
        findings.append(finding)
        if not as_json:
            print_finding(finding)
    number = {status: sum(each.status is status for each in findings) for status in Status}
    healthy = not number[Status.PROBLEM]
    if as_json:
        print_json({"healthy": healthy, "findings": [each.document() for each in findings]})
    else:
        print_line()
        print_line(_summary(number[Status.PROBLEM], number[Status.WARNING]))
    if not healthy or (strict and number[Status.WARNING]):
        raise click.exceptions.Exit(FOUND)


def print_finding(finding: Finding) -> None:
    """Print what a check found, and on a line of its own what to do."""
    word, tone = _WORDS[finding.status.value]
    print_hanging(f"{word:<8} ", f"{finding.check}: {finding.text}", tone)
    if finding.fix:
        print_hanging("         -> ", finding.fix)


def _summary(problems: int, warnings: int) -> str:
    from qworker.cli.formats import count

    if not problems and not warnings:
        return "nothing to do"
    return f"{count(problems, 'problem')}, {count(warnings, 'warning')}"
