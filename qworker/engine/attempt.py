"""The attempts at a command: how long it is tried, after which errors, and with which pauses."""

from __future__ import annotations

import random
import time
from typing import Final, Generic, TypeVar

import msgspec

from qworker.engine.command import Command
from qworker.errors import (
    AccessDeniedError,
    BusyError,
    ClusterMovingError,
    InDoubtError,
    LoadingError,
    NotReplicatedError,
    OutOfMemoryError,
    QworkerError,
    ReadOnlyError,
    RefusedError,
    RetryRule,
    ScriptsNotLoadedError,
    ServerError,
    UnavailableError,
    UnfinishedError,
)
from qworker.store.nodes import Address
from qworker.store.topology import RedirectedError

__all__ = ["GIVE_UP_S", "LEAST_S", "Attempt", "Patience"]

T = TypeVar("T")

#: Errors that pass by themselves; others are raised at once.
_TRANSIENT: Final = (
    UnavailableError,
    InDoubtError,
    LoadingError,
    BusyError,
    ReadOnlyError,
    ClusterMovingError,
)
#: Errors of a script that cannot be called.
_CANNOT_CALL: Final = (AccessDeniedError, ScriptsNotLoadedError)
#: Seconds after which a failing call is given up.
GIVE_UP_S: Final = 60.0
_FIRST_PAUSE_S: Final = 0.01
_LONGEST_PAUSE_S: Final = 0.5
#: The least seconds that a server gets to answer.
LEAST_S: Final = 0.05
#: Redirections that are followed at once; after more of them the nodes disagree.
_AT_ONCE: Final = 5


class Patience(msgspec.Struct, frozen=True):
    """How long a call is tried: attempts begin for `give_up_s` seconds.

    `within_s`: the longest wait for each reply, connecting included; None for that of the connection. `ends_waits`: no
    wait lasts longer than the rest of `give_up_s`, either.
    """

    give_up_s: float
    within_s: float | None = None
    ends_waits: bool = True

    def waits_s(self, usual_s: float) -> float | None:
        """Return how long a trip to several servers waits for replies; None for `usual_s`."""
        if not self.ends_waits:
            return self.within_s
        return max(self.give_up_s, LEAST_S) if 0 < self.give_up_s < usual_s else None

    def is_over(self, waited_s: float) -> bool:
        """Whether a server gets no other attempt after a wait of this long."""
        return waited_s >= self.give_up_s

    def after(self, waited_s: float) -> Patience:
        """Return the seconds that are left."""
        if not waited_s:
            return self
        left_s = max(0.0, self.give_up_s - waited_s)
        return Patience(left_s, self.within_s, ends_waits=self.ends_waits)


class Attempt(Generic[T]):
    """The attempts at one command until it succeeds, is refused, or `give_up_s` seconds are over."""

    __slots__ = (
        "_deadline",
        "_doubt",
        "_elsewhere",
        "_full",
        "_give_up_s",
        "_pause_s",
        "_redirected",
        "command",
        "detour",
    )

    def __init__(self, command: Command[T], give_up_s: float, *, elsewhere: bool = False) -> None:
        """`elsewhere`: the caller has an alternative, so definite errors are raised at once."""
        self.command = command
        self._give_up_s = give_up_s
        self._elsewhere = elsewhere
        self._deadline = time.monotonic() + give_up_s
        self._doubt: InDoubtError | None = None
        self._full: OutOfMemoryError | None = None
        self._pause_s = _FIRST_PAUSE_S
        self._redirected = 0
        #: The node to ask the next time, and only then, while the slot moves there.
        self.detour: Address | None = None

    def within_s(self, usual_s: float) -> float | None:
        """Return the timeout of each reply of the next attempt; None for the usual one, also for a single attempt."""
        if not self._give_up_s:
            return None
        left_s = self._deadline - time.monotonic()
        return None if left_s >= usual_s else max(left_s, LEAST_S)

    def failed(self, error: QworkerError) -> float:
        """Return the seconds to wait before the next attempt, or raise the error for the caller.

        After doubt a refusal proves nothing (an earlier attempt may have run), so the doubt is raised.
        """
        if isinstance(error, NotReplicatedError):
            raise error  # The messages are stored, by this attempt or an earlier one.
        if isinstance(error, UnfinishedError):
            self.command.name_script(error)
            raise error  # A repetition would do the first part twice.
        self.detour = None
        if isinstance(error, OutOfMemoryError) and self.command.on_full is not None:
            self._full, self.command = error, self.command.on_full
            return 0.0
        if self._full is not None and isinstance(error, _CANNOT_CALL):
            raise self._full from error  # A server that has not got the script yet, or an ACL of an older version.
        if isinstance(error, RedirectedError):
            self.detour = error.address if error.asking else None
            self._redirected += 1
            if self._redirected <= _AT_ONCE:
                return 0.0
        elif isinstance(error, ClusterMovingError) and not self.command.awaits_move:
            raise _untaken(error) from error
        if isinstance(error, InDoubtError):
            self._doubt = error
            self.command = self.command.repeated()
        if isinstance(error, RefusedError):
            if self._doubt is not None:
                raise self._doubt from error
            raise error
        if self._elsewhere and self._doubt is None and not isinstance(error, RedirectedError):
            raise error
        transient = isinstance(error, _TRANSIENT) or (
            self._doubt is not None
            and isinstance(error, ServerError)
            and error.retry is not RetryRule.NEVER
        )
        left_s = self._deadline - time.monotonic()
        if not transient or left_s <= 0:
            if self._doubt is not None and self._doubt is not error:
                raise self._doubt from error
            if isinstance(error, ClusterMovingError):
                raise _untaken(error) from error
            raise error
        pause_s = self._pause_s * random.uniform(0.5, 1.0)  # noqa: S311 - spreading, not secrecy
        self._pause_s = min(self._pause_s * 2, _LONGEST_PAUSE_S)
        # The last attempt is made when the time is over, and not before.
        return min(pause_s, left_s)


def _untaken(error: ClusterMovingError) -> UnavailableError:
    return UnavailableError(f"no node took the call in time: {error}")
