"""Ask before something is destroyed."""

from __future__ import annotations

import sys

import click

from qworker.cli.framework.errors import FAILED
from qworker.cli.framework.terminal import note
from qworker.formats import safe

__all__ = ["confirm"]


def confirm(question: str, *, yes: bool) -> None:
    """Ask on the terminal unless `yes`; returns only if the answer is yes.

    Without a terminal: `UsageError` (exit 2) that names --yes. The answer no exits with 1.
    """
    if yes:
        return
    if not (sys.stdin.isatty() and sys.stderr.isatty()):
        raise click.UsageError("cannot prompt: not a terminal; pass --yes")
    if not click.confirm(safe(question), default=False, err=True):
        note("nothing was changed")
        raise click.exceptions.Exit(FAILED)
