"""Keeps the scripts loaded on every server, for clients that may not load any: all but daemon and operator.

A server forgets its scripts when it restarts, and a replica that takes over never had them. Whoever may load them does
so when a call finds one missing; whoever may not waits for this, or for `qworker scripts load`.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any, Final

import structlog

from qworker.client.commands.command import Command
from qworker.client.sync import Client
from qworker.errors import ServerError
from qworker.store.nodes import Address
from qworker.store.scripts import SCRIPT_NAMES, load_script

__all__ = ["Preloader", "load_missing_scripts", "missing_scripts"]

_log = structlog.get_logger(__name__)

#: Seconds between two looks: one call to each server.
_EVERY_S: Final = 1.0
_GIVE_UP_S: Final = 2.0


class Preloader:
    """Looks every second whether all scripts are on every master, and loads those that are not."""

    def __init__(self, client: Client, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._client = client
        self._clock = clock
        self._due = float("-inf")

    def keep(self) -> int:
        """Load what is missing, if it is time to look; returns how many scripts that were. Raises `ServerError`.

        A server that does not answer keeps none of the others from being looked at.
        """
        if self._clock() < self._due:
            return 0
        self._due = self._clock() + _EVERY_S
        loaded, failed = 0, None
        for node in self._client.factory.masters():
            try:
                loaded += len(load_missing_scripts(self._client, node))
            except ServerError as error:
                failed = error
        if loaded:
            _log.info("scripts_loaded", number=loaded)
        if failed is not None:
            raise failed
        return loaded


def missing_scripts(client: Client, node: Address) -> list[str]:
    """Name the scripts that one server lacks. Raises `ServerError`."""
    shas = (load_script(name).sha for name in SCRIPT_NAMES)
    there: list[Any] = _ask(client, node, "SCRIPT", "EXISTS", *shas)
    return [name for name, found in zip(SCRIPT_NAMES, there, strict=True) if not found]


def load_missing_scripts(client: Client, node: Address) -> list[str]:
    """Load the scripts that one server lacks; returns their names. Raises `ServerError`."""
    missing = missing_scripts(client, node)
    for name in missing:
        _ask(client, node, "SCRIPT", "LOAD", load_script(name).source)
    return missing


def _ask(client: Client, node: Address, *words: str | bytes) -> Any:
    command: Command[Any] = Command(None, (), words, lambda reply: reply, node=node)
    return client.execute(command, give_up_s=_GIVE_UP_S)
