"""Puts a child's broker together: queues, runner, executors, connections."""

from __future__ import annotations

import os
import socket
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, Final, cast

from qworker.client.execute.backoff import AwayServers
from qworker.client.follow import next_effects
from qworker.client.steps import MessageWriter, Past, past_of
from qworker.consumer.board.clock import boot_time, since_of
from qworker.consumer.child.at_most_once import AckFirst
from qworker.consumer.child.connection import Connection
from qworker.consumer.child.dispatch import Dispatcher
from qworker.consumer.child.handlers.encrypted import EncryptedEndings, EncryptedPreparer
from qworker.consumer.child.handlers.endings import Endings
from qworker.consumer.child.handlers.event_loop import HandlerLoop
from qworker.consumer.child.handlers.executor import Executor
from qworker.consumer.child.handlers.inline import Inline
from qworker.consumer.child.handlers.preparation import Preparer
from qworker.consumer.child.handlers.runner import Runner
from qworker.consumer.child.handlers.threads import Threads
from qworker.consumer.child.handlers.unrunnable import Patience
from qworker.consumer.child.leases.batch_size import MAX_BATCH, Pace, QueueState
from qworker.consumer.child.leases.board_slots import ChildLeases
from qworker.consumer.child.loop import Broker, BrokerOptions
from qworker.consumer.child.notifier import Waker
from qworker.consumer.child.queue_settings import read_paused_for, read_settings
from qworker.consumer.child.receive.doorbells import make_doorbells
from qworker.consumer.child.receive.fetch import Fetcher, FetchOptions
from qworker.consumer.child.settle.ack_buffer import AckBuffer
from qworker.consumer.child.settle.relaying import ChildRelay
from qworker.consumer.child.settle.stats import HandlerStats
from qworker.consumer.child.stop_request import StopRequest
from qworker.consumer.manifest import ASYNC_SLOTS, SYNC_SLOTS
from qworker.engine.scripts import load_script
from qworker.errors import AppLoadError
from qworker.store.connections import ConnectionFactory
from qworker.telemetry.logger import logger
from qworker.wire.keys import QueueKeys
from qworker.wire.result import write_value

if TYPE_CHECKING:
    from qworker.app.app import QWorker
    from qworker.app.middleware import Middleware
    from qworker.app.task import Task
    from qworker.client.execute.sync import Client
    from qworker.consumer.board.board import Board
    from qworker.consumer.child.leases.delivery import Delivery
    from qworker.consumer.child.queue_settings import QueueSettings
    from qworker.consumer.manifest import ChildConfig
    from qworker.engine.effects import Effect

    Tasks = dict[str, Task[..., Any]]

__all__ = ["assemble", "queues_of"]

_log = logger(__name__)

#: In a Cluster, how long to wait for a node before the others have their turn.
_PATIENCE_S: Final = 0.6


def queues_of(app: QWorker, config: ChildConfig) -> list[str]:
    """Return the queues to receive from, best first. Raises `AppLoadError` if the app has no task on one."""
    known = list(dict.fromkeys(task.queue for task in app.tasks.values()))
    if not known:
        raise AppLoadError(f"app {config.app!r} has no task; decorate a function with @app.task")
    for name in config.queues:
        if name not in known:
            raise AppLoadError(
                f"no task of {config.app!r} is on queue {name!r}; its queues are {', '.join(known)}"
            )
    return list(config.queues) or known


def assemble(
    app: QWorker,
    shards: Sequence[str],
    board: Board,
    config: ChildConfig,
    client: Client,
) -> Broker:
    """Make the broker of an app that receives from these shards of queues, best first.

    `client` reads attributes of the queues, and paused tasks; the broker's own connections are opened by its first use.
    """
    factory = client.factory
    keys = [QueueKeys(app.namespace, shard) for shard in shards]
    names = list(dict.fromkeys(shard.name for shard in keys))
    settings = read_settings(client, app.namespace, names)
    # The supervisor sets paused tasks too, but only after some of them might have run.
    board.orders.pause(since_of(sorted(app.tasks), read_paused_for(client, app.namespace)))
    tasks = {name: task for name, task in app.tasks.items() if task.queue in settings}
    queues = _queue_states(keys, tasks, settings, config)
    numbers = {name: number for number, name in enumerate(sorted(app.tasks))}
    runner = _runner(app, tasks, numbers, board, settings, config)
    notifier = Waker()
    executors = _executors(app, runner, notifier, config)
    if len(executors) > 1:
        runner.on_async = partial(_divide, queues, tasks.values(), executors)
        runner.on_async()
    stop = StopRequest(board, notifier)
    connect = _connector(board, stop, factory)
    connection = connect(_PATIENCE_S)
    leases = ChildLeases(board)
    stats = HandlerStats(board, numbers, _message_log(config))
    ids = app.client.ids
    caller = f"{socket.gethostname()}:{os.getppid()}"
    relay = ChildRelay(app.client, app.namespace)
    ack_buffer = AckBuffer(leases, connection, stats, ids, caller=caller, relay=relay)
    fetcher = Fetcher(
        queues,
        leases,
        ack_buffer,
        connection,
        make_doorbells(queues, partial(connect, 0.0), clustered=factory.clustered),
        ids,
        _fetch_options(executors, config, clustered=factory.clustered),
    )
    ack_first = AckFirst(runner, fetcher, ack_buffer, connection, stats)
    return Broker(
        runner,
        Dispatcher(runner, executors, fetcher, ack_buffer, ack_first),
        fetcher,
        ack_buffer,
        leases,
        stats,
        notifier,
        stop,
        BrokerOptions(burst=config.burst, max_messages=config.max_messages),
    )


