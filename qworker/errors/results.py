"""Errors of results: a message has none to return."""

from __future__ import annotations

from qworker.errors.base import QworkerError

__all__ = [
    "ResultError",
    "ResultTimeoutError",
    "ResultUnknownError",
    "TaskEndedError",
    "TaskFailedError",
]


class ResultError(QworkerError):
    """A message has no result to return. `queue` and `message_id` name the message."""

    def __init__(self, queue: str, message_id: str) -> None:
        super().__init__(queue, message_id)
        self.queue, self.message_id = queue, message_id


class TaskFailedError(ResultError):
    """The message is a dead letter; `reason`, `error` (a class) and `text` are those of its last error.

    Of a chain, queue and id are those of the dead step, and `step` is its task. A redriven message can still succeed:
    ask again.
    """

    def __init__(
        self,
        queue: str,
        message_id: str,
        reason: str,
        error: str,
        text: str,
        step: str | None = None,
    ) -> None:
        super().__init__(queue, message_id)
        self.args = (queue, message_id, reason, error, text, step)
        self.reason, self.error, self.text, self.step = reason, error, text, step

    def __str__(self) -> str:
        last = self.text.rstrip().rpartition("\n")[2].strip()
        cause = f": {last or self.error}" if last or self.error else ""
        step = f"call of {self.step!r}, " if self.step else ""
        return (
            f"{step}message {self.message_id} of queue {self.queue!r} is dead ({self.reason}){cause}; "
            f"qworker dead show {self.queue} {self.message_id}"
        )


class TaskEndedError(ResultError):
    """The message ended without a value; `state` is cancelled, discarded, expired or purged."""

    def __init__(self, queue: str, message_id: str, state: str, step: str | None = None) -> None:
        super().__init__(queue, message_id)
        self.args = (queue, message_id, state, step)
        self.state, self.step = state, step

    def __str__(self) -> str:
        step = f"call of {self.step!r}, " if self.step else ""
        return f"{step}message {self.message_id} of queue {self.queue!r} was {self.state}: it has no result"


class ResultTimeoutError(ResultError, TimeoutError):
    """The message has not ended within `waited_s` seconds. It may end later: ask again."""

    def __init__(self, queue: str, message_id: str, waited_s: float) -> None:
        super().__init__(queue, message_id)
        self.args = (queue, message_id, waited_s)
        self.waited_s = waited_s

    def __str__(self) -> str:
        return (
            f"message {self.message_id} of queue {self.queue!r} has no result after {self.waited_s:g} s: it waits or "
            "runs, or its result has expired"
        )


class ResultUnknownError(ResultError):
    """No result is kept, and no message of this id waits or runs: the result has expired, or there never was one."""

    def __str__(self) -> str:
        return (
            f"message {self.message_id} of queue {self.queue!r} is unknown: its result has expired, its worker kept "
            "none, or the id is wrong"
        )
