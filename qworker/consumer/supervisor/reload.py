"""Asks for new children when a source file changes: for development, `qworker run --reload`."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from typing import Final

import structlog

from qworker.errors import InvalidOptionError

__all__ = ["Reloader"]

_log = structlog.get_logger(__name__)

#: Changes this close together, in ms, are one: an editor writes a file in several steps.
_STEP_MS: Final = 50
_DEBOUNCE_MS: Final = 400
_JOIN_S: Final = 1.0


class Reloader:
    """Watches the Python files under a directory, by default the current one, in its own thread.

    `reload` is called from that thread. Raises `InvalidOptionError` if the package watchfiles is missing.
    """

    def __init__(self, reload: Callable[[], None], directory: str | None = None) -> None:
        try:
            import watchfiles
        except ImportError as error:
            raise InvalidOptionError(
                "reload",
                "needs the package watchfiles, which is not installed",
                "pip install 'qworker-redis[reload]', or leave --reload out",
            ) from error
        self._watch = watchfiles.watch
        self._filter = watchfiles.PythonFilter()
        self._reload = reload
        self._directory = os.getcwd() if directory is None else directory
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, name="qworker-reload", daemon=True)

    def start(self) -> None:
        """Start watching."""
        self._thread.start()

    def stop(self) -> None:
        """Stop watching."""
        self._stopping.set()
        if self._thread.is_alive():
            self._thread.join(_JOIN_S)

    def _run(self) -> None:
        try:
            for changes in self._watch(
                self._directory,
                watch_filter=self._filter,
                stop_event=self._stopping,
                step=_STEP_MS,
                debounce=_DEBOUNCE_MS,
                rust_timeout=500,
                raise_interrupt=False,
            ):
                files = sorted({os.path.relpath(path, self._directory) for _, path in changes})
                _log.info("sources_changed", files=files[:10])
                self._reload()
        except OSError as error:
            # Too many files for inotify, or a deleted directory: the worker runs on without reloads.
            _log.error("reload_stopped", directory=self._directory, error=str(error))
