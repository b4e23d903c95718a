"""Asking before something is destroyed."""

from __future__ import annotations

import sys

import click

from qworker.cli.failures import FAILED
from qworker.cli.formats import safe
from qworker.cli.screen import note

__all__ = ["confirm"]


def confirm(question: str, *, yes: bool) -> None:
    """Ask on the terminal unless `yes`; returns only if the answer is yes.

    Without a terminal nobody can answer: `UsageError` (exit 2) that names --yes. The answer no exits with 1.
    """
    if yes:
        return
    if not (sys.stdin.isatty() and sys.stderr.isatty()):
        raise click.UsageError(
            "nobody can be asked without a terminal; give --yes to do it, or --dry-run to look first"
        )
    if not click.confirm(safe(question), default=False, err=True):
        note("nothing was changed")
        raise click.exceptions.Exit(FAILED)
