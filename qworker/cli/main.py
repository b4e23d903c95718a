"""The `qworker` command: its verbs by section, and what happens to errors that nobody caught."""

from __future__ import annotations

import sys
from typing import Any, Final

import click

from qworker.cli.failures import INTERRUPTED, leave_quietly, report
from qworker.cli.session import Session
from qworker.cli.streams import open_closed_streams
from qworker.cli.verbs import LateVerbs

__all__ = ["cli", "main"]

#: Module of `qworker.cli` → its line in the help. Listing them imports none.
SECTIONS: Final = {
    "Start": {
        "demo": "See it work on real input, with a worker killed on the way.",
        "run": "Run the consumers of an app (and a reaper).",
        "daemon": "Run the reaper: due and timed-out messages, schedules, metrics.",
    },
    "Use": {
        "send": "Send messages from arguments, a file or a pipe.",
        "queue": "List, show, set, peek, pause, resume, purge and remove queues.",
        "message": "Show, move, cancel or delete messages; receive and settle by hand.",
        "dead": "List, show, edit, redrive and drop dead letters.",
        "import": "Move waiting messages in from RSMQ, RQ or Celery.",
    },
    "Watch": {
        "top": "Watch queues, workers and running handlers.",
        "doctor": "Check server, reapers, workers and queues; say what to do.",
        "fsck": "Check that every message is in one place, and repair.",
        "worker": "List workers, drain them, change their processes.",
        "task": "List tasks; pause one without its queue, and resume it.",
        "schedule": "List, pause, run and remove schedules.",
    },
    "Look back": {
        "spark": "History, audit, reports, bulk send and redrive, with Spark.",
    },
    "Set up": {
        "config": "Show the configuration, and where each value comes from.",
        "acl": "Write users of the server with least rights, by role.",
        "scripts": "Load the Lua scripts onto the servers, list them.",
        "store": "The embedded store: path, status, start, stop.",
        "completion": "Print the completion script of a shell.",
    },
}


class Root(LateVerbs):
    """The root group; turns what verbs raise into one line and an exit code."""

    def main(self, *args: Any, standalone_mode: bool = True, **extra: Any) -> Any:
        """Run the verb of the arguments and exit the process with its code."""
        code = self._run(*args, **{"prog_name": "qworker", **extra})
        try:
            sys.stdout.flush()
        except BrokenPipeError:
            leave_quietly()
        sys.exit(code)

    def invoke(self, ctx: click.Context) -> Any:
        """Run the verb; whoever stops reading its output has what it wanted (`| head`), and what it did is done."""
        try:
            return super().invoke(ctx)
        except BrokenPipeError:
            leave_quietly()
            return 0

    def _run(self, *args: Any, **extra: Any) -> int:
        try:
            code = super().main(*args, **{**extra, "standalone_mode": False})
        except (click.Abort, KeyboardInterrupt):
            if sys.stderr.isatty():
                click.echo(err=True)  # The prompt of the shell does not stand behind our question.
            return INTERRUPTED
        except Exception as error:  # noqa: BLE001  the last place: told in one line, never a traceback
            return report(error)
        return code if isinstance(code, int) else 0


def _show_version(context: click.Context, _: click.Parameter, wanted: bool) -> None:
    if not wanted or context.resilient_parsing:
        return
    # Only here: it costs a third of the start of any other command.
    from importlib.metadata import PackageNotFoundError, version

    try:
        number = version("qworker-redis")
    except PackageNotFoundError:
        number = "of an unknown version"
    click.echo(f"qworker {number}")
    context.exit()


@click.group(
    "qworker",
    cls=Root,
    sections=SECTIONS,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
    epilog="Global options may stand before or after the verb. Exit codes: 0 done, 1 failed, 2 bad input, "
    "3 a check found something, 4 no Java, 70 watchdog. QWORKER_DEBUG=1 shows tracebacks.",
)
@click.option(
    "--version",
    is_flag=True,
    is_eager=True,
    expose_value=False,
    callback=_show_version,
    help="Show the version.",
)
@click.pass_context
def cli(context: click.Context) -> None:
    """Reliable queues on the Redis or Valkey that you already run."""
    context.call_on_close(context.ensure_object(Session).close)


def main() -> None:
    """Run the command of this process's arguments."""
    open_closed_streams()
    cli.main()
