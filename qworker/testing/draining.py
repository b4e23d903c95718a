"""Runs an app's messages in this process, with the consumer's own code, until none is left."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final, Literal

from qworker.app.control import ControlFlow
from qworker.app.middleware import Middleware
from qworker.client.manage.balancing import Balancer
from qworker.client.message import DeadLetter
from qworker.consumer.board.board import Board
from qworker.consumer.child.assembly import assemble
from qworker.consumer.child.queue_settings import open_client, read_shard_names
from qworker.consumer.manifest import ChildConfig, slots_for
from qworker.daemon.reaper import Reaper
from qworker.durations import format_ms
from qworker.errors import InvalidOptionError
from qworker.testing.clock import age, group_starts_in_ms, keys_of, record_reap

if TYPE_CHECKING:
    from qworker.app.app import QWorker
    from qworker.app.context import Context
    from qworker.client.inspect.peek import Inspection
    from qworker.consumer.child.loop import Broker

__all__ = ["Drained", "drain"]

_TICK_MS: Final = 1000
#: From here on scores of delayed are not due times: those of members of groups, and of held messages.
_NEVER_MS: Final = 2**52


@dataclass(frozen=True, slots=True)
class Drained:
    """The result of a drain, in messages.

    `failed` counts tries: a message that fails twice and then succeeds is 2 failed and 1 handled. `errors`: what
    handlers raised, in order, without control flow. `left`: still ready or delayed. `waited`: how much time passed
    until the last delayed message was due, such as "90s".
    """

    handled: int = 0
    failed: int = 0
    discarded: int = 0
    expired: int = 0
    released: int = 0
    dead: list[DeadLetter] = field(default_factory=list)
    errors: list[BaseException] = field(default_factory=list)
    left: int = 0
    waited: str = "0s"


def drain(
    app: QWorker,
    *,
    queues: Sequence[str] | None = None,
    include_delayed: bool = True,
    max_messages: int = 1000,
    errors: Literal["raise", "collect"] = "raise",
    interrupt_after: int | None = None,
) -> Drained:
    """Run the messages of an app in this process until none is ready, and return what happened to them.

    `queues`: only these, in this order; None for those of all tasks. `include_delayed`: when nothing is ready, let time
    pass for all messages of the app until the next delayed one is due or the rate of a group lets one start, so that
    retries run as well. `max_messages`:
    stop after this many deliveries, for handlers that send to themselves. `errors`: "raise" stops at a handler's first
    exception other than control flow, nacks its message and raises the exception; "collect" continues as a worker does.
    `interrupt_after`: interrupt each `run.each` after this many items, as a worker that stops does; the run is
    delivered again and continues. None: never.

    Sync handlers run in the calling thread, unless the app also has async ones, which run on a loop in another thread.
    Incomplete batches do not wait for more. Time limits of sync handlers are not enforced: in a worker, another process
    does that.

    Raises `InvalidOptionError` for a queue without tasks, and for other values of `errors` and `interrupt_after`.
    """
    if interrupt_after is not None and (type(interrupt_after) is not int or interrupt_after < 1):
        raise InvalidOptionError(
            "interrupt_after", f"{interrupt_after!a} is not a number of items", "an int from 1"
        )
    if errors not in ("raise", "collect"):
        raise InvalidOptionError("errors", f"{errors!a} is unknown", "write 'raise' or 'collect'")
    names = _queue_names(app, queues)
    if not names:
        return Drained()
    before = _inspect(app, names)
    newest_dead = {name: _newest_dead(app, name) for name in names}
    collector = _ErrorCollector(stop_at_first=errors == "raise")
    waited_ms = ran = 0
    with _collecting(app, collector, interrupt_after):
        # Every round runs something or lets time pass until something is due; the bound is for a round that does not.
        for _ in range(2 * max_messages + 10):
            _reap(app)
            ran_now = _burst(app, names, max_messages - ran, collector)
            ran += ran_now
            if collector.stop_at_first and collector.errors:
                raise collector.errors[0]
            queues_now = _inspect(app, names)
            if ran_now and ran < max_messages and any(queue.ready for queue in queues_now):
                continue  # acks have sent to other queues
            due_ms = _next_due_in_ms(app, queues_now)
            if due_ms is None and ran < max_messages and _share(app, queues_now):
                continue
            if due_ms is None or ran >= max_messages or not (include_delayed or due_ms <= 0):
                break
            if due_ms > 0:
                waited_ms += due_ms
                for keys in keys_of(app):
                    age(app, keys, due_ms)
    return _result(app, before, _inspect(app, names), newest_dead, collector.errors, waited_ms)


# -- running -----------------------------------------------------------------------------------


def _burst(app: QWorker, names: Sequence[str], most: int, collector: _ErrorCollector) -> int:
    """Run ready messages, at most `most`, with the broker of a worker; returns how many handlers ran."""
    slots = slots_for(1)
    board = Board.create(slots)
    config = ChildConfig(
        app="",
        url=app.client.factory.url,
        number=0,
        board=-1,
        control=-1,
        slots=slots,
        concurrency=1,
        queues=list(names),
        weights={},
        burst=True,
        max_messages=most,
        max_batch=0,
        visibility_ms=None,
        # No other worker will come: an unknown task or key is a mistake, and dead at once.
        unknown_wait_ms=0,
        unknown_run_wait_ms=0,
        takes_suspects=True,
        log_format="auto",
        log_level="warning",
    )
    with open_client(app.client.factory) as client:
        shards = read_shard_names(client, app.namespace, names)
        collector.broker = broker = assemble(app, shards, board, config, client)
    try:
        broker.run()
        return board.handled
    finally:
        collector.broker = None
        board.close()


def _reap(app: QWorker) -> None:
    """Run passes of a reaper until nothing is due or timed out."""
    for keys in keys_of(app):
        record_reap(app, keys)
    reaper = Reaper(app.client, app.namespace, tick_ms=_TICK_MS)
    while reaper.tick().more:
        pass
    reaper.close()


# -- errors ------------------------------------------------------------------------------------


class _ErrorCollector(Middleware):
    """Collects the errors of handlers; with `stop_at_first`, the first one stops the broker."""

    def __init__(self, *, stop_at_first: bool) -> None:
        self.stop_at_first = stop_at_first
        self.errors: list[BaseException] = []
        self.broker: Broker | None = None

    def after(self, context: Context, outcome: str, error: BaseException | None) -> None:
        """Collect an error, unless it is control flow."""
        if error is None or isinstance(error, ControlFlow):
            return
        if any(error is known for known in self.errors):
            return  # the error of a batch handler is that of each of its messages
        self.errors.append(error)
        if self.stop_at_first and self.broker is not None:
            self.broker.stop("error")


@contextmanager
def _collecting(
    app: QWorker, collector: _ErrorCollector, interrupt_after: int | None
) -> Iterator[None]:
    """Collect the errors of the app's handlers, interrupt its loops, and let no batch wait for more."""
    options = {task: task.task_options for task in app.tasks.values()}
    app.middleware.insert(0, collector)
    app.loop_limit = interrupt_after
    try:
        for task, own in options.items():
            task.task_options = dataclasses.replace(own, max_wait=0)
        yield
    finally:
        app.middleware.remove(collector)
        app.loop_limit = None
        for task, own in options.items():
            task.task_options = own


