"""Puts a child's broker together: queues, executors, connections. Nothing is connected by it but to read attributes."""

from __future__ import annotations

import os
import socket
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, Final, cast

import structlog

from qworker.client.away import AwayServers
from qworker.client.commands.command import Command
from qworker.client.paused_tasks import read_paused_tasks
from qworker.client.sync import Client
from qworker.consumer.board import Board, boot_time
from qworker.consumer.broker import Broker, BrokerOptions
from qworker.consumer.doorbells import doorbells_of
from qworker.consumer.executors import Executor, Inline, Loop, Threads
from qworker.consumer.fetching import Fetcher, FetchOptions
from qworker.consumer.hand import Hand
from qworker.consumer.link import Link
from qworker.consumer.measures import Measures
from qworker.consumer.notifier import Notifier
from qworker.consumer.pace import MAX_BATCH, QueuePace
from qworker.consumer.paused import since_of
from qworker.consumer.presence import milliseconds
from qworker.consumer.protected import ProtectedRunner
from qworker.consumer.runner import Runner
from qworker.consumer.shards import read_shards
from qworker.consumer.telling import Teller
from qworker.errors import AppLoadError, QworkerError, ServerError
from qworker.store.connection import ConnectionFactory
from qworker.store.scripts import load_script
from qworker.wire.keys import QueueKeys
from qworker.wire.numbers import whole
from qworker.wire.shards import WHOLE

if TYPE_CHECKING:
    from qworker.app.app import QWorker
    from qworker.app.task import Task
    from qworker.consumer.manifest import ChildConfig

__all__ = ["assemble", "queues_of", "shards_of"]

_log = structlog.get_logger(__name__)

_MAX_RECEIVES: Final = 5
_VISIBILITY_MS: Final = 30_000
_SYNC: Final = 1
_ASYNC: Final = 100
#: How long a server that does not answer is asked for the attributes of queues, all together.
_ATTRIBUTES_S: Final = 2.0
_AT_ONCE: Final = 500
#: How long a node of a Cluster is waited for before the others have their turn.
_PATIENCE_S: Final = 1.0


def queues_of(app: QWorker, config: ChildConfig) -> list[str]:
    """Say which queues to receive from, best first. Raises `AppLoadError` where the app has no task on one."""
    known = list(dict.fromkeys(task.queue for task in app.tasks.values()))
    if not known:
        raise AppLoadError(f"app {config.app!r} has no task; decorate a function with @app.task")
    for name in config.queues:
        if name not in known:
            raise AppLoadError(
                f"no task of {config.app!r} is on queue {name!r}; its queues are {', '.join(known)}"
            )
    return list(config.queues) or known


def shards_of(app: QWorker, queues: Sequence[str], factory: ConnectionFactory) -> list[str]:
    """Name the shards of queues, best first; where the server cannot be asked now, as if there were one of each.

    The supervisor looks at them again and replaces a child that goes by others.
    """
    with Client(factory, give_up_s=_ATTRIBUTES_S) as client:
        try:
            found = read_shards(client, app.namespace, queues)
            # One that cannot be asked now is looked up again by the supervisor.
            return [
                name for queue, shards in found.items() for name in (shards or WHOLE).names(queue)
            ]
        except QworkerError as error:
            _log.warning("shards_unknown", error=str(error))
            return list(queues)


def assemble(
    app: QWorker,
    shards: Sequence[str],
    board: Board,
    config: ChildConfig,
    factory: ConnectionFactory,
) -> Broker:
    """Wire a broker for an app that receives from these shards of queues, best first."""
    places = [QueueKeys(app.namespace, shard) for shard in shards]
    queues = list(dict.fromkeys(keys.name for keys in places))
    attributes = _read_attributes(app, queues, factory)
    # Its supervisor says so too, but only after some of them might have run.
    paused = _read_paused(app, factory)
    board.orders.pause(since_of(sorted(app.tasks), paused))
    served = set(queues)
    tasks = {name: task for name, task in app.tasks.items() if task.queue in served}
    shards_in = Counter(keys.name for keys in places)
    largest = dict.fromkeys(queues, 0)
    for task in tasks.values():
        largest[task.queue] = max(largest[task.queue], task.task_options.batch)
    paces = [
        QueuePace(
            keys,
            index,
            weight=config.weights.get(keys.name, 1.0) / shards_in[keys.name],
            visibility_s=(config.visibility_ms or attributes[keys.name].visibility_ms) / 1000,
            max_batch=config.max_batch or MAX_BATCH,
            group=largest[keys.name],
        )
        for index, keys in enumerate(places)
    ]
    keyring = app.keyring
    runner = (partial(ProtectedRunner, keyring, app.namespace) if keyring else Runner)(
        tasks,
        board,
        app.middleware,
        max_receives=lambda name: attributes[name].max_receives,
        unknown_wait_ms=config.unknown_wait_ms,
        clock=boot_time,
        numbers={name: number for number, name in enumerate(sorted(app.tasks))},
    )
    notifier = Notifier()
    executors = _executors(
        runner,
        notifier,
        config.concurrency,
        lambda begun, now: broker.between(begun, now),  # noqa: PLW0108 - there is no broker yet
        config.loop,
    )
    if len(executors) > 1:
        runner.on_async = partial(_divide, paces, tasks.values(), executors)
        runner.on_async()
    scripts = (load_script("settle_receive"), load_script("settle"), load_script("poll"))

    def beat() -> None:
        board.beat = boot_time()

    def give_up() -> bool:
        return broker.stopping or board.stop

    #: Where calls wait behind those of other servers.
    away = AwayServers() if factory.clustered else None

    def link_with(patience_s: float) -> Link:
        # Other nodes of a Cluster are not to wait for one that is away.
        limit_s = patience_s if factory.clustered else None
        return Link(factory, scripts, alive=beat, give_up=give_up, patience_s=limit_s, away=away)

    link = link_with(_PATIENCE_S)
    measures = Measures(board, runner.numbers, _log_of_messages(config))
    hand = Hand(board)
    ids = app.client.ids
    who = f"{socket.gethostname()}:{os.getppid()}"
    teller = Teller(hand, link, measures, ids, who=who)
    broker = Broker(
        runner,
        executors,
        hand=hand,
        fetcher=Fetcher(
            paces,
            hand,
            teller,
            link,
            doorbells_of(paces, lambda: link_with(0.0), clustered=factory.clustered),
            ids=ids,
            slots=sum(executor.slots for executor in executors),
            options=FetchOptions(
                takes_suspects=config.takes_suspects,
                weighted=bool(config.weights),
                visibility_ms=config.visibility_ms,
            ),
            clustered=factory.clustered,
        ),
        teller=teller,
        link=link,
        notifier=notifier,
        measures=measures,
        options=BrokerOptions(burst=config.burst, max_messages=config.max_messages),
    )
    return broker


