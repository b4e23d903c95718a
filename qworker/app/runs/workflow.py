"""Workflows: tasks whose calls are runs, which record their steps and can be resumed."""

from __future__ import annotations

import asyncio
import builtins
import inspect
from collections.abc import Callable, Iterable
from functools import wraps
from typing import TYPE_CHECKING, Any, Concatenate, Final, ParamSpec, TypeVar, cast

from qworker.app.context import running
from qworker.app.functions import is_async
from qworker.app.options import TaskOptions
from qworker.app.runs.open_steps import PARKS
from qworker.app.runs.run import Run
from qworker.app.runs.steps import RunDelivery, Steps
from qworker.app.runs.sync_run import SyncRun
from qworker.app.sender import Call, Sender, Then
from qworker.app.signatures import annotation_text, signature_of
from qworker.app.task import Task
from qworker.app.trace import outgoing
from qworker.durations import Duration
from qworker.engine.options import SendOptions
from qworker.errors import InvalidOptionError
from qworker.wire.names import check_message_id

if TYPE_CHECKING:
    from qworker.app.definition import Definition, TaskApp
    from qworker.client.queue_ref import QueueRef
    from qworker.engine.send import NewMessage

__all__ = ["Workflow", "workflow_options"]

P = ParamSpec("P")
R = TypeVar("R")

_KEEP: Final = "1d"


class RunSender(Sender[P, R]):
    """Starts one run once, under an id that you have chosen."""

    def __init__(self, task: Definition[P, R], options: SendOptions, run_id: str) -> None:
        self._message_id: str = check_message_id(run_id, "id")
        if options.unique is not None:
            raise InvalidOptionError(
                "unique",
                "is given together with an id",
                "an id starts one run anyway; give one of the two",
            )
        super().__init__(task, options)

    def send(self, *args: P.args, **kwargs: P.kwargs) -> str:
        """Start the run unless it was started before, and return its id. Raises `RunStartedError`, as `start` does."""
        body = self.task.signature.encode(args, kwargs)
        queue = self.task.app.queue(self.task.queue)
        message = self._message(body, queue.ref, outgoing(), group=self.group_of(args, kwargs))
        queue.start_run(message, self._options, self.task.signature.identify(body))
        return message.id

    async def asend(self, *args: P.args, **kwargs: P.kwargs) -> str:
        """Start the run from async code, as `send` does."""
        body = self.task.signature.encode(args, kwargs)
        queue = self.task.app.aqueue(self.task.queue)
        message = self._message(body, queue.ref, outgoing(), group=self.group_of(args, kwargs))
        await queue.start_run(message, self._options, self.task.signature.identify(body))
        return message.id

    def _delayed(self, delay: Duration) -> Sender[P, R]:
        options = SendOptions.of(self._options, {"delay": delay})
        return RunSender(self.task, options, self._message_id)

    def _messages(self, calls: Iterable[Call[Any]], queue: QueueRef) -> list[NewMessage]:
        raise self._is_of_one_run()

    def call(self, *args: P.args, **kwargs: P.kwargs) -> Call[Any]:
        """Refused: an id belongs to one run, which `start` or `send` starts."""
        raise self._is_of_one_run()

    def then(self, *args: Any, **kwargs: Any) -> Then[Any, Any]:
        """Refused, as `call` is."""
        raise self._is_of_one_run()

    def _is_of_one_run(self) -> InvalidOptionError:
        return InvalidOptionError(
            "id",
            f"{self._message_id!r} is the id of one run",
            "call start or send; chains and send_many choose ids themselves",
        )


