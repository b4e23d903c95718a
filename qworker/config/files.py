"""The configuration file: found, read and checked as a file; `qworker.config.loading` knows what its keys mean."""

from __future__ import annotations

import os
import stat
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from qworker.errors import InvalidOptionError

__all__ = ["ConfigFile", "read_file"]

_NAME: Final = "qworker.toml"
_PYPROJECT: Final = "pyproject.toml"
_LIMIT: Final = "a configuration file is TOML in UTF-8"
#: No configuration is larger; something else was named by mistake.
_MAX_BYTES: Final = 1024 * 1024


@dataclass(frozen=True, slots=True)
class ConfigFile:
    """The tables of one file; without a `path` there is none. `warnings` are for people, one line each."""

    path: Path | None = None
    values: Mapping[str, object] = field(default_factory=dict)
    warnings: tuple[str, ...] = ()

    @property
    def name(self) -> str:
        """The file as error texts name it."""
        return "" if self.path is None else str(self.path)


def read_file(directory: Path, named: Path | None = None) -> ConfigFile:
    """Read the file `named`, else `qworker.toml` or `[tool.qworker]` of pyproject.toml in `directory`, if there is one.

    In a file called pyproject.toml only `[tool.qworker]` counts. Raises `InvalidOptionError` naming the file for one
    that cannot be read, is no TOML in UTF-8, or that was `named` and does not exist.
    """
    if named is not None:
        return _config(named, _section(named, _read(named)))
    own, pyproject = directory / _NAME, directory / _PYPROJECT
    section = _section(pyproject, _read(pyproject)) if os.path.lexists(pyproject) else None
    if os.path.lexists(own):
        also = f"{pyproject} has [tool.qworker] too, which is not read beside {own}"
        return _config(own, _read(own), *([also] if section is not None else []))
    return ConfigFile() if section is None else _config(pyproject, section)


def _config(path: Path, values: dict[str, Any] | None, *warnings: str) -> ConfigFile:
    values = values or {}
    url = values.get("url")
    if isinstance(url, str) and "@" in url and path.stat().st_mode & stat.S_IROTH:
        warnings += (f"{path} holds a password and every user can read it: chmod 600 {path}",)
    return ConfigFile(path, values, warnings)


def _section(path: Path, document: dict[str, Any]) -> dict[str, Any] | None:
    """Take what is ours in a document; None if a pyproject.toml has nothing."""
    if path.name != _PYPROJECT:
        return document
    tool = document.get("tool", {})
    section = tool.get("qworker") if isinstance(tool, dict) else None
    if section is not None and not isinstance(section, dict):
        raise InvalidOptionError(
            str(path), "has a tool.qworker that is no table", "write [tool.qworker]"
        )
    return section


def _read(path: Path) -> dict[str, Any]:
    data = _bytes(path)
    if data.startswith((b"\xef\xbb\xbf", b"\xff\xfe", b"\xfe\xff")):
        raise InvalidOptionError(
            str(path), "begins with a byte order mark", "save it as UTF-8 without one (BOM)"
        )
    try:
        return tomllib.loads(data.decode())
    except UnicodeDecodeError as error:
        raise InvalidOptionError(
            str(path), f"is not UTF-8 (at byte {error.start})", _LIMIT
        ) from error
    except (tomllib.TOMLDecodeError, RecursionError) as error:
        # The parser names a place and never quotes a value, so no password shows.
        raise InvalidOptionError(str(path), f"is not TOML: {error}", _LIMIT) from error


def _bytes(path: Path) -> bytes:
    try:
        # Looked at before it is opened: opening a pipe would wait for its writer.
        if not stat.S_ISREG(path.stat().st_mode):
            raise InvalidOptionError(str(path), "is no regular file", "name a TOML file")
        with path.open("rb") as file:
            data = file.read(_MAX_BYTES + 1)
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) else str(error)
        raise InvalidOptionError(
            str(path), f"cannot be read: {reason}", "name a TOML file"
        ) from error
    if len(data) > _MAX_BYTES:
        raise InvalidOptionError(str(path), "is larger than 1 MiB", "name a TOML file")
    return data
