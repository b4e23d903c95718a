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
from typing import TYPE_CHECKING, Any, Final

import msgspec
import structlog

from qworker.client import Client
from qworker.commands import upkeep
from qworker.connection import ConnectionFactory
from qworker.consumer.board import Board, ChildState, boot_time
from qworker.consumer.broker import Broker, BrokerOptions, Notifier
from qworker.consumer.executors import Executor, Inline, Loop, Threads
from qworker.consumer.link import Abandoned, Link
from qworker.consumer.manifest import ChildConfig, Manifest, load_app, manifest_of
from qworker.consumer.measures import Measures
from qworker.consumer.pace import MAX_BATCH, QueuePace
from qworker.consumer.runner import Runner
from qworker.errors import AppLoadError, QworkerError
from qworker.keys import QueueKeys
from qworker.logs import configure_logs
from qworker.scripts import load_script

if TYPE_CHECKING:
    from collections.abc import Sequence

    from qworker.app import QWorker
    from qworker.consumer.delivery import Delivery

__all__ = ["CONFIG_VARIABLE", "STOP", "build_broker", "main"]

#: Where a child finds its configuration.
CONFIG_VARIABLE: Final = "QWORKER_CHILD"
#: The one word that a supervisor says over the control socket.
STOP: Final = b"s"

_log = structlog.get_logger(__name__)

_PR_SET_PDEATHSIG: Final = 1
_MAX_RECEIVES: Final = 5


def main() -> int:
    """Run a child until its supervisor stops it; returns the exit code."""
    parent = os.getppid()
    config = msgspec.json.decode(os.environ.pop(CONFIG_VARIABLE), type=ChildConfig)
    _die_with_parent(parent)
    # A terminal's Ctrl-C reaches the whole group; only the supervisor acts on it.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    configure_logs(config.log_format, config.log_level)
    control = socket.socket(fileno=config.control)
    board = Board(config.board, config.slots)
    try:
        app = load_app(config.app)
        app.connect_with(ConnectionFactory(config.url, name=f"qworker-{config.number}"))
        manifest = manifest_of(app)
        queues = _queues(app, config)
    except (AppLoadError, QworkerError) as error:
        _send(control, Manifest(error=str(error)))
        return 2
    _send(control, manifest)
    broker = build_broker(app, queues, board, config)
    threading.Thread(
        target=_mind_control, args=(control, broker), name="qworker-control", daemon=True
    ).start()
    board.state = ChildState.READY
    board.beat = boot_time()
    try:
        broker.run()
    except Abandoned:
        _log.warning("child_abandoned_server")
    board.state = ChildState.STOPPING
    logging_flush()
    # Handlers may have left threads that never end; nothing of ours is open any more.
    os._exit(0)


def logging_flush() -> None:
    """Let what was printed and logged get out."""
    for stream in (sys.stdout, sys.stderr):
        try:
            stream.flush()
        except OSError:
            continue


def build_broker(app: QWorker, queues: Sequence[str], board: Board, config: ChildConfig) -> Broker:
    """Wire a broker for an app: its queues, executors and connections. Nothing is connected yet."""
    factory = ConnectionFactory(config.url, name=f"qworker-child-{config.number}")
    attributes = _attributes(app, queues, factory)
    paces = [
        QueuePace(
            QueueKeys(app.namespace, name),
            index,
            weight=config.weights.get(name, 1.0),
            visibility_s=(config.visibility_ms or attributes[name][0]) / 1000,
            max_batch=config.max_batch or MAX_BATCH,
        )
        for index, name in enumerate(queues)
    ]
    tasks = {name: task for name, task in app.tasks.items() if task.queue in queues}
    runner = Runner(
        tasks,
        board,
        app.middleware,
        max_receives=lambda name: attributes[name][1] if name in attributes else _MAX_RECEIVES,
        clock=boot_time,
        numbers={name: number for number, name in enumerate(sorted(app.tasks))},
    )
    notifier = Notifier()
    executors, choose, bind = _executors(runner, notifier, config.concurrency)
    scripts = (load_script("settle_receive"), load_script("settle"))

    def beat() -> None:
        board.beat = boot_time()

    def give_up() -> bool:
        return broker.stopping or board.stop

    broker = Broker(
        paces,
        runner,
        choose,
        executors,
        ids=app.client.ids,
        link=Link(factory, scripts, alive=beat, give_up=give_up),
        wait_link=Link(factory, scripts, alive=beat, give_up=give_up),
        notifier=notifier,
        measures=Measures(board, runner.numbers),
        options=BrokerOptions(
            takes_suspects=config.takes_suspects,
            burst=config.burst,
            max_messages=config.max_messages,
            weighted=bool(config.weights),
            visibility_ms=config.visibility_ms,
        ),
    )
    bind(broker)
    return broker


