"""A PostgreSQL with its defaults, from a wheel in a peer's environment, on a Unix socket of its own."""

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import psutil

from benchmarks.rounds import ContenderError
from benchmarks.stand import wait_until

__all__ = ["Postgres", "postgres"]

_NAMED = "import pathlib, pgserver; print(pathlib.Path(pgserver.__file__).parents[1])"


class Postgres:
    """A running server."""

    def __init__(self, directory: Path, process: subprocess.Popen[bytes]) -> None:
        self.url = f"postgresql://postgres@/postgres?host={directory}"
        self._process = psutil.Process(process.pid)

    def cpu_s(self) -> float:
        """CPU seconds of the server and of all its backends, ended ones included."""
        times = self._process.cpu_times()
        spent = times.user + times.system + times.children_user + times.children_system
        for backend in self._process.children(recursive=True):
            own = backend.cpu_times()
            spent += own.user + own.system
        return float(spent)


@contextmanager
def postgres(python: Path) -> Iterator[Postgres]:
    """Run the server that the package pgserver brings to this Python's environment. Raises `ContenderError`."""
    # It refuses to run as root, and nobody may read the folder of root.
    other: dict[str, Any] = {"user": "nobody"} if os.geteuid() == 0 else {}
    directory = Path(tempfile.mkdtemp(prefix="qworker-postgres-"))
    try:
        packages = Path(_output(str(python), "-c", _NAMED).strip())
        # Beside each other, as its programs look for their libraries.
        for name in ("pgserver", "pgserver.libs"):
            shutil.copytree(packages / name, directory / name, symlinks=True)
        data = directory / "data"
        data.mkdir()
        if other:
            shutil.chown(directory, "nobody")
            shutil.chown(data, "nobody")
        programs = directory / "pgserver" / "pginstall" / "bin"
        _output(str(programs / "initdb"), "-D", str(data), "-U", "postgres", "-A", "trust", **other)
        words = ("-D", str(data), "-k", str(directory), "-c", "listen_addresses=")
        with (directory / "log").open("wb") as log:
            process = subprocess.Popen(
                [str(programs / "postgres"), *words], stdout=log, stderr=log, cwd="/", **other
            )
        try:
            ready = directory / "log"
            wait_until(lambda: b"ready to accept connections" in ready.read_bytes(), limit_s=30)
            yield Postgres(directory, process)
        finally:
            process.terminate()
            process.wait()
    finally:
        shutil.rmtree(directory, ignore_errors=True)


def _output(*words: str, **given: Any) -> str:
    done = subprocess.run(words, capture_output=True, text=True, check=False, cwd="/", **given)
    if done.returncode:
        raise ContenderError(f"{words[0]} failed: {done.stderr.strip()[-400:]}")
    text: str = done.stdout
    return text
