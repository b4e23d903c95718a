"""Middleware: code around every send and every handler of an app."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from qworker.app.context import Context

__all__ = ["Middleware"]


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
        """Run after the handler. `outcome` is one of acked, nacked, buried, released, discarded, expired."""