def slots_for(app_has_async: bool, app_has_sync: bool, concurrency: int) -> int:
    """Running slots that a child needs: `concurrency` for each kind of handler; 0 means 1 sync, 100 async."""
    sync, loop = _concurrencies(app_has_sync, app_has_async, concurrency)
    return sync + loop


def _concurrencies(has_sync: bool, has_async: bool, concurrency: int) -> tuple[int, int]:
    return (
        (concurrency or 1) if has_sync or not has_async else 0,
        (concurrency or 100) if has_async else 0,
    )


def _executors(runner: Runner, notifier: Notifier, concurrency: int) -> Any:
    """Choose where handlers run: inline if all are sync and run one at a time, else threads and a loop."""
    has_async = any(task.is_async for task in runner.tasks.values())
    has_sync = any(not task.is_async for task in runner.tasks.values()) or not has_async
    sync_slots, loop_slots = _concurrencies(has_sync, has_async, concurrency)
    bound: list[Broker] = []
    executors: list[Executor] = []
    if has_sync and sync_slots == 1 and not has_async:
        executors.append(Inline(runner, 0, lambda now: bound[0].between(now)))
    elif has_sync:
        executors.append(Threads(runner, 0, sync_slots, notifier))
    if has_async:
        executors.append(Loop(runner, sync_slots, loop_slots, notifier))
    first, last = executors[0], executors[-1]

    def choose_one(delivery: Delivery) -> Executor:
        return first

    def choose(delivery: Delivery) -> Executor:
        task = delivery.task or runner.peek(delivery)
        return last if task is not None and task.is_async else first

    return executors, choose_one if first is last else choose, bound.append


def _attributes(
    app: QWorker, queues: Sequence[str], factory: ConnectionFactory
) -> dict[str, tuple[int, int]]:
    """Read (visibility ms, max receives) of each queue; the defaults where the server cannot be asked now."""
    found: dict[str, tuple[int, int]] = {}
    with Client(factory, give_up_s=5.0) as client:
        for name in queues:
            try:
                meta = client.execute(upkeep.inspect(QueueKeys(app.namespace, name))).meta
            except QworkerError as error:
                _log.warning("attributes_unknown", queue=name, error=str(error))
                meta = {}
            found[name] = (
                int(meta.get("visibility_ms", 30_000)),
                int(meta.get("max_receives", _MAX_RECEIVES)),
            )
    return found


def _queues(app: QWorker, config: ChildConfig) -> list[str]:
    known = list(dict.fromkeys(task.queue for task in app.tasks.values()))
    if not config.queues:
        if not known:
            raise AppLoadError(
                f"app {config.app!r} has no task; decorate a function with @app.task"
            )
        return known
    for name in config.queues:
        if name not in known:
            raise AppLoadError(
                f"no task of {config.app!r} is on queue {name!r}; its queues are {', '.join(known)}"
            )
    return list(config.queues)


def _send(control: socket.socket, manifest: Manifest) -> None:
    control.sendall(msgspec.json.encode(manifest) + b"\n")


def _mind_control(control: socket.socket, broker: Broker) -> None:
    """Stop when the supervisor says so; end at once when it is gone."""
    while True:
        try:
            word = control.recv(1)
        except OSError:
            word = b""
        if word == STOP:
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
    sys.exit(main())
