"""The `qworker` command: its verbs by section, and the handling of their errors."""

from __future__ import annotations

import sys
from typing import Any, Final

import click

from qworker.cli.framework.commands import LazyCommandGroup
from qworker.cli.framework.context import Session
from qworker.cli.framework.errors import INTERRUPTED, leave_quietly, report
from qworker.cli.framework.streams import open_closed_streams

__all__ = ["cli", "main"]

#: Module of `qworker.cli` → its line in the help. Listing them imports none.
SECTIONS: Final = {
    "Start": {
        "demo": "Watch a real job survive a killed worker.",
        "run": "Run the consumers of an app, and a reaper.",
        "daemon": "Run the reaper: due and timed-out messages, schedules, metrics.",
    },
    "Use": {
        "send": "Send messages from arguments, a file or a pipe.",
        "queue": "List, show, set, peek, pause, resume, purge and remove queues.",
        "message": "Show, move, cancel or delete messages; receive and settle them.",
        "result": "Show the results of messages.",
        "calls": "List and show groups of calls; end one without its callback.",
        "workflow": "List and show runs of workflows; signal, cancel and redrive them.",
        "dead": "List, show, edit, redrive and drop dead letters.",
        "import": "Import waiting messages from RSMQ, RQ or Celery.",
    },
    "Watch": {
        "web": "Serve the dashboard for browsers.",
        "top": "Watch queues, workers and running handlers.",
        "doctor": "Check server, reapers, workers and queues; suggest fixes.",
        "fsck": "Check stored messages for damage, and repair it.",
        "worker": "List workers, drain them, change their number of processes.",
        "task": "List tasks; pause and resume single tasks.",
        "limit": "List, set and remove limits of groups; see which groups wait, and why.",
        "schedule": "List, pause, run and remove schedules.",
    },
    "Look back": {
        "spark": "Archive, audit and report on the journal; send and redrive in bulk.",
    },
    "Set up": {
        "config": "Show the configuration, and where each value comes from.",
        "acl": "Write ACL users with least privilege, by role.",
        "scripts": "List the Lua scripts, and load them onto the servers.",
        "store": "Show, start and stop the embedded store.",
        "completion": "Print the completion script of a shell.",
    },
}


class Root(LazyCommandGroup):
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
        """Run the verb; a reader that closes the pipe early (`| head`) is not an error."""
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
                click.echo(err=True)  # Else the shell prompts behind our question.
            return INTERRUPTED
        except Exception as error:  # noqa: BLE001  any error is one line, never a traceback
            return report(error)
        return code if isinstance(code, int) else 0


def _show_version(context: click.Context, _: click.Parameter, wanted: bool) -> None:
    if not wanted or context.resilient_parsing:
        return
    # Imported here: it costs a third of the start of any other command.
    from importlib.metadata import PackageNotFoundError, version

    try:
        number = version("qworker-redis")
    except PackageNotFoundError:
        number = "(unknown version)"
    click.echo(f"qworker {number}")
    context.exit()


@click.group(
    "qworker",
    cls=Root,
    sections=SECTIONS,
    context_settings={"max_content_width": 100},
    epilog="Global options may come before or after the command. Exit codes: 0 done, 1 failed, 2 bad input, "
    "3 a check found something, 4 no Java, 5 a check cannot tell, 70 watchdog. QWORKER_DEBUG=1 shows tracebacks.",
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
