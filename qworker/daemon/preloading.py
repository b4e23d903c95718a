"""Keeps the scripts loaded on every server, for clients that may not load any (`qworker acl --loading daemon`).

A server forgets its scripts when it restarts, and a replica that takes over never had them. Whoever may load them does
so when a call finds one missing; whoever may not waits for this.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any, Final

import structlog

from qworker.client.commands.command import Command
from qworker.client.sync import Client
from qworker.store.nodes import Address
from qworker.store.scripts import SCRIPT_NAMES, load_script

__all__ = ["Preloader"]

_log = structlog.get_logger(__name__)

#: Seconds between two looks: one call to each server.
_EVERY_S: Final = 5.0
_GIVE_UP_S: Final = 2.0


class Preloader:
    """Looks every few seconds whether all scripts are there, and loads those that are not."""

    def __init__(self, client: Client, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._client = client
        self._clock = clock
        self._due = float("-inf")

    def keep(self) -> int:
        """Load what is missing, if it is time to look; returns how many scripts that were. Raises `ServerError`."""
        if self._clock() < self._due:
            return 0
        self._due = self._clock() + _EVERY_S
        loaded = sum(self._load_missing(node) for node in self._client.factory.masters())
        if loaded:
            _log.info("scripts_loaded", number=loaded)
        return loaded

    def _load_missing(self, node: Address) -> int:
        scripts = [load_script(name) for name in SCRIPT_NAMES]
        shas = (script.sha for script in scripts)
        there: list[Any] = self._ask(node, "SCRIPT", "EXISTS", *shas)
        missing = [script for script, is_there in zip(scripts, there, strict=True) if not is_there]
        for script in missing:
            self._ask(node, "SCRIPT", "LOAD", script.source)
        return len(missing)

    def _ask(self, node: Address, *words: str | bytes) -> Any:
        command: Command[Any] = Command(None, (), words, lambda reply: reply, node=node)
        return self._client.execute(command, give_up_s=_GIVE_UP_S)