class Workflow(Task[P, R]):
    """A function whose calls are runs: its first parameter is the run, the others are those of a call.

    Calling it runs the function here and now, with the run that you give it.
    """

    is_run = True

    def __init__(
        self,
        app: TaskApp,
        function: Callable[Concatenate[Any, P], R],
        name: str,
        options: TaskOptions,
    ) -> None:
        parameters = _without_run(function, name)
        #: The function, with the run as its first parameter.
        self.workflow = function
        super().__init__(app, self._activation(function, parameters), name, options)

    def options(  # type: ignore[override]  # an id as well
        self,
        *,
        id: str | None = None,  # noqa: A002 - as users would write it
        **given: object,
    ) -> Sender[P, R]:
        """Return a sender with other `SendOptions`, as a task does; with an `id`, a sender of a run that starts once.

        `order.options(id="order-17").start("42")` sends a call unless a run has this id; a second start returns the
        same handle. Raises `RunStartedError` for a start with other arguments, and `InvalidOptionError`.
        """
        options = SendOptions.of(self.default_options, given)
        return Sender(self, options) if id is None else RunSender(self, options, id)

    def __call__(self, run: Any, /, *args: P.args, **kwargs: P.kwargs) -> R:  # type: ignore[override]  # called with a run, sent without
        """Call the function directly, with this run."""
        return self.workflow(run, *args, **kwargs)

    def _activation(
        self, function: Callable[Concatenate[Any, P], R], signature: inspect.Signature
    ) -> Callable[P, R]:
        """Make the handler: it calls the function with the run of the message that is handled."""
        activation: Any
        if is_async(function):

            @wraps(function)
            async def activation(*args: Any, **kwargs: Any) -> Any:
                steps = self._steps()
                run = Run(self.app, steps)
                called: Any = function(run, *args, **kwargs)
                try:
                    result = _unless_parked(steps, await called)
                    # Steps that it has left in tasks of their own belong to the run, which has its lease until now.
                    steps.close()
                    await steps.open.end()
                    steps.open.leave()
                except BaseException as error:
                    steps.close()
                    try:
                        # A handler that was cancelled, as by its time limit, does not go on for another minute.
                        if not isinstance(error, asyncio.CancelledError | GeneratorExit):
                            await steps.open.end()
                    finally:
                        if not isinstance(error, GeneratorExit):
                            steps.open.leave()
                        await run._keep()
                    if _is_parked_by(error):
                        _unless_parked(steps, None)
                    raise
                return result

        else:

            @wraps(function)
            def activation(*args: Any, **kwargs: Any) -> Any:
                steps = self._steps()
                run = SyncRun(self.app, steps)
                try:
                    result = _unless_parked(steps, function(run, *args, **kwargs))
                except BaseException:
                    run._keep()
                    raise
                return result

        activation.__signature__ = signature
        handler: Callable[P, R] = activation
        return handler

    def _steps(self) -> Steps:
        delivery = running.get()
        if delivery is None:
            raise InvalidOptionError(
                f"workflow {self.name!r}",
                "has no message to run",
                "call start, or the function itself with a run of your own",
            )
        keep_ms = self.task_options.result_ms
        assert keep_ms is not None
        return Steps(self.app, cast(RunDelivery, delivery), keep_ms)


def _unless_parked(steps: Steps, result: Any) -> Any:
    """Return the result of the function; a run that is parked has not ended, even if its function returned."""
    if steps.parked is not None:
        raise steps.parked
    return result


def _is_parked_by(error: BaseException) -> bool:
    """Say whether an error is a group of nothing but what parks a run, as an `asyncio.TaskGroup` raises it."""
    return isinstance(error, BaseExceptionGroup) and error.split(PARKS)[1] is None


def workflow_options(options: dict[str, Any]) -> TaskOptions:
    """Make the options of a workflow. Raises `InvalidOptionError` for those that runs cannot have."""
    for name in ("batch", "max_wait", "at_most_once"):
        if options.get(name):
            raise InvalidOptionError(
                name,
                "is set for a workflow",
                "a run is one message, acked at its end; leave it out",
            )
    made = TaskOptions(**{"result": _KEEP, "ttl": 0, **options})
    if made.result is None:
        raise InvalidOptionError(
            "result",
            "is None for a workflow",
            "its steps are kept for as long after its end: 1 s to 30 days",
        )
    return made


def _without_run(function: Callable[..., Any], name: str) -> inspect.Signature:
    """Return the signature of a workflow's calls. Raises `InvalidOptionError` if its first parameter is not the run."""
    wanted = "Run" if is_async(function) else "SyncRun"
    limit = f"write {'async def' if is_async(function) else 'def'} {name}(run: {wanted}, …)"
    try:
        signature = signature_of(function)
    except (NameError, TypeError, ValueError) as error:
        raise InvalidOptionError(name, f"has no readable signature: {error}", limit) from error
    parameters = [*signature.parameters.values()]
    by_position = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    if not parameters or parameters[0].kind not in by_position:
        raise InvalidOptionError(name, "takes no run as its first parameter", limit)
    annotation = parameters[0].annotation
    other = SyncRun if wanted == "Run" else Run
    named = annotation.__name__ if isinstance(annotation, type) else annotation_text(annotation)
    named = named.rpartition(".")[2]
    # A name of the application may be an alias of `Run`; that of a builtin is not.
    if named == other.__name__ or hasattr(builtins, named):
        raise InvalidOptionError(f"{name}({parameters[0].name})", f"is declared as {named}", limit)
    return signature.replace(parameters=parameters[1:])
