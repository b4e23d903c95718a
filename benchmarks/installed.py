"""The environment of processes that a benchmark starts: as after an installation, without what tests need beside it."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory

__all__ = ["as_installed"]

#: redis-py imports its SDK wherever that is installed. Here examples need it.
_UNNEEDED = "opentelemetry"
_ABSENT = 'raise ModuleNotFoundError(f"No module named {__name__!r}", name=__name__)\n'


@contextmanager
def as_installed() -> Iterator[Mapping[str, str]]:
    """Yield the environment of processes that keep the bytecode of all modules until the context ends.

    The first process compiles them, so it does not count where starts are measured.
    """
    with TemporaryDirectory() as bytecode, TemporaryDirectory() as absent:
        Path(absent, f"{_UNNEEDED}.py").write_text(_ABSENT)
        paths = [absent, *filter(None, [os.environ.get("PYTHONPATH")])]
        yield {
            "PYTHONPYCACHEPREFIX": bytecode,
            "PYTHONDONTWRITEBYTECODE": "",
            "PYTHONPATH": os.pathsep.join(paths),
        }
