"""The server that an app names for itself, read by its own short process: no supervisor imports user code.

python -m qworker.consumer.supervisor.app_url        with its question in QWORKER_CHILD

It is read before the first child starts: the supervisor keeps leases at that server from the start.
"""

from __future__ import annotations

import os
import select
import signal
import subprocess
import time
from typing import TYPE_CHECKING, Final, NoReturn

import msgspec
import structlog

from qworker.consumer.lifetime import (
    command_of,
    die_with_parent,
    environment_with,
    flush_streams,
)
from qworker.consumer.manifest import CONFIG_VARIABLE, load_app
from qworker.consumer.supervisor.processes.descendants import end_session, has_ended
from qworker.errors import AppLoadError, InvalidOptionError, QworkerError
from qworker.store.same_server import same_server
from qworker.store.url import ServerURL
from qworker.telemetry.logs import configure_logs

if TYPE_CHECKING:
    from qworker.telemetry.options import LogOptions

__all__ = ["ask_app_url", "main", "warn_of_app_url"]

_log = structlog.get_logger(__name__)
#: How often to check whether the answering process is alive.
_CHECK_S: Final = 0.2
_WAIT_S: Final = 0.005


class _Question(msgspec.Struct, frozen=True):
    """The app, the descriptor to write the answer to, and the log options of children: apps log at import."""

    app: str
    answer: int
    log_format: str
    log_level: str


class _Answer(msgspec.Struct, frozen=True):
    """The URL, or None; `error`: why the app cannot be imported, or why the URL is invalid."""

    url: ServerURL | None = None
    error: str = ""


def ask_app_url(app: str, logs: LogOptions) -> ServerURL | None:
    """Import `module[:attribute]` in another process, and return the URL that the app was made with, or None.

    Costs an import of the app, whose output is shown. Raises `AppLoadError` if the app cannot be imported, if it ends
    the process, or if its URL is wrong.
    """
    ours, theirs = os.pipe()
    question = _Question(app, theirs, logs.log_format, logs.log_level)
    try:
        try:
            process = subprocess.Popen(
                command_of("qworker.consumer.supervisor.app_url"),
                pass_fds=(theirs,),
                env=environment_with(CONFIG_VARIABLE, msgspec.json.encode(question).decode()),
                stdin=subprocess.DEVNULL,
                # Identifies processes that the app starts at import, which end with it.
                start_new_session=True,
            )
        finally:
            os.close(theirs)
        try:
            line = _read_line(ours, process)
        finally:
            code = _end(process)
    finally:
        os.close(ours)
    if not line:
        from qworker.consumer.supervisor.leases.postmortem import ending_of

        raise AppLoadError(f"a process {ending_of(code)} while it imported the app {app!r}")
    answer = msgspec.json.decode(line, type=_Answer)
    if answer.error:
        raise AppLoadError(answer.error)
    return answer.url


def warn_of_app_url(app_url: str, server: ServerURL) -> None:
    """Log `app_url_not_used` if the URL of a manifest leads to another server than the worker's."""
    if not app_url:
        return
    try:
        if same_server(ServerURL.parse(app_url), server):
            return
    except QworkerError:
        pass  # it names no usable server, and `app_url` says why
    _log.warning("app_url_not_used", app_url=app_url, server=str(server))


def _read_line(source: int, process: subprocess.Popen[bytes]) -> bytes:
    """Read the line that the process writes; b"" if it ends without one, even if the pipe is held open."""
    received = b""
    while True:
        ended = has_ended(process)
        ready = select.select([source], [], [], 0 if ended else _CHECK_S)[0]
        chunk = os.read(source, 65536) if ready else b""
        received += chunk
        if received.endswith(b"\n"):
            return received
        if ended and not chunk:
            return b""
        if ready and not chunk:
            time.sleep(_CHECK_S)  # the app has closed it, and runs on


def _end(process: subprocess.Popen[bytes]) -> int:
    """End the process and the rest of its session; returns its exit code."""
    if not has_ended(process):
        # Not with Popen, which would collect it if it ends just now.
        os.kill(process.pid, signal.SIGKILL)
    while not has_ended(process):
        time.sleep(_WAIT_S)
    # Before its pid is free for another process.
    end_session(process.pid)
    return process.wait()


def main() -> NoReturn:
    """Answer the question of a supervisor, and end the process."""
    parent = os.getppid()
    question = msgspec.json.decode(os.environ.pop(CONFIG_VARIABLE), type=_Question)
    die_with_parent(parent)
    os.set_inheritable(question.answer, False)
    configure_logs(question.log_format, question.log_level)
    try:
        answer = _answer_of(question.app)
    except QworkerError as error:
        answer = _Answer(error=str(error))
    flush_streams()
    os.write(question.answer, msgspec.json.encode(answer) + b"\n")
    # The app may have started threads that never end.
    os._exit(0)


def _answer_of(spec: str) -> _Answer:
    url = load_app(spec).given_url
    try:
        return _Answer(None if url is None else ServerURL.parse(url))
    except InvalidOptionError as error:
        raise AppLoadError(f"the app {spec!r} has an invalid {error}") from error


if __name__ == "__main__":
    main()
