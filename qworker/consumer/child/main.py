"""A child: the process that holds user code. Started by exec from a supervisor, see `qworker.consumer.supervisor`.

python -m qworker.consumer.child        with its configuration in QWORKER_CHILD
"""

from __future__ import annotations

import os
import socket
import threading
from typing import TYPE_CHECKING, Final, NoReturn

import msgspec

from qworker.app.log_context import add_message_fields, mark_records
from qworker.consumer.board.board import Board
from qworker.consumer.board.clock import boot_time
from qworker.consumer.board.crash import catch_crashes
from qworker.consumer.board.stacks import show_stacks, write_stacks
from qworker.consumer.board.states import ChildState
from qworker.consumer.child.assembly import assemble, queues_of
from qworker.consumer.child.loop import RECYCLED
from qworker.consumer.child.process.forking import ForkGuard, leave_signals_to_supervisor
from qworker.consumer.child.process.green import check_unpatched
from qworker.consumer.child.process.leaks import Leaks
from qworker.consumer.child.queue_settings import open_client, read_shard_names
from qworker.consumer.failure import failure_text, name_of
from qworker.consumer.lifetime import die_with_parent, flush_streams
from qworker.consumer.manifest import (
    CONFIG_VARIABLE,
    STACKS,
    STOP,
    ChildConfig,
    Manifest,
    load_app,
    manifest_of,
)
from qworker.errors import QworkerError
from qworker.store.connections import ConnectionFactory
from qworker.telemetry.guarded import guarded
from qworker.telemetry.logs import configure_logs

if TYPE_CHECKING:
    from qworker.consumer.child.loop import Broker

__all__ = ["main"]

_log = guarded(__name__)

_EXIT_NO_APP: Final = 2


def main() -> NoReturn:
    """Run a child until its supervisor stops it, and end the process."""
    parent = os.getppid()
    config = msgspec.json.decode(os.environ.pop(CONFIG_VARIABLE), type=ChildConfig)
    die_with_parent(parent)
    leave_signals_to_supervisor()
    # They were inherited through exec; programs that handlers start must not inherit them.
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
        with open_client(factory) as client:
            shards = read_shard_names(client, app.namespace, queues)
            _send(control, manifest_of(app, queues, shards, spec=config.app))
            broker = assemble(app, shards, board, config, client)
        guard.protect(broker)
    except QworkerError as error:
        _send(control, Manifest(error=str(error)))
        _exit(_EXIT_NO_APP)
    threading.Thread(
        target=_watch_control,
        args=(control, board, broker, Leaks(board), config.stacks),
        name="qworker-control",
        daemon=True,
    ).start()
    board.beat = boot_time()
    board.state = ChildState.READY
    code = 0
    try:
        broker.run()
    except BaseException as error:  # noqa: BLE001 - any error ends the process
        _log.critical("child_failed", error=name_of(error), exception=failure_text(error))
        code = 1
    recycled = broker.why_stopped == RECYCLED
    board.state = ChildState.RECYCLED if recycled else ChildState.STOPPING
    _exit(code)


def _exit(code: int) -> NoReturn:
    """End the process, even if handlers have left threads that never end."""
    flush_streams()
    os._exit(code)


def _send(control: socket.socket, manifest: Manifest) -> None:
    control.sendall(msgspec.json.encode(manifest) + b"\n")


def _watch_control(
    control: socket.socket, board: Board, broker: Broker, leaks: Leaks, stacks: int
) -> None:
    """Stop when the supervisor asks for it, and end at once when it is gone. Meanwhile check for leaks."""
    if board.stacks_thread:
        # No handler runs in this thread, whose calls a signal would interrupt.
        board.stacks_thread = threading.get_native_id()
    control.settimeout(leaks.every_s)
    while True:
        try:
            word = control.recv(1)
        except TimeoutError:
            try:
                leaks.check()
            except Exception as error:  # noqa: BLE001 - without this thread the child would not stop
                _log.error("leaks_not_checked", error=name_of(error))
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
            # Without the supervisor the leases are neither kept nor settled.
            os._exit(1)
