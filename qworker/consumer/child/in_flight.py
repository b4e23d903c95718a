"""A call of a child that has no reply yet."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

import msgspec

from qworker.errors import InDoubtError, ServerError, UnfinishedError

if TYPE_CHECKING:
    from qworker.engine.command import Command
    from qworker.store.connections import ServerConnection

__all__ = ["InFlightCall"]


class InFlightCall(msgspec.Struct):
    """A command in flight. `server`: the connection over which its reply comes, None until it is sent (again).

    `lost`: it was sent over a connection that broke, so it may have run, whatever a repetition says.
    """

    command: Command[Any]
    server: ServerConnection | None
    #: It may have been sent before: the next time it goes as a repetition.
    sent: bool
    lost: bool = False
    #: When it was begun, by the monotonic clock.
    at: float = msgspec.field(default_factory=time.monotonic)

    def raise_doubt(self, error: ServerError) -> None:
        """Raise `InDoubtError` if the call was lost, whatever the error of its repetition says."""
        if self.lost and not isinstance(error, InDoubtError | UnfinishedError):
            raise InDoubtError(str(error)) from error
