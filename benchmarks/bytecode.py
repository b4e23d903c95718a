"""The bytecode of workers that a benchmark starts: as after an installation, also where this process writes none."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from tempfile import TemporaryDirectory

__all__ = ["as_installed"]


@contextmanager
def as_installed() -> Iterator[Mapping[str, str]]:
    """Yield the environment of processes that keep the bytecode of all modules until the context ends.

    The first process compiles them, so it does not count where starts are measured.
    """
    with TemporaryDirectory() as bytecode:
        yield {"PYTHONPYCACHEPREFIX": bytecode, "PYTHONDONTWRITEBYTECODE": ""}
