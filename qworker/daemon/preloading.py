"""Keeps the scripts loaded on every server, for clients that may not load them: all but daemon and operator.

A server forgets its scripts when it restarts, and a replica that takes over never had them. A client with the right to
load them does so when one is missing; others wait for the daemon, or for `qworker scripts load`.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any, Final

import structlog

from qworker.client.execute.sync import Client
from qworker.engine.command import Command
from qworker.engine.raw import raw
from qworker.engine.scripts import SCRIPT_NAMES, load_script
from qworker.errors import ServerError
from qworker.store.nodes import Address

__all__ = ["Preloader", "load_missing_scripts", "missing_scripts", "script_shas"]

_log = structlog.get_logger(__name__)

#: Seconds between two checks: one call to each server.
_EVERY_S: Final = 1.0
_GIVE_UP_S: Final = 2.0


class Preloader:
    """Checks every second that all scripts are on every master, and loads missing ones."""

    def __init__(self, client: Client, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._client = client
        self._clock = clock
        self._due = float("-inf")

    def keep(self) -> int:
        """Load missing scripts, if it is time to check; returns how many were loaded.

        Raises the `ServerError` of a server that does not answer, after the others were checked.
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


def script_shas() -> dict[str, str]:
    """Return the scripts of this version: name → SHA1."""
    return {name: load_script(name).sha for name in SCRIPT_NAMES}


def missing_scripts(client: Client, node: Address) -> list[str]:
    """Return the names of scripts that one server lacks. Raises `ServerError`."""
    shas = script_shas()
    loaded: list[int] = _ask(client, node, "SCRIPT", "EXISTS", *shas.values())
    return [name for name, is_loaded in zip(shas, loaded, strict=True) if not is_loaded]


def load_missing_scripts(client: Client, node: Address) -> list[str]:
    """Load the scripts that one server lacks; returns their names. Raises `ServerError`."""
    missing = missing_scripts(client, node)
    for name in missing:
        _ask(client, node, "SCRIPT", "LOAD", load_script(name).source)
    return missing


def _ask(client: Client, node: Address, *words: str | bytes) -> Any:
    command: Command[Any] = raw(*words, node=node)
    return client.execute(command, give_up_s=_GIVE_UP_S)
