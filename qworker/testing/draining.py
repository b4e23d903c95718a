"""Runs what an app has sent, here and now: with the consumer's own code, in this process, until nothing is left."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final, Literal

from qworker.app.control import ControlFlow
from qworker.app.middleware import Middleware
from qworker.client.commands import inspecting
from qworker.client.message import DeadLetter
from qworker.consumer.assembly import assemble
from qworker.consumer.board import Board
from qworker.consumer.manifest import ChildConfig, slots_for
from qworker.daemon.reaper import Reaper
from qworker.durations import format_ms
from qworker.errors import InvalidOptionError
from qworker.testing.passing import age, note_reaper, queues_of
from qworker.wire.keys import QueueKeys

if TYPE_CHECKING:
    from qworker.app.app import QWorker
    from qworker.app.context import Context
    from qworker.client.commands.inspecting import Inspection
    from qworker.consumer.broker import Broker

__all__ = ["Drained", "drain"]

_TICK_MS: Final = 1000


@dataclass(frozen=True, slots=True)
class Drained:
    """What a drain came to, in messages.

    `failed` counts tries that failed: a message that fails twice and then succeeds is failed 2, handled 1. `errors`
    are what handlers raised, in order, but for control flow. `left` are still ready or delayed. `waited`: how much
    time was let pass until the last delayed message was due, such as "90s".
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
) -> Drained:
    """Run the messages of an app in this process until none is ready, and return what became of them.

    `queues`: only these, in this order; None for all of the app's tasks. `include_delayed`: whenever nothing is ready,
    let as much time pass for all its messages as the next delayed one needs, so that retries run as well.
    `max_messages`: deliveries after which it stops, for handlers that send themselves. `errors`: with "raise" the
    first exception of a handler that is not control flow ends the drain and is raised as it was, the message being
    nacked; with "collect" the drain goes on as a worker would.

    Sync handlers run in the caller's thread, unless the app has async ones too; those run on a loop in a thread of
    its own. Batch handlers do not wait to fill up. Time limits of sync handlers are not enforced: in a worker it is
    another process that does that.
    """
    if errors not in ("raise", "collect"):
        raise InvalidOptionError("errors", f"{errors!a} is unknown", "write 'raise' or 'collect'")
    chosen = _chosen(app, queues)
    if not chosen:
        return Drained()
    before = _inspect(app, chosen)
    letters = {keys.queue: _last_letter(app, keys.queue) for keys in chosen}
    watch = _Watch(raises=errors == "raise")
    waited_ms = ran = 0
    with _watched(app, watch):
        # A round runs something, or lets time pass until something is due: the bound is for what does neither.
        for _ in range(2 * max_messages + 10):
            _reap(app)
            ran += _burst(app, chosen, max_messages - ran, watch)
            if watch.raises and watch.errors:
                raise watch.errors[0]
            due_ms = _next_due_in(_inspect(app, chosen))
            if due_ms is None or ran >= max_messages or not (include_delayed or due_ms <= 0):
                break
            if due_ms > 0:
                waited_ms += due_ms
                for keys in queues_of(app):
                    age(app, keys, due_ms)
    return _result(app, before, _inspect(app, chosen), letters, watch.errors, waited_ms)


# -- running -----------------------------------------------------------------------------------


def _burst(app: QWorker, chosen: Sequence[QueueKeys], most: int, watch: _Watch) -> int:
    """Run what is ready, `most` deliveries at most, with the broker of a worker; returns how many handlers ran."""
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
        queues=[keys.queue for keys in chosen],
        weights={},
        burst=True,
        max_messages=most,
        max_batch=0,
        visibility_ms=None,
        # No other worker is to come: what nobody knows is a mistake, and dead at once.
        unknown_wait_ms=0,
        takes_suspects=True,
        log_format="auto",
        log_level="warning",
    )
    watch.broker = broker = assemble(app, config.queues, board, config, app.client.factory)
    try:
        broker.run()
        return board.handled
    finally:
        watch.broker = None
        board.close()


def _reap(app: QWorker) -> None:
    """Let a reaper make its rounds: move what is due, take back what has run out."""
    for keys in queues_of(app):
        note_reaper(app, keys)
    reaper = Reaper(app.client, app.namespace, tick_ms=_TICK_MS)
    while reaper.tick().more:
        pass
    reaper.close()


# -- watching ----------------------------------------------------------------------------------


class _Watch(Middleware):
    """Hears what handlers raise, and stops the broker at the first error if that is to be raised."""

    def __init__(self, *, raises: bool) -> None:
        self.raises = raises
        self.errors: list[BaseException] = []
        self.broker: Broker | None = None

    def after(self, context: Context, outcome: str, error: BaseException | None) -> None:
        """Note an error; control flow is none."""
        if error is None or isinstance(error, ControlFlow):
            return
        if any(error is known for known in self.errors):
            return  # what a batch handler raises is the end of each of its messages
        self.errors.append(error)
        if self.raises and self.broker is not None:
            self.broker.stop("error")


@contextmanager
def _watched(app: QWorker, watch: _Watch) -> Iterator[None]:
    """Let the app's handlers be heard, and no batch wait to fill up."""
    options = {task: task.task_options for task in app.tasks.values()}
    app.middleware.insert(0, watch)
    try:
        for task, given in options.items():
            task.task_options = dataclasses.replace(given, max_wait_ms=0)
        yield
    finally:
        app.middleware.remove(watch)
        for task, given in options.items():
            task.task_options = given


# -- looking -----------------------------------------------------------------------------------


def _chosen(app: QWorker, queues: Sequence[str] | None) -> list[QueueKeys]:
    known = list(dict.fromkeys(task.queue for task in app.tasks.values()))
    for name in queues or ():
        if name not in known:
            raise InvalidOptionError(
                "queues", f"no task is on queue {name!r}", f"the app's are {', '.join(known)}"
            )
    return [QueueKeys(app.namespace, name) for name in (known if queues is None else queues)]


def _inspect(app: QWorker, chosen: Sequence[QueueKeys]) -> list[Inspection]:
    return [app.client.execute(inspecting.inspect(keys)) for keys in chosen]


def _next_due_in(seen: Sequence[Inspection]) -> int | None:
    """How many ms until the next delayed message is due, 0 or less if one is; None without any."""
    return min(
        (each.next_due_ms - each.now_ms for each in seen if each.next_due_ms is not None),
        default=None,
    )


def _last_letter(app: QWorker, queue: str) -> str:
    newest = app.queue(queue).dead(1, newest=True)
    return newest[0].entry_id if newest else "-"


def _result(
    app: QWorker,
    before: Sequence[Inspection],
    after: Sequence[Inspection],
    letters: dict[str, str],
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
            letter
            for queue, last in letters.items()
            for letter in app.queue(queue).dead(1000, after=last)
        ],
        errors=errors,
        left=sum(each.ready + each.delayed for each in after),
        waited=format_ms(waited_ms),
    )
