"""How a call becomes a message: its options, its group, its flags, and the middleware that sees it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Generic, ParamSpec, TypeVar

from qworker.app.handle import check_keeps
from qworker.app.trace import outgoing
from qworker.client.new_message import new_message
from qworker.engine.options import SendOptions
from qworker.errors import NoResultError

if TYPE_CHECKING:
    from qworker.app.definition import Definition
    from qworker.client.queue_ref import QueueRef
    from qworker.engine.send import NewMessage

__all__ = ["CallMessages"]

P = ParamSpec("P")
R = TypeVar("R")


class CallMessages(Generic[P, R]):
    """Makes messages of calls of a task, with fixed options."""

    #: The id of its message; None to draw one for each.
    _message_id: str | None = None

    def __init__(self, task: Definition[P, R], options: SendOptions) -> None:
        self.task = task
        self._options = options
        #: How long the results of its messages are kept; None if they are not, as of a message that is acked first.
        self._keep_ms = None if options.visibility_ms == 0 else task.task_options.result_ms

    def first_message(
        self, body: bytes, queue: QueueRef, chain: str, group: str, message_id: str
    ) -> NewMessage:
        """Make the first message of a chain; `chain` is its flag j, `message_id` begins the ids of its steps."""
        flags = {**_flags(outgoing(), None, run=False), "j": chain}
        return self._message(body, queue, None, flags, group=group, message_id=message_id)

    def group_of(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> str:
        """Return the stored name of the group of a call; options of the send go before those of the task."""
        return self.task.task_options.group_of(self.task.name, args, kwargs, self._options)

    def _message(
        self,
        body: bytes,
        queue: QueueRef,
        trace: str | None,
        flags: dict[str, str] | None = None,
        *,
        group: str = "",
        message_id: str | None = None,
    ) -> NewMessage:
        keep_ms = self._keep_ms
        if flags is None and (trace or keep_ms):
            flags = _flags(trace, keep_ms, run=self.task.is_run)
        return new_message(
            queue,
            body,
            self._options,
            flags=flags,
            sending=self._run_middleware if self.task.app.middleware else None,
            message_id=message_id or self._message_id,
            group=group,
        )

    @property
    def options_of_sends(self) -> SendOptions:
        """The options that its calls are sent with."""
        return self._options

    def check_keeps(self) -> None:
        """Raise `NoResultError` if results of its messages are not kept."""
        check_keeps(self.task)
        if self._keep_ms is None:
            raise NoResultError(
                "visibility",
                "is 0: the message is acked before it runs",
                "a result is kept by the ack; leave visibility out, or call send",
            )

    def _run_middleware(self, body: bytes, flags: dict[str, str]) -> None:
        for middleware in self.task.app.middleware:
            middleware.sending(self.task.name, body, flags)


def _flags(trace: str | None, keep_ms: int | None, *, run: bool) -> dict[str, str]:
    flags = {"w": trace} if trace else {}
    if keep_ms is not None:
        flags["r"] = str(keep_ms)
        if run:
            flags["c"] = "1"
    return flags
