"""Errors of runs, of groups of calls, and of signals to runs."""

from __future__ import annotations

from qworker.errors.base import QworkerError, RefusedError

__all__ = [
    "GroupStartedError",
    "IdTakenError",
    "RunEndedError",
    "RunStartedError",
    "RunTooLargeError",
    "RunUnknownError",
    "SignalGivenError",
    "SignalTimeoutError",
    "SourceShrankError",
]


class RunTooLargeError(RefusedError):
    """The steps of a run, or its signals, would take more than a run may keep."""

    def __init__(self, queue: str, message_id: str, size: int, of: str = "steps") -> None:
        super().__init__(queue, message_id, size, of)
        self.queue, self.message_id, self.size, self.of = queue, message_id, size, of

    def __str__(self) -> str:
        of, advice = "recorded steps", "return references to them, or continue in another run"
        if self.of == "signals":
            of, advice = (
                "signals",
                "give references to them; a signal that it waits for is always taken",
            )
        return (
            f"run {self.message_id} of queue {self.queue!r} would have {self.size:,} bytes of {of}; at most 64 MiB: "
            f"store values elsewhere and {advice}"
        )


class RunStartedError(RefusedError):
    """A run of this id was started with other arguments, or by another workflow; nothing was sent."""

    def __init__(self, queue: str, message_id: str) -> None:
        super().__init__(queue, message_id)
        self.queue, self.message_id = queue, message_id

    def __str__(self) -> str:
        return (
            f"run {self.message_id} of queue {self.queue!r} was already started with another call: start this one "
            "under another id. An id is free again when the steps of its run have expired (result=, after its end)"
        )


class RunUnknownError(RefusedError):
    """No run has this id, or it ended long ago."""

    def __init__(self, queue: str, message_id: str) -> None:
        super().__init__(queue, message_id)
        self.queue, self.message_id = queue, message_id

    def __str__(self) -> str:
        return (
            f"run {self.message_id} of queue {self.queue!r} is unknown: it ended long ago, the id is wrong, or it is "
            "not a run"
        )


class RunEndedError(RefusedError):
    """The run has ended: it takes no more signals."""

    def __init__(self, queue: str, message_id: str) -> None:
        super().__init__(queue, message_id)
        self.queue, self.message_id = queue, message_id

    def __str__(self) -> str:
        return f"run {self.message_id} of queue {self.queue!r} has ended; it takes no more signals"


class GroupStartedError(RefusedError):
    """A group of calls of this id was started with other calls; nothing was sent."""

    def __init__(self, queue: str, group_id: str) -> None:
        super().__init__(queue, group_id)
        self.queue, self.group_id = queue, group_id

    def __str__(self) -> str:
        return (
            f"group of calls {self.group_id} of queue {self.queue!r} was already started with other calls: start this "
            "one under another id. An id is free a day after the end of its callback, when its result has expired, or "
            "7 days after a cancel"
        )


class IdTakenError(RefusedError):
    """A run, or a group of calls, has this id, so the other kind cannot start under it; nothing was written."""

    def __init__(self, queue: str, chosen_id: str, other: str) -> None:
        super().__init__(queue, chosen_id, other)
        self.queue, self.chosen_id, self.other = queue, chosen_id, other

    def __str__(self) -> str:
        return (
            f"a {self.other} of queue {self.queue!r} has the id {self.chosen_id}: a run and a group of calls would "
            "share one result; start this one under another id, or in another queue"
        )


class SignalGivenError(RefusedError):
    """The run already has this signal with another value, or its wait has timed out. The first one counts."""

    def __init__(self, queue: str, message_id: str, signal: str) -> None:
        super().__init__(queue, message_id, signal)
        self.queue, self.message_id, self.signal = queue, message_id, signal

    def __str__(self) -> str:
        return (
            f"run {self.message_id} of queue {self.queue!r} already has the signal {self.signal!r} with another "
            "value, or no longer waits for it; while the run is dead, the value can be replaced"
        )


class SignalTimeoutError(QworkerError, TimeoutError):
    """The wait of a run for a signal has timed out. The run may continue, and will not get the signal."""

    def __init__(self, signal: str) -> None:
        super().__init__(signal)
        self.signal = signal

    def __str__(self) -> str:
        return f"the signal {self.signal!r} was not given in time"


class SourceShrankError(QworkerError):
    """A loop of a run has done `done` items, and its source now has fewer items than before: `length`.

    Items before its position are gone, so the next one is not known.
    """

    def __init__(self, loop: str, done: int, length: int) -> None:
        super().__init__(loop, done, length)
        self.loop, self.done, self.length = loop, done, length

    def __str__(self) -> str:
        return (
            f"loop {self.loop!r} has done {self.done:,} items, but its source has only {self.length:,} now, fewer than "
            "before; only let it grow at its end, or loop over a function that takes the key of the last item"
        )