def _fetch_options(
    executors: Sequence[Executor], config: ChildConfig, *, clustered: bool
) -> FetchOptions:
    return FetchOptions(
        slots=sum(executor.slots for executor in executors),
        takes_suspects=config.takes_suspects,
        weighted=bool(config.weights),
        visibility_ms=config.visibility_ms,
        clustered=clustered,
    )


def _queue_states(
    keys: Sequence[QueueKeys],
    tasks: Tasks,
    settings: Mapping[str, QueueSettings],
    config: ChildConfig,
) -> list[QueueState]:
    shards_of = Counter(shard.name for shard in keys)
    groups = dict.fromkeys(shards_of, 0)
    for task in tasks.values():
        groups[task.queue] = max(groups[task.queue], task.task_options.batch or 0)
    common = Pace()
    return [
        QueueState(
            shard,
            index,
            weight=config.weights.get(shard.name, 1.0) / shards_of[shard.name],
            visibility_s=(config.visibility_ms or settings[shard.name].visibility_ms) / 1000,
            max_batch=config.max_batch or MAX_BATCH,
            group=groups[shard.name],
            common=common,
        )
        for index, shard in enumerate(keys)
    ]


def _runner(
    app: QWorker,
    tasks: Tasks,
    numbers: dict[str, int],
    board: Board,
    settings: Mapping[str, QueueSettings],
    config: ChildConfig,
) -> Runner:
    keyring = app.keyring
    sending = partial(_sending, app.middleware) if app.middleware else None

    def follow(delivery: Delivery, value: bytes) -> list[Effect]:
        context = delivery.context()
        ran_ms = round(1000 * (boot_time() - delivery.started)) if delivery.started else 0
        ended = Past(context.task, context.queue, context.message_id, context.sent_ms, ran_ms)
        return next_effects(
            delivery.then,
            value,
            queue=context.queue,
            writer=MessageWriter(app.namespace, keyring, context.trace, sending),
            past=[*past_of(context.body), ended],
        )

    patience = Patience(config.unknown_wait_ms, config.unknown_run_wait_ms)
    endings = (EncryptedEndings if keyring else Endings)(
        board,
        app.middleware,
        lambda queue: settings[queue].max_receives,
        lambda value, queue, message_id: write_value(
            value, keyring, app.namespace, queue, message_id
        ),
        follow,
        patience,
    )
    make = partial(EncryptedPreparer, keyring, app.namespace) if keyring else Preparer
    preparer = make(tasks, numbers, board, endings, patience=patience, clock=boot_time)
    return Runner(tasks, numbers, board, app.middleware, endings, preparer, clock=boot_time)


def _sending(
    middleware: Sequence[Middleware], task: str, body: bytes, flags: dict[str, str]
) -> None:
    for each in middleware:
        each.sending(task, body, flags)


def _executors(
    app: QWorker, runner: Runner, notifier: Waker, config: ChildConfig
) -> list[Executor]:
    """Choose where handlers run: inline if all are sync and run one at a time, else in threads and on a loop."""
    has_async = any(task.is_async or task.wraps_async for task in runner.tasks.values())
    has_sync = any(not task.is_async for task in runner.tasks.values())
    sync_slots = (config.concurrency or SYNC_SLOTS) if has_sync else 0
    executors: list[Executor] = []
    if sync_slots == 1 and not has_async:
        executors.append(Inline(runner, 0))
    elif has_sync:
        executors.append(Threads(runner, 0, sync_slots, notifier))
    if has_async:
        async_slots = config.concurrency or ASYNC_SLOTS
        executors.append(
            HandlerLoop(
                runner, sync_slots, async_slots, notifier, kind=config.loop, close=app.aclose
            )
        )
    return executors


def _divide(
    queues: Iterable[QueueState], tasks: Iterable[Task[..., Any]], executors: Sequence[Executor]
) -> None:
    """Note which executors the messages of each queue go to: a busy thread must not look like room on the loop."""
    kinds = {(task.queue, task.is_async) for task in tasks}
    for queue in queues:
        queue.executors = tuple(
            number
            for number, executor in enumerate(executors)
            if (queue.name, executor.is_async) in kinds
        )
        queue.slots = sum(executors[number].slots for number in queue.executors)


def _connector(
    board: Board, stop: StopRequest, factory: ConnectionFactory
) -> Callable[[float], Connection]:
    """Return a function that makes a connection; its argument is how long to wait for a node of a Cluster."""
    names = ("settle_receive", "settle", "conclude", "poll")
    scripts = tuple(load_script(name) for name in names)
    # Calls to one node of a Cluster must not wait for another node that is away.
    away = AwayServers() if factory.clustered else None

    def beat() -> None:
        board.beat = boot_time()

    def connect(patience_s: float) -> Connection:
        return Connection(
            factory,
            scripts,
            alive=beat,
            give_up=lambda: bool(stop),
            patience_s=patience_s if factory.clustered else None,
            away=away,
        )

    return connect


def _message_log(config: ChildConfig) -> Callable[..., None] | None:
    """The function that logs each message; None if its level is not logged, so that it costs nothing."""
    if config.log_messages == "debug" and config.log_level == "debug":
        return cast(Callable[..., None], _log.debug)
    if config.log_messages == "info" and config.log_level in ("debug", "info"):
        return cast(Callable[..., None], _log.info)
    return None
