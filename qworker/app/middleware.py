"""Middleware: code around every send and every handler of an app."""

from __future__ import annotations

import inspect
from typing import TYPE_CHECKING, Final

from qworker.config.kinds import shown
from qworker.errors import InvalidOptionError

if TYPE_CHECKING:
    from qworker.app.context import Context

__all__ = ["Middleware", "check_hooks"]

_HOOKS: Final = ("sending", "before", "after")


class Middleware:
    """Hooks around sends and handlers; override what you need.

    `before` runs in the order of registration, `after` in the reverse. An exception in `before` is the handler's
    failure and the handler does not run; one in `after` is logged and changes nothing. They run where the handler
    runs: in its thread, or on the event loop, where they must not block.
    """

    def sending(self, task: str, body: bytes, flags: dict[str, str]) -> None:
        """Run before a message is sent; flags of one letter may be added (see the envelope's)."""

    def before(self, context: Context) -> None:
        """Run before the handler."""

    def after(self, context: Context, outcome: str, error: BaseException | None) -> None:
        """Run after the handler.

        `outcome` is one of acked, nacked, buried, released, discarded, expired, time_limit.
        """


def check_hooks(middleware: object) -> None:
    """Raise `InvalidOptionError` for what is not a middleware, or would have to be awaited: it would never run."""
    for name in _HOOKS:
        hook = getattr(middleware, name, None)
        field = f"middleware {shown(type(middleware).__name__)}"
        if not callable(hook):
            raise InvalidOptionError(
                field, f"has no {name}()", "make an object of a class that inherits from Middleware"
            )
        if inspect.iscoroutinefunction(hook) or inspect.isasyncgenfunction(hook):
            raise InvalidOptionError(
                field,
                f"has an async {name}()",
                "hooks are plain functions, also for async handlers",
            )
