"""The configuration file: found, read and checked as a file; `qworker.config.loading` knows what its keys mean."""

from __future__ import annotations

import os
import re
import stat
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from qworker.config.trust import distrust
from qworker.errors import InvalidOptionError

__all__ = ["ConfigFile", "read_file"]

_NAME: Final = "qworker.toml"
_PYPROJECT: Final = "pyproject.toml"
_LIMIT: Final = "a configuration file is TOML in UTF-8"
#: No configuration is larger; something else was named by mistake.
_MAX_BYTES: Final = 1024 * 1024
_RELATIVE_STORE: Final = re.compile(r"(?i)\s*embedded:(?!/|~|%2f|%7e|\s*$)")


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
    that cannot be read, is no TOML in UTF-8, or that was `named` and does not exist. One that was not named is refused
    too if other users may have put it there: it says which server is spoken to, and which keys count. It may say
    where an embedded store is only by an absolute path: a directory beside it may have come with it, data and all.
    """
    if named is not None:
        return _config(named, _section(named, _read(named)[0]))
    own, pyproject = directory / _NAME, directory / _PYPROJECT
    section = None
    if os.path.lexists(pyproject):
        document, file = _read(pyproject)
        section = _section(pyproject, document)
        if section is not None and not os.path.lexists(own):
            _check_found(pyproject, file)
            return _config(pyproject, section, found=True)
    if not os.path.lexists(own):
        return ConfigFile()
    values, file = _read(own)
    _check_found(own, file)
    also = f"{pyproject} has [tool.qworker] too, which is not read beside {own}"
    return _config(own, values, *([also] if section is not None else []), found=True)


def _check_found(path: Path, file: os.stat_result) -> None:
    """Refuse a file that others may have put here; `file` is what was open while it was read."""
    try:
        places = ((path, path.lstat()), (path, file), (path.parent, path.parent.stat()))
    except OSError as error:
        raise InvalidOptionError(
            str(path), f"cannot be read: {error.strerror}", "name a TOML file"
        ) from error
    for place, found in places:
        # The mode of a symbolic link says nothing; who may replace it is the directory's matter.
        why = distrust(found) if not stat.S_ISLNK(found.st_mode) else _of_another(found)
        if why is not None:
            where = "" if place is path else f"stands in a directory that {why}"
            raise InvalidOptionError(
                str(path),
                f"{where or why}, and was only found here, so it is not read",
                f"run qworker elsewhere, or name the file if you trust it: --config {path.name}",
            )


def _of_another(found: os.stat_result) -> str | None:
    mine = not hasattr(os, "geteuid") or found.st_uid in (0, os.geteuid())
    return None if mine else "is a link of another user"


def _config(
    path: Path, values: dict[str, Any] | None, *warnings: str, found: bool = False
) -> ConfigFile:
    values = values or {}
    url = values.get("url")
    if isinstance(url, str) and "@" in url and path.stat().st_mode & stat.S_IROTH:
        warnings += (f"{path} holds a password and every user can read it: chmod 600 {path}",)
    if found and isinstance(url, str) and _RELATIVE_STORE.match(url):
        raise InvalidOptionError(
            f"{path}: url",
            "names an embedded store by a relative path, and the file was only found here",
            "write the whole path (embedded:/directory or embedded:~/directory), "
            f"or name the file: --config {path.name}",
        )
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


def _read(path: Path) -> tuple[dict[str, Any], os.stat_result]:
    data, file = _bytes(path)
    if data.startswith((b"\xef\xbb\xbf", b"\xff\xfe", b"\xfe\xff")):
        raise InvalidOptionError(
            str(path), "begins with a byte order mark", "save it as UTF-8 without one (BOM)"
        )
    try:
        return tomllib.loads(data.decode()), file
    except UnicodeDecodeError as error:
        raise InvalidOptionError(
            str(path), f"is not UTF-8 (at byte {error.start})", _LIMIT
        ) from error
    except (tomllib.TOMLDecodeError, RecursionError) as error:
        # The parser names a place and never quotes a value, so no password shows.
        raise InvalidOptionError(str(path), f"is not TOML: {error}", _LIMIT) from error


def _bytes(path: Path) -> tuple[bytes, os.stat_result]:
    try:
        # Looked at before it is opened: opening a pipe would wait for its writer.
        if not stat.S_ISREG(path.stat().st_mode):
            raise InvalidOptionError(str(path), "is no regular file", "name a TOML file")
        with path.open("rb") as file:
            found = os.fstat(file.fileno())
            data = file.read(_MAX_BYTES + 1)
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) else str(error)
        raise InvalidOptionError(
            str(path), f"cannot be read: {reason}", "name a TOML file"
        ) from error
    if len(data) > _MAX_BYTES:
        raise InvalidOptionError(str(path), "is larger than 1 MiB", "name a TOML file")
    return data, found
