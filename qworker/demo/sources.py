"""Finds the input: every .py file below some directories."""

from __future__ import annotations

import os
import site
import sysconfig
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from qworker.errors import InvalidOptionError

__all__ = ["SourceFile", "Sources", "find_sources"]

#: Maximum files of an environment, so that the demo takes less than a minute; a PATH has no limit.
MAX_FILES: Final = 5000
_NOT_SOURCE: Final = frozenset({"__pycache__", "site-packages", "dist-packages", "node_modules"})


@dataclass(frozen=True, slots=True)
class SourceFile:
    """One file, and its name as a module below the directory: `asyncio.base_events`."""

    path: str
    module: str


@dataclass(frozen=True, slots=True)
class Sources:
    """The files in order, the directories searched, and texts about files left out."""

    files: tuple[SourceFile, ...]
    roots: tuple[str, ...]
    left_out: tuple[str, ...]


def find_sources(path: str | os.PathLike[str] | None, *, most: int = MAX_FILES) -> Sources:
    """Find the .py files below `path`; None: the standard library and installed packages, at most `most` files.

    Raises `InvalidOptionError` if `path` is not a directory, cannot be read, or holds no .py file.
    """
    roots = _environment() if path is None else [_directory(path)]
    files: list[SourceFile] = []
    left_out: list[str] = []
    for root in roots:
        for file in _files_below(root, left_out):
            if file.isprintable():
                files.append(SourceFile(file, _module(root, file)))
            else:
                left_out.append(f"{file!a}: its name is not printable text")
    if path is not None and not files:
        reason = f" ({left_out[0]})" if left_out else ""
        raise InvalidOptionError(
            "path",
            f"{roots[0]!r} holds no .py file that can be read{reason}",
            "name a directory with Python source code, or none for the standard library",
        )
    if path is None and len(files) > most:
        left_out.append(f"{len(files) - most:,} of {len(files):,} files: the demo takes {most:,}")
        files = files[:most]
    return Sources(tuple(files), tuple(roots), tuple(left_out))


def _environment() -> list[str]:
    paths = sysconfig.get_paths()
    candidates = [paths["stdlib"], paths["purelib"], paths["platlib"], *site.getsitepackages()]
    directories = dict.fromkeys(os.path.realpath(path) for path in candidates)
    return [path for path in directories if os.path.isdir(path)]


def _directory(path: str | os.PathLike[str]) -> str:
    root = os.path.realpath(path)
    if not os.path.isdir(root):
        problem = "is not a directory" if os.path.exists(root) else "does not exist"
        raise InvalidOptionError(
            "path", f"{os.fspath(path)!r} {problem}", "name a directory with Python source code"
        )
    return root


def _files_below(root: str, left_out: list[str]) -> Iterator[str]:
    """Walk in sorted order without following links to directories; add unreadable ones to `left_out`."""

    def note(error: OSError) -> None:
        left_out.append(f"{error.filename}: {error.strerror}")

    for directory, below, names in os.walk(root, onerror=note):
        below[:] = sorted(name for name in below if name not in _NOT_SOURCE)
        for name in sorted(names):
            file = os.path.join(directory, name)
            if name.endswith(".py") and os.path.isfile(file):
                yield file


def _module(root: str, file: str) -> str:
    parts = Path(file).relative_to(root).with_suffix("").parts
    if parts[-1] == "__init__" and len(parts) > 1:
        parts = parts[:-1]
    return ".".join(parts)
