"""The environment of processes that a benchmark starts: as after an installation, without what tests need beside it."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Final

import tests

__all__ = ["as_installed"]

#: In it OpenTelemetry is absent, all of which redis-py imports wherever it is installed. Here examples need it.
_ABSENT: Final = str(Path(tests.__file__).with_name("absent"))


@contextmanager
def as_installed() -> Iterator[Mapping[str, str]]:
    """Yield the environment of processes that keep the bytecode of all modules until the context ends.

    The first process compiles them, so it does not count where starts are measured.
    """
    with TemporaryDirectory() as bytecode:
        paths = [_ABSENT, *filter(None, [os.environ.get("PYTHONPATH")])]
        yield {
            "PYTHONPYCACHEPREFIX": bytecode,
            "PYTHONDONTWRITEBYTECODE": "",
            "PYTHONPATH": os.pathsep.join(paths),
        }
