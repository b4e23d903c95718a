"""Errors of the server: it cannot serve a call now, with a rule for repeating it."""

from __future__ import annotations

from enum import Enum
from typing import TypeGuard

from qworker.errors.base import QworkerError

__all__ = [
    "AccessDeniedError",
    "BusyError",
    "ClusterMovingError",
    "InDoubtError",
    "LoadingError",
    "LoginError",
    "NoReplicasError",
    "NotPersistedError",
    "OutOfMemoryError",
    "ReadOnlyError",
    "RetryRule",
    "ScriptsNotLoadedError",
    "ServerError",
    "SlotUnservedError",
    "StoreError",
    "UnavailableError",
    "UnfinishedError",
    "UnsupportedServerError",
    "concerns_the_call",
    "is_answer",
    "is_of_server",
    "of_one_slot",
    "server_refused",
]


class RetryRule(Enum):
    """Whether you may repeat a call after a `ServerError`."""

    NEVER = "never"
    """The same call will fail again until something is changed; after `UnfinishedError` part of it may have run."""
    LATER = "later"
    """The call did not run; make it again after a pause."""
    REPEAT = "repeat"
    """The call may have run; repeat only the identical call (same lane and number, same lease)."""


class ServerError(QworkerError):
    """Redis cannot serve the call now."""

    retry: RetryRule = RetryRule.NEVER


class UnavailableError(ServerError):
    """The server was not reached, or the connection broke before the call was sent: it did not run.

    Also if no reply came to a call that only reads: nothing was changed.
    """

    retry = RetryRule.LATER


class ScriptsNotLoadedError(UnavailableError):
    """The server lacks scripts that this user may not load, or forgets them as fast as they are loaded: nothing ran.

    A running daemon loads them within seconds; without one, run `qworker scripts load`.
    """


class InDoubtError(ServerError):
    """The call was sent and no reply came: it may or may not have run."""

    retry = RetryRule.REPEAT


class UnfinishedError(ServerError):
    """A script failed at line `line`, and its earlier writes stay: part of the call may have run.

    For example, its user lost a right while it ran. It is not retried: that would repeat the first part. `script` is
    its name, '' if unknown; lines are counted in its text with all includes.
    """

    def __init__(self, problem: str, line: int, script: str = "") -> None:
        super().__init__(problem, line, script)
        self.problem, self.line, self.script = problem, line, script

    def __str__(self) -> str:
        named = f"script {self.script}" if self.script else "the script"
        return (
            f"{named} failed midway, at line {self.line}: part of the call may have run, and it is not retried; "
            f"fix what the server names, then run qworker fsck on the queue (the server said: {self.problem})"
        )


class LoadingError(ServerError):
    """The server is loading its data into memory."""

    retry = RetryRule.LATER


class BusyError(ServerError):
    """The server is busy with a long-running script."""

    retry = RetryRule.LATER


class ReadOnlyError(ServerError):
    """The server is a replica, mostly after a failover."""

    retry = RetryRule.LATER


class ClusterMovingError(ServerError):
    """The slot of the keys is being moved or has no master."""

    retry = RetryRule.LATER


class SlotUnservedError(ClusterMovingError):
    """No node of the Cluster serves the slot of the keys, as after a resharding that was stopped halfway."""


class NotPersistedError(ServerError):
    """The server cannot write to its disk and refuses writes (MISCONF)."""

    retry = RetryRule.LATER


class NoReplicasError(ServerError):
    """The master has too few connected replicas and refuses writes (NOREPLICAS)."""

    retry = RetryRule.LATER


class OutOfMemoryError(ServerError):
    """maxmemory is reached: sends are refused; receiving and settling still work."""

    retry = RetryRule.LATER


class AccessDeniedError(ServerError):
    """Wrong user or password, or a command or key that the user's ACL forbids."""


class LoginError(AccessDeniedError):
    """The server refused user and password, or asks for a password that the URL lacks. No call works."""


class UnsupportedServerError(ServerError):
    """The server is older than Redis 7.0, or lacks a feature that qworker needs."""


class StoreError(QworkerError):
    """The embedded store cannot be started, opened or stopped."""


def server_refused(error: BaseException) -> bool:
    """Say whether the server refused a command for a reason that has no class here, mostly a key of another type."""
    return type(error) is ServerError


def concerns_the_call(error: BaseException) -> bool:
    """Say whether an error is about this call, not about a server that cannot serve any call now."""
    return (
        not isinstance(error, ServerError)
        or isinstance(error, UnfinishedError)
        or server_refused(error)
    )


def of_one_slot(error: BaseException) -> bool:
    """Say whether an error is about the slot of the call's keys, not about a server: no node serves it."""
    return isinstance(error, SlotUnservedError) or isinstance(error.__cause__, SlotUnservedError)


def is_of_server(result: object) -> TypeGuard[ServerError]:
    """Say whether a result is an error of its server, which concerns other calls to it as well."""
    return (
        isinstance(result, ServerError)
        and result.retry is not RetryRule.NEVER
        and not of_one_slot(result)
    )


def is_answer(error: BaseException) -> bool:
    """Say whether a server replied that it cannot serve now: asking again costs a round trip, not a timeout."""
    return (
        isinstance(error, ServerError)
        and error.retry is not RetryRule.NEVER
        and (
            not isinstance(error, UnavailableError | InDoubtError)
            or isinstance(error, ScriptsNotLoadedError)
        )
    )
