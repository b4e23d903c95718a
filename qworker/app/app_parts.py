"""The parts of an app that handles and runs use."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from qworker.client.queue import AsyncQueue, Queue
    from qworker.wire.keyring import Keyring

__all__ = ["HandleApp", "RunApp"]


class HandleApp(Protocol):
    """The part of an app that handles use."""

    @property
    def namespace(self) -> str:
        """The namespace of its queues."""

    def queue(self, name: str) -> Queue:
        """Return a queue by its name."""

    def aqueue(self, name: str) -> AsyncQueue:
        """Return a queue of the running event loop by its name."""


class RunApp(HandleApp, Protocol):
    """The part of an app that runs use."""

    @property
    def keyring(self) -> Keyring:
        """The keys that sign and encrypt."""

    @property
    def loop_limit(self) -> int | None:
        """Items after which loops of runs are interrupted, in tests."""
