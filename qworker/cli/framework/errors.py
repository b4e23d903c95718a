"""Errors that end a verb, as one line on stderr and an exit code.

0 done · 1 failed · 2 bad input · 3 a check found something · 4 no Java · 5 a check cannot tell · 70 watchdog ·
130 interrupted.
QWORKER_DEBUG=1 shows the traceback as well.
"""

from __future__ import annotations

import os
import sys
from typing import Final

import click

from qworker.cli.framework.terminal import for_stderr
from qworker.errors import (
    AccessDeniedError,
    AppLoadError,
    ArchiveDamagedError,
    BodyTooLargeError,
    GhostSendError,
    InDoubtError,
    InvalidError,
    JavaMissingError,
    QueueFullError,
    QworkerError,
    UnavailableError,
)
from qworker.formats import safe

__all__ = [
    "BAD_INPUT",
    "FAILED",
    "FOUND",
    "INTERRUPTED",
    "NO_JAVA",
    "UNTOLD",
    "describe",
    "leave_quietly",
    "report",
]

FAILED: Final = 1
BAD_INPUT: Final = 2
FOUND: Final = 3
NO_JAVA: Final = 4
UNTOLD: Final = 5
INTERRUPTED: Final = 130


def describe(error: Exception) -> tuple[str, int]:
    """Return the line for an error, and its exit code."""
    match error:
        case click.UsageError():
            return _usage(error), BAD_INPUT
        case click.ClickException():
            return error.format_message(), error.exit_code
        case InvalidError() | AppLoadError():
            return str(error), BAD_INPUT
        case JavaMissingError():
            return str(error), NO_JAVA
        case ArchiveDamagedError():
            return str(error), UNTOLD
        case QworkerError():
            return _with_advice(error), FAILED
    return (
        f"{type(error).__name__}: {error}; this is a bug in qworker or its environment: "
        "run it again with QWORKER_DEBUG=1, and report the traceback",
        FAILED,
    )


def report(error: Exception) -> int:
    """Print an error that ended a verb; returns the exit code."""
    if os.environ.get("QWORKER_DEBUG") == "1":
        import traceback

        traceback.print_exception(error, file=sys.stderr)
    if isinstance(error, click.exceptions.NoArgsIsHelpError):
        error.show()  # The help of a group that was named without a verb.
        return BAD_INPUT
    text, code = describe(error)
    if isinstance(error, AppLoadError):
        text = _show_traceback(text)
    click.echo("\n".join(for_stderr(safe(f"error: {' '.join(text.split())}"))), err=True)
    return code


def _show_traceback(text: str) -> str:
    """Print the traceback of the user's module if one follows the first line; returns the rest as one text."""
    head, *lines = text.splitlines() or [""]
    for line in lines:
        click.echo(safe(line), err=True)
    frames = [number for number, line in enumerate(lines) if line.startswith(" ")]
    return " ".join([head, *lines[frames[-1] + 1 if frames else 0 :]])


def leave_quietly() -> None:
    """Stop writing to a pipe that was closed: the interpreter would complain about it when it exits."""
    devnull = os.open(os.devnull, os.O_WRONLY)
    for stream in (sys.stdout, sys.stderr):
        try:
            stream.flush()
        except (BrokenPipeError, ValueError):
            os.dup2(devnull, stream.fileno())


def _usage(error: click.UsageError) -> str:
    text = error.format_message().rstrip(".")
    # Sentences of click begin with a capital; ours, and names of parameters, stay as they are.
    if text[1:2].islower():
        text = text[0].lower() + text[1:]
    if error.ctx is None:
        return text
    return f"{text} (see {error.ctx.command_path} --help)"


def _with_advice(error: QworkerError) -> str:
    match error:
        case QueueFullError():
            return (
                f"{error}; add workers, or raise the limit: qworker queue set {error.queue} "
                f"maxlen={2 * error.maxlen}"
            )
        case GhostSendError() | BodyTooLargeError():
            return str(error)
        case InDoubtError():
            why = f" ({error.__cause__})" if error.__cause__ else ""
            return (
                f"the server did not answer in time{why}: the command may or may not have been executed; "
                "run qworker doctor"
            )
        case UnavailableError() | AccessDeniedError():
            return f"{error}; run qworker doctor"
    return str(error)