def _log_of_messages(config: ChildConfig) -> Callable[..., None] | None:
    """What writes a line for each message; None where that level is not logged, and nothing is spent on it."""
    if config.log_messages == "debug" and config.log_level == "debug":
        return cast(Callable[..., None], _log.debug)
    if config.log_messages == "info" and config.log_level in ("debug", "info"):
        return cast(Callable[..., None], _log.info)
    return None


def _executors(
    runner: Runner,
    notifier: Notifier,
    concurrency: int,
    between: Callable[[float, float], float],
    loop: str,
) -> list[Executor]:
    """Choose where handlers run: inline if all are sync and run one at a time, else in threads and on a loop."""
    has_async = any(task.is_async or task.wraps_async for task in runner.tasks.values())
    has_sync = any(not task.is_async for task in runner.tasks.values())
    sync_slots = (concurrency or _SYNC) if has_sync else 0
    executors: list[Executor] = []
    if sync_slots == 1 and not has_async:
        executors.append(Inline(runner, 0, between))
    elif has_sync:
        executors.append(Threads(runner, 0, sync_slots, notifier))
    if has_async:
        executors.append(Loop(runner, sync_slots, concurrency or _ASYNC, notifier, kind=loop))
    return executors


def _divide(
    paces: Iterable[QueuePace], tasks: Iterable[Task[..., Any]], executors: Sequence[Executor]
) -> None:
    """Tell each queue which executors its messages go to: a busy thread must not look like room on the loop."""
    kinds = {(task.queue, task.is_async) for task in tasks}
    for pace in paces:
        pace.executors = tuple(
            number for number, each in enumerate(executors) if (pace.name, each.is_async) in kinds
        )
        pace.slots = sum(executors[number].slots for number in pace.executors)


@dataclass(frozen=True, slots=True)
class _Attributes:
    """The attributes of a queue that a child goes by."""

    visibility_ms: int = _VISIBILITY_MS
    max_receives: int = _MAX_RECEIVES


def _read_attributes(
    app: QWorker, queues: Sequence[str], factory: ConnectionFactory
) -> dict[str, _Attributes]:
    """Read the attributes of each queue, 500 in a trip; the defaults where the server cannot be asked now."""
    found = dict.fromkeys(queues, _Attributes())
    with Client(factory, give_up_s=_ATTRIBUTES_S) as client:
        for first in range(0, len(queues), _AT_ONCE):
            some = queues[first : first + _AT_ONCE]
            read = client.execute_each([_attributes_of(app.namespace, name) for name in some])
            for name, attributes in zip(some, read, strict=True):
                if isinstance(attributes, _Attributes):
                    found[name] = attributes
                    continue
                _log.warning("attributes_unknown", queue=name, error=str(attributes))
                if isinstance(attributes, ServerError):
                    return found  # the others are no better off
    return found


def _read_paused(app: QWorker, factory: ConnectionFactory) -> dict[str, float]:
    """Read for how long tasks have been paused, in seconds; none where the server cannot be asked now."""
    with Client(factory, give_up_s=_ATTRIBUTES_S) as client:
        execute = client.execute
        try:
            paused = read_paused_tasks(execute, app.namespace)
            now_ms = execute(Command(None, (), ("TIME",), milliseconds)) if paused else 0
        except QworkerError as error:
            _log.warning("paused_tasks_unknown", error=str(error))
            return {}
    return {task: max(0, now_ms - at_ms) / 1000 for task, at_ms in paused.items()}


def _attributes_of(namespace: str, queue: str) -> Command[_Attributes]:
    def decode(reply: list[bytes | None]) -> _Attributes:
        visibility, receives = (
            None if each is None else each.decode("utf-8", "replace") for each in reply
        )
        return _Attributes(_whole(visibility, _VISIBILITY_MS), _whole(receives, _MAX_RECEIVES))

    words = ("HMGET", QueueKeys(namespace, queue).meta, "visibility_ms", "max_receives")
    return Command(None, (), words, decode)


def _whole(text: str | None, default: int) -> int:
    number = whole(text)
    return default if number is None else number
