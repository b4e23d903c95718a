"""The real producers of other systems, installed once and run as their own processes.

Python's come from PyPI into an environment in pytest's cache, Node's from npm beside it; each is built once and then
reused, also by the processes of pytest-xdist. A machine without network, node or npm skips these tests, and fails them
where the environment says CI=true.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import shutil
import subprocess
import sys
import venv
from collections.abc import Callable
from pathlib import Path

from tests.programs import program
from tests.servers import missing

__all__ = ["PYTHON_PACKAGES", "Producers"]

PYTHON_PACKAGES = ("rq==2.12.0", "celery[redis]==5.7.0")
NODE_PACKAGES = ("rsmq@0.12.4",)
_INSTALL_S = 300


class Producers:
    """Runs scripts that use the producers' own libraries."""

    def __init__(self, cache: Path) -> None:
        self._cache = cache

    def python(self, source: str, *arguments: str) -> str:
        """Run Python that can import rq and celery; returns what it printed."""
        home = self._made("python", PYTHON_PACKAGES, _make_python)
        return _run([str(home / "bin" / "python"), "-c", source, *arguments], home)

    def node(self, source: str, *arguments: str) -> str:
        """Run JavaScript that can require rsmq; returns what it printed."""
        for name in ("node", "npm"):
            program(name)
        home = self._made("node", NODE_PACKAGES, _make_node)
        return _run(["node", "-e", source, *arguments], home)

    def _made(
        self, name: str, packages: tuple[str, ...], make: Callable[[Path, tuple[str, ...]], None]
    ) -> Path:
        digest = hashlib.sha256(repr((packages, sys.version)).encode()).hexdigest()[:12]
        home = self._cache / f"{name}-{digest}"
        with (self._cache / f"{name}.lock").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            if not (home / "ready").exists():
                shutil.rmtree(home, ignore_errors=True)
                home.mkdir()
                make(home, packages)
                (home / "ready").touch()
        return home


def _make_python(home: Path, packages: tuple[str, ...]) -> None:
    venv.create(home, with_pip=False, symlinks=True)
    pip = [sys.executable, "-m", "pip", "--disable-pip-version-check", "--quiet"]
    python = str(home / "bin" / "python")
    # Each imports a part of what is installed, which is compiled then.
    _install([*pip, "--python", python, "install", "--no-compile", *packages], home)


def _make_node(home: Path, packages: tuple[str, ...]) -> None:
    (home / "package.json").write_text("{}")
    quiet = ["--no-audit", "--no-fund", "--ignore-scripts", "--loglevel=error"]
    _install(["npm", "install", *quiet, *packages], home)


def _install(command: list[str], home: Path) -> None:
    done = subprocess.run(
        command, cwd=home, capture_output=True, text=True, timeout=_INSTALL_S, check=False
    )
    if done.returncode:
        missing(f"{' '.join(command)} failed: {done.stderr[-500:]}")


def _run(command: list[str], home: Path) -> str:
    kept = {name: value for name, value in os.environ.items() if not name.startswith("PYTHON")}
    done = subprocess.run(
        command, cwd=home, env=kept, capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == 0, done.stderr
    return done.stdout
