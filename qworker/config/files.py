"""Finds and reads the configuration file; `qworker.config.loading` interprets its keys."""

from __future__ import annotations

import os
import re
import stat
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from qworker.config.trust import distrust
from qworker.errors import InvalidOptionError

__all__ = ["CONFIG_VARIABLE", "ConfigFile", "file_for_apps", "read_file"]

#: The environment variable that names the configuration file, as `--config` does.
CONFIG_VARIABLE: Final = "QWORKER_CONFIG"
_NAME: Final = "qworker.toml"
_PYPROJECT: Final = "pyproject.toml"
_LIMIT: Final = "a configuration file is TOML in UTF-8"
#: No configuration is larger: a larger file was named by mistake.
_MAX_BYTES: Final = 1024 * 1024
_RELATIVE_STORE: Final = re.compile(r"(?i)\s*embedded:(?!/|~|%2f|%7e|\s*$)")


@dataclass(frozen=True, slots=True)
class ConfigFile:
    """The tables of a file; `path` None: no file. `warnings`: a line each."""

    path: Path | None = None
    values: Mapping[str, object] = field(default_factory=dict)
    warnings: tuple[str, ...] = ()

    @property
    def name(self) -> str:
        """The file's name in error texts."""
        return "" if self.path is None else str(self.path)


def read_file(directory: Path, named: Path | None = None) -> ConfigFile:
    """Read the file `named`, else `qworker.toml` or `[tool.qworker]` of pyproject.toml in `directory`, if any.

    In a file called pyproject.toml only `[tool.qworker]` counts. Raises `InvalidOptionError`, which names the file, if
    it cannot be read, is not TOML in UTF-8, or was `named` and does not exist.

    A file that was not `named` decides which server and keys are used, so it is also refused if other users may have
    put it there, or if it names an embedded store by a relative path: the store may have come with the file.
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
    also = f"{pyproject} also has [tool.qworker], which is ignored because of {own}"
    return _config(own, values, *([also] if section is not None else []), found=True)


def file_for_apps(environ: Mapping[str, str] = os.environ) -> ConfigFile:
    """Read the file that QWORKER_CONFIG names, else that of the current directory, as `qworker run` does.

    An app runs in any program, anywhere: a file that was not named is ignored, and a warning says why, if other users
    may have put it there or if this one cannot read it. Raises `InvalidOptionError` as `read_file` does otherwise.
    """
    named = environ.get(CONFIG_VARIABLE)
    try:
        directory = Path.cwd()
    except OSError:  # it was deleted
        directory = Path(os.devnull)
    if named:
        return read_file(directory, Path(named))
    try:
        return read_file(directory)
    except InvalidOptionError as error:
        found = (directory / name for name in (_NAME, _PYPROJECT))
        if isinstance(error.__cause__, PermissionError) or any(map(_is_of_others, found)):
            return ConfigFile(warnings=(str(error),))
        raise


def _is_of_others(path: Path) -> bool:
    if not os.path.lexists(path):
        return False
    try:
        return _distrusted(path, path.stat()) is not None
    except OSError:
        return _distrust_link(path.lstat()) is not None


def _distrusted(path: Path, file: os.stat_result) -> str | None:
    """Say why others may have put a file there, as the end of a sentence; `file`: its status, or that of its target."""
    for item, status in ((path, path.lstat()), (path, file), (path.parent, path.parent.stat())):
        # The mode of a link means nothing: the directory's mode says who can replace it.
        why = _distrust_link(status) if stat.S_ISLNK(status.st_mode) else distrust(status)
        if why is not None:
            return why if item is path else f"is in a directory that {why}"
    return None


def _check_found(path: Path, file: os.stat_result) -> None:
    """Refuse a file that others may have put here; `file`: the status of the open file that was read."""
    try:
        why = _distrusted(path, file)
    except OSError as error:
        raise InvalidOptionError(
            str(path), f"cannot be read: {error.strerror}", "name a TOML file"
        ) from error
    if why is not None:
        raise InvalidOptionError(
            str(path),
            f"{why}, and you did not name it, so it is not read",
            f"run qworker elsewhere, or name the file if you trust it: --config {path.name}",
        )


def _distrust_link(status: os.stat_result) -> str | None:
    own = not hasattr(os, "geteuid") or status.st_uid in (0, os.geteuid())
    return None if own else "is a link of another user"


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
            "names an embedded store by a relative path, and you did not name the file",
            "write the whole path (embedded:/directory or embedded:~/directory), "
            f"or name the file: --config {path.name}",
        )
    return ConfigFile(path, values, warnings)


def _section(path: Path, document: dict[str, Any]) -> dict[str, Any] | None:
    """Return qworker's part of a document; None if a pyproject.toml has none."""
    if path.name != _PYPROJECT:
        return document
    tool = document.get("tool", {})
    section = tool.get("qworker") if isinstance(tool, dict) else None
    if section is not None and not isinstance(section, dict):
        raise InvalidOptionError(
            str(path), "has a tool.qworker that is not a table", "write [tool.qworker]"
        )
    return section


def _read(path: Path) -> tuple[dict[str, Any], os.stat_result]:
    import tomllib  # here: most processes have no file

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
        # The parser names the line and never quotes a value, so that no password is shown.
        raise InvalidOptionError(str(path), f"is not TOML: {error}", _LIMIT) from error


def _bytes(path: Path) -> tuple[bytes, os.stat_result]:
    try:
        # Checked before it is opened: opening a pipe would wait for its writer.
        is_regular = stat.S_ISREG(path.stat().st_mode)
    except (OSError, ValueError) as error:
        raise _unreadable(path, error) from error
    if not is_regular:
        raise InvalidOptionError(str(path), "is not a regular file", "name a TOML file")
    try:
        with path.open("rb") as file:
            status = os.fstat(file.fileno())
            data = file.read(_MAX_BYTES + 1)
    except OSError as error:
        raise _unreadable(path, error) from error
    if len(data) > _MAX_BYTES:
        raise InvalidOptionError(str(path), "is larger than 1 MiB", "name a TOML file")
    return data, status


def _unreadable(path: Path, error: OSError | ValueError) -> InvalidOptionError:
    reason = error.strerror if isinstance(error, OSError) else str(error)
    return InvalidOptionError(str(path), f"cannot be read: {reason}", "name a TOML file")
