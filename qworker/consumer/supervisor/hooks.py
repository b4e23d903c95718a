"""Functions that a supervisor calls for the process that runs it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from qworker.consumer.manifest import Manifest

__all__ = ["Hooks"]


@dataclass(frozen=True, slots=True)
class Hooks:
    """Functions that a supervisor calls in its thread.

    `on_manifest`: once, with the first manifest (it registers schedules, starts companions …). `on_schedules`: with
    each later manifest whose schedules differ, because the app was changed. `on_turn`: at each turn of the main loop.
    """

    on_manifest: Callable[[Manifest], None] = lambda manifest: None
    on_schedules: Callable[[Manifest], None] = lambda manifest: None
    on_turn: Callable[[], None] = lambda: None