# -- inspecting --------------------------------------------------------------------------------


def _queue_names(app: QWorker, queues: Sequence[str] | None) -> list[str]:
    known = list(dict.fromkeys(task.queue for task in app.tasks.values()))
    for name in queues or ():
        if name not in known:
            raise InvalidOptionError(
                "queues", f"no task is on queue {name!r}", f"the app's are {', '.join(known)}"
            )
    return known if queues is None else list(queues)


def _inspect(app: QWorker, names: Sequence[str]) -> list[Inspection]:
    return [app.queue(name).inspect() for name in names]


def _next_due_in_ms(app: QWorker, inspections: Sequence[Inspection]) -> int | None:
    """Return the ms until the next message is due, or may start by the rate of its group; None without any."""
    due = [
        queue.next_due_ms - queue.now_ms
        for queue in inspections
        if queue.next_due_ms is not None and queue.next_due_ms < _NEVER_MS
    ]
    grouped = {queue.queue for queue in inspections if queue.grouped}
    for keys in keys_of(app) if grouped else ():
        starts_ms = group_starts_in_ms(app, keys) if keys.name in grouped else None
        if starts_ms is not None:
            due.append(max(1, starts_ms))
    return min(due, default=None)


def _share(app: QWorker, inspections: Sequence[Inspection]) -> bool:
    """Move shares of limits over several queues to where messages wait for them; returns whether any was moved."""
    if not any(queue.grouped for queue in inspections):
        return False
    balancer = Balancer(app.namespace, rest_ms=0)
    passes = [app.client.run(balancer.balance()) for _ in range(2)]
    return any(each.changed for each in passes)


def _newest_dead(app: QWorker, name: str) -> str:
    newest = app.queue(name).dead(1, newest=True)
    return newest[0].entry_id if newest else "-"


def _result(
    app: QWorker,
    before: Sequence[Inspection],
    after: Sequence[Inspection],
    newest_dead: dict[str, str],
    errors: list[BaseException],
    waited_ms: int,
) -> Drained:
    def counted(name: str) -> int:
        return sum(
            new.stats.get(name, 0) - old.stats.get(name, 0)
            for old, new in zip(before, after, strict=True)
        )

    return Drained(
        handled=counted("acked"),
        failed=counted("nacked"),
        discarded=counted("discarded"),
        expired=counted("expired"),
        released=counted("released"),
        dead=[
            dead_letter
            for name, newest in newest_dead.items()
            for dead_letter in app.queue(name).dead(1000, after=newest)
        ],
        errors=errors,
        left=sum(queue.ready + queue.delayed for queue in after),
        waited=format_ms(waited_ms),
    )
