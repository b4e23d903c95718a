"""Tests of your tasks: real handlers and scripts, a private server, and time that passes on command.

    from qworker.testing import advance, drain

    def test_a_new_customer_is_welcomed(shop):            # a fixture made with qworker_bind, see `plugin`
        sign_up("a@b.c")                                  # sends a message
        assert drain(shop).handled == 1                   # runs it, here

Names are imported on first use: pytest loads the plugin in this package into every run.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from qworker.testing.binding import bind
    from qworker.testing.clock import advance
    from qworker.testing.draining import Drained, drain

__all__ = ["Drained", "advance", "bind", "drain"]

_HOMES: Final = {
    "Drained": "draining",
    "advance": "clock",
    "bind": "binding",
    "drain": "draining",
}


def __getattr__(name: str) -> Any:
    if name in _HOMES:
        return getattr(import_module(f"qworker.testing.{_HOMES[name]}"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
