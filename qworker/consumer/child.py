"""A child: the process that holds user code. Started by exec from a supervisor, see `qworker.consumer.supervisor`.

python -m qworker.consumer.child        with its configuration in QWORKER_CHILD
"""

from __future__ import annotations

import ctypes
import os
import signal
import socket
import sys
import threading
from typing import TYPE_CHECKING, Final, NoReturn

import msgspec

from qworker.app.log_context import add_message_fields, mark_records
from qworker.consumer.assembly import assemble, queues_of, shards_of
from qworker.consumer.board import Board, ChildState, boot_time
from qworker.consumer.crash import catch_crashes
from qworker.consumer.failure import failure_text, name_of
from qworker.consumer.forking import ForkGuard, leave_signals_to_supervisor
from qworker.consumer.green import check_unpatched
from qworker.consumer.leftovers import Leftovers
from qworker.consumer.manifest import (
    CONFIG_VARIABLE,
    STACKS,
    STOP,
    ChildConfig,
    Manifest,
    load_app,
    manifest_of,
)
from qworker.consumer.stacks import show_stacks, write_stacks
from qworker.errors import QworkerError
from qworker.store.connection import ConnectionFactory
from qworker.telemetry.guarded import guarded
from qworker.telemetry.logs import configure_logs

if TYPE_CHECKING:
    from qworker.consumer.broker import Broker

__all__ = ["main"]

#: Why a broker stops that has handled as many messages as it was to.
RECYCLED: Final = "recycled"

_log = guarded(__name__)

_PR_SET_PDEATHSIG: Final = 1
_EXIT_NO_APP: Final = 2


def main() -> NoReturn:
    """Run a child until its supervisor stops it, and end the process."""
    parent = os.getppid()
    config = msgspec.json.decode(os.environ.pop(CONFIG_VARIABLE), type=ChildConfig)
    _die_with_parent(parent)
    leave_signals_to_supervisor()
    # They came through an exec; those of handlers are to get none of ours.
    for descriptor in (config.board, config.control, config.stacks):
        if descriptor >= 0:
            os.set_inheritable(descriptor, False)
    configure_logs(config.log_format, config.log_level, processors=[add_message_fields])
    mark_records()
    control = socket.socket(fileno=config.control)
    guard = ForkGuard(control)
    guard.install()
    board = Board(config.board, config.slots)
    catch_crashes(board)
    if config.stacks >= 0:
        show_stacks(config.stacks)
        board.stacks_thread = threading.get_native_id()
    try:
        app = load_app(config.app)
        check_unpatched()
        app.connect_with(ConnectionFactory(config.url, name=f"qworker-{config.number}"))
        queues = queues_of(app, config)
        factory = ConnectionFactory(config.url, name=f"qworker-child-{config.number}")
        shards = shards_of(app, queues, factory)
        _send(control, manifest_of(app, queues, shards, spec=config.app))
        broker = assemble(app, shards, board, config, factory)
        guard.mind(broker)
    except QworkerError as error:
        _send(control, Manifest(error=str(error)))
        _exit(_EXIT_NO_APP)
    threading.Thread(
        target=_mind_control,
        args=(control, board, broker, Leftovers(board), config.stacks),
        name="qworker-control",
        daemon=True,
    ).start()
    board.beat = boot_time()
    board.state = ChildState.READY
    code = 0
    try:
        broker.run()
    except BaseException as error:  # noqa: BLE001 - the process ends with it, whatever it is
        _log.critical("child_failed", error=name_of(error), exception=failure_text(error))
        code = 1
    recycled = broker.why_stopped == RECYCLED
    board.state = ChildState.RECYCLED if recycled else ChildState.STOPPING
    _exit(code)


def _exit(code: int) -> NoReturn:
    """End the process, also if handlers have left threads that never end."""
    for stream in (sys.stdout, sys.stderr):
        try:
            stream.flush()
        except (OSError, ValueError, AttributeError):
            continue  # closed, by whoever reads it or by a handler
    os._exit(code)


def _send(control: socket.socket, manifest: Manifest) -> None:
    control.sendall(msgspec.json.encode(manifest) + b"\n")


def _mind_control(
    control: socket.socket, board: Board, broker: Broker, leftovers: Leftovers, stacks: int
) -> None:
    """Stop when the supervisor says so; end at once when it is gone. Look meanwhile at what handlers leave behind."""
    if board.stacks_thread:
        # No handler runs here, whose calls a signal would interrupt.
        board.stacks_thread = threading.get_native_id()
    control.settimeout(leftovers.every_s)
    while True:
        try:
            word = control.recv(1)
        except TimeoutError:
            try:
                leftovers.look()
            except Exception as error:  # noqa: BLE001 - without this thread the child would not stop
                _log.error("leftovers_not_seen", error=name_of(error))
            continue
        except OSError:
            word = b""
        if word == STACKS:
            try:
                write_stacks(stacks, broker.coroutines())
            except Exception as error:  # noqa: BLE001 - as above
                _log.error("stacks_not_written", error=name_of(error))
        elif word == STOP:
            broker.stop("stopped")
        elif not word:
            # Nobody keeps our leases any more, and nobody would settle them for us.
            os._exit(1)


def _die_with_parent(parent: int) -> None:
    """Ask Linux to kill this process when its parent ends, even while a handler holds the GIL."""
    if sys.platform == "linux":
        ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:
        os._exit(1)  # it ended before we asked


if __name__ == "__main__":
    main()
