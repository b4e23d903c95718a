"""Which module a name of an app means: `shop.tasks`, or a path to a .py file; and what a wrong one may have meant."""

from __future__ import annotations

import os
import sys
from difflib import get_close_matches
from pathlib import Path

from qworker.config.trust import is_trusted_directory
from qworker.errors import AppLoadError

__all__ = ["default_name", "find_module", "no_module"]


def default_name(spec: str, apps_in_module: int) -> str:
    """Name the app of `module[:attribute]` that has no name of its own: by its module, as seen from this directory.

    `old`, `old.py`, `./old.py` and `old:app` are one app; the attribute counts only if the module holds several apps.
    A file outside of this directory is named by its last part: its folder may be another at every release.
    """
    named, _, attribute = spec.partition(":")
    if named.endswith(".py") or "/" in named:
        path = Path(os.path.relpath(named))
        if path.is_absolute() or ".." in path.parts:
            path = Path(path.name)
        named = ".".join(path.parts).removesuffix(".py")
    return f"{named}:{attribute}" if attribute and apps_in_module > 1 else named


def find_module(name: str) -> str:
    """Return the name to import a module by, and make it importable: from its folder, or from the current one.

    Raises `AppLoadError` for a path without a file, and for what is no name of a module.
    """
    if name.endswith(".py") or "/" in name:
        path = Path(os.path.abspath(name))
        if not path.exists() and path.with_name(f"{path.name}.py").is_file():
            path = path.with_name(f"{path.name}.py")
        if not path.exists():
            raise AppLoadError(f"there is no file {str(path)!r}")
        sys.path.insert(0, str(path.parent))
        _append_here()
        return path.name.removesuffix(".py")
    if not all(part.isidentifier() for part in name.split(".")):
        raise AppLoadError(
            f"{ascii(name)[:80]} is no module; write MODULE, MODULE:ATTR, or the path of a .py file"
        )
    here = os.getcwd()
    if here not in sys.path:
        sys.path.insert(0, here)
    return name


def _append_here() -> None:
    """Let an app of another folder import what stands in the current one, if nobody else may have put it there.

    Behind everything installed: a file in the current folder never takes the place of a package.
    """
    here = Path.cwd()
    if str(here) not in sys.path and is_trusted_directory(here):
        sys.path.append(str(here))


def no_module(name: str) -> AppLoadError:
    """Make the error for a module that is nowhere, with the one in the current directory that may be meant."""
    here = Path.cwd()
    parent, _, last = name.rpartition(".")
    hint = ""
    if parent and Path(here, *parent.split(".")).with_suffix(".py").is_file():
        hint = f"; did you mean {parent}:{last}?"
    elif near := get_close_matches(name, _modules_in(here), 1):
        hint = f"; did you mean {near[0]}?"
    return AppLoadError(f"there is no module {name!r} in {here} or on the Python path{hint}")


def _modules_in(folder: Path) -> list[str]:
    try:
        entries = sorted(folder.iterdir())
    except OSError:
        return []
    return [
        each.stem for each in entries if each.suffix == ".py" or (each / "__init__.py").is_file()
    ]
