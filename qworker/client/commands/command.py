"""The command value, and the course of its attempts."""

from __future__ import annotations

import random
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, Final, Generic, TypeVar

from qworker.errors import (
    BusyError,
    ClusterMovingError,
    InDoubtError,
    LoadingError,
    NotReplicatedError,
    QworkerError,
    ReadOnlyError,
    RefusedError,
    RetryRule,
    ServerError,
    UnavailableError,
)
from qworker.store.scripts import Script

__all__ = ["GIVE_UP_S", "Attempt", "Command", "Pause", "Word"]

T = TypeVar("T")
Word = bytes | str | int


@dataclass(frozen=True, slots=True)
class Command(Generic[T]):
    """One call of a script (or, with `script` None, of a plain Redis command).

    `decode` turns the reply into the result, or raises a `RefusedError`. Every command may be repeated when its reply
    was lost: scripts are idempotent by lane and number, lease id or receipt. `resume_at` names the one argument
    that a repetition sets to 1 (a receive that must not create its lease twice). `then` is a plain command that follows
    in the same trip; `decode` is given both replies, the second may be the server's error.
    """

    script: Script | None
    keys: tuple[str, ...]
    args: tuple[Word, ...]
    decode: Callable[[Any], T]
    resume_at: int | None = None
    then: tuple[Word, ...] = ()

    def words(self) -> tuple[Word, ...]:
        """Write the command as it goes over the wire."""
        if self.script is None:
            return self.args
        return ("EVALSHA", self.script.sha, len(self.keys), *self.keys, *self.args)

    def repeated(self) -> Command[T]:
        """Return the command to send when this one's reply was lost."""
        if self.resume_at is None:
            return self
        args = (*self.args[: self.resume_at], 1, *self.args[self.resume_at + 1 :])
        return replace(self, args=args, resume_at=None)


@dataclass(frozen=True, slots=True)
class Pause:
    """A step of a plan that only waits."""

    seconds: float


#: Errors that pass by themselves; the others are told at once.
_TRANSIENT: Final = (
    UnavailableError,
    InDoubtError,
    LoadingError,
    BusyError,
    ReadOnlyError,
    ClusterMovingError,
)
#: Seconds after which a call that cannot be made is given up.
GIVE_UP_S: Final = 60.0
_FIRST_PAUSE_S: Final = 0.01
_LONGEST_PAUSE_S: Final = 0.5


class Attempt(Generic[T]):
    """The attempts at one command until it succeeds, is refused, or `give_up_s` seconds are over."""

    __slots__ = ("_deadline", "_doubt", "_pause_s", "command")

    def __init__(self, command: Command[T], give_up_s: float) -> None:
        self.command = command
        self._deadline = time.monotonic() + give_up_s
        self._doubt: InDoubtError | None = None
        self._pause_s = _FIRST_PAUSE_S

    @property
    def in_doubt(self) -> bool:
        """Whether an earlier try may have run."""
        return self._doubt is not None

    def failed(self, error: QworkerError) -> float:
        """Return the seconds to wait before the next try, or raise what the caller should see.

        After doubt a refusal proves nothing (the first try may have run before it), so the doubt is raised.
        """
        if isinstance(error, NotReplicatedError):
            raise error  # it is stored, whatever became of earlier tries
        if isinstance(error, InDoubtError):
            self._doubt = error
            self.command = self.command.repeated()
        if isinstance(error, RefusedError):
            if self._doubt is not None:
                raise self._doubt from error
            raise error
        transient = isinstance(error, _TRANSIENT) or (
            self._doubt is not None
            and isinstance(error, ServerError)
            and error.retry is not RetryRule.NEVER
        )
        if not transient or time.monotonic() + self._pause_s > self._deadline:
            if self._doubt is not None and self._doubt is not error:
                raise self._doubt from error
            raise error
        pause_s = self._pause_s * random.uniform(0.5, 1.0)  # noqa: S311 - spreading, not secrecy
        self._pause_s = min(self._pause_s * 2, _LONGEST_PAUSE_S)
        return pause_s
