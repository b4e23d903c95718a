"""Runs the demo, from the input to the exit code."""

from __future__ import annotations

import json
import os
import shutil
import signal
import sys
from typing import TYPE_CHECKING, Final

from qworker.demo.app import NAMESPACE, check_file
from qworker.demo.history import check_history, make_history
from qworker.demo.run import Demo
from qworker.demo.sources import MAX_FILES, find_sources
from qworker.demo.view import choose_view
from qworker.store.embedded.store import PrivateStore
from qworker.telemetry.logs import configure_logs

if TYPE_CHECKING:
    from pathlib import Path

    from qworker.demo.history import History
    from qworker.demo.outcome import DemoResult
    from qworker.demo.view import DemoOutput

__all__ = ["INTERRUPTED", "run_demo", "typed_command"]

INTERRUPTED: Final = 130
#: Maximum files of an environment if Spark follows, which takes time as well.
_MAX_JOURNALLED: Final = 2000


def run_demo(
    path: str | os.PathLike[str] | None,
    *,
    json: bool = False,
    procs: int | None = None,
    keep: bool = False,
    history: Path | None = None,
) -> int:
    """Index the Python source code below `path`, or the standard library's, and print the account.

    `json`: the last line of stdout is one JSON object, and text for people goes to stderr. `procs`: worker processes,
    None for one per core (2 to 8). `keep`: leave the store running until Ctrl-C. `history`: journal the run, and
    archive, report on and audit it with Spark, in this directory. SIGTERM stops it as Ctrl-C does. Returns the exit
    code: 0, 1 if a message is lost or the run stalled, 130 after Ctrl-C. Raises `InvalidOptionError` for a wrong path,
    `StoreError` if there is no server, `SparkMissingError` and `JavaMissingError`.
    """
    sources = find_sources(path, most=MAX_FILES if history is None else _MAX_JOURNALLED)
    if history is not None:
        check_history(history)
    view = choose_view(stderr=json)
    configure_logs("auto", "error")
    before = signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        with (
            PrivateStore() as store,
            Demo(
                store,
                sources,
                view,
                procs=procs or _default_procs(),
                journalled=history is not None,
            ) as demo,
        ):
            demo.send()
            demo.work()
            outcome = demo.outcome()
            view.end(outcome)
            audited = None
            if history is not None and not outcome.stopped:
                audited = make_history(store.url, history, view)
            _conclude(view, outcome, store, keep=keep)
            if json:
                _print_json(outcome, audited)
            if keep and not demo.interrupted:
                _wait()
            code = outcome.exit_code or (audited.exit_code if audited is not None else 0)
            return INTERRUPTED if demo.interrupted else code
    except KeyboardInterrupt:
        view.say(
            "interrupted: the workers and the store are stopped, nothing is left running", "bad"
        )
        return INTERRUPTED
    finally:
        signal.signal(signal.SIGTERM, before)


def _print_json(outcome: DemoResult, history: History | None) -> None:
    """Print the outcome as one line of JSON; with a history the history, which holds the outcome as `demo`."""
    document = outcome.document()
    if history is not None:
        document = {**history.document(), "demo": document}
    print(json.dumps(document), flush=True)  # noqa: T201


def _conclude(view: DemoOutput, outcome: DemoResult, store: PrivateStore, *, keep: bool) -> None:
    index = outcome.index
    if outcome.stopped:
        view.say(f"{outcome.stopped}; the workers are stopped, nothing is left running", "bad")
        return
    if outcome.account.lost:
        some = ", ".join(sorted(outcome.account.lost)[:5])
        view.say(f"LOST: {some} … This must not happen: please report it.", "bad")
    imports = ", ".join(f"{name} {number:,}" for name, number in index.imports)
    view.say(
        f"The index: {index.files:,} files, {index.lines:,} lines, {index.classes:,} classes, "
        f"{index.functions:,} functions."
    )
    if imports:
        view.say(f"Most imported: {imports}.")
    view.say("")
    if keep:
        view.say("The store runs until you press Ctrl-C. In another terminal:", "title")
        at = f"{typed_command()} --url {store.url} --namespace {NAMESPACE}"
        view.say(f"  {at} queue ls")
        view.say(f"  {at} dead ls {check_file.queue}")
        view.say(f"  {at} dead redrive {check_file.queue} --all --dry-run")
        return
    view.say("Next:", "title")
    command = typed_command()
    for step, words in (
        (
            f"{command} demo --keep",
            "leave the store running; redrive dead letters",
        ),
        (f"{command} demo PATH", "the same for your own code"),
        ("docs/getting-started.md", "your own tasks, in five minutes"),
    ):
        view.say(f"  {step:<{len(command) + 22}}{words}")


def typed_command() -> str:
    """Return how you can type the command: `make demo` installs it into `.venv`, where no shell looks."""
    if shutil.which("qworker"):
        return "qworker"
    started = sys.argv[0]
    return started if os.path.basename(started) == "qworker" else f"{sys.executable} -m qworker"


def _wait() -> None:
    """Wait for Ctrl-C."""
    try:
        signal.pause()
    except KeyboardInterrupt:
        return


def _default_procs() -> int:
    try:
        cores = len(os.sched_getaffinity(0))
    except AttributeError:
        cores = os.cpu_count() or 1
    # At least two, so that one can be killed while another runs.
    return min(8, max(2, cores))
