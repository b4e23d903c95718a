"""Middleware: hooks around every send and every handler of an app."""

from __future__ import annotations

import inspect
from typing import TYPE_CHECKING, Final

from qworker.errors import InvalidOptionError, shown

if TYPE_CHECKING:
    from qworker.app.context import Context

__all__ = ["Middleware", "check_hooks"]

_HOOKS: Final = ("sending", "before", "after")


class Middleware:
    """Hooks around sends and handlers; override those you need.

    `before` hooks run in the order of registration, `after` hooks in reverse. An exception in `before` counts as the
    handler's failure, and the handler does not run; one in `after` is logged and changes nothing. Hooks run in the
    handler's thread, or on the event loop, where they must not block.
    """

    def sending(self, task: str, body: bytes, flags: dict[str, str]) -> None:
        """Run before a message is sent; may add flags, named by one letter (see `qworker.wire.envelope`)."""

    def before(self, context: Context) -> None:
        """Run before the handler."""

    def after(self, context: Context, outcome: str, error: BaseException | None) -> None:
        """Run after the handler.

        `outcome` is one of acked, nacked, buried, released, discarded, expired, time_limit.
        """


def check_hooks(middleware: object) -> None:
    """Raise `InvalidOptionError` for a missing hook, and for an async one: nothing would await it."""
    for name in _HOOKS:
        hook = getattr(middleware, name, None)
        field = f"middleware {shown(type(middleware).__name__)}"
        if not callable(hook):
            raise InvalidOptionError(
                field,
                f"has no {name}()",
                "pass an instance of a class that inherits from Middleware",
            )
        if inspect.iscoroutinefunction(hook) or inspect.isasyncgenfunction(hook):
            raise InvalidOptionError(
                field,
                f"has an async {name}()",
                "hooks are plain functions, even for async handlers",
            )
