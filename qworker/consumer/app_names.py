"""Finds the module of an app by name (`shop.tasks`) or by the path of a .py file, with hints for wrong names."""

from __future__ import annotations

import os
import sys
from difflib import get_close_matches
from pathlib import Path

from qworker.config.trust import is_trusted_directory
from qworker.errors import AppLoadError

__all__ = ["default_name", "find_module", "no_module"]


def default_name(spec: str, apps_in_module: int) -> str:
    """Name the app of `module[:attribute]` that has no name of its own after its module, seen from this directory.

    `old`, `old.py`, `./old.py` and `old:app` are one app; the attribute counts only if the module holds several apps.
    For a file outside of this directory only the last part counts: its folder may differ at every release.
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

    Raises `AppLoadError` for a path without a file, and for anything that cannot be the name of a module.
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
            f"{ascii(name)[:80]} is not the name of a module; write MODULE, MODULE:ATTR, or the path of a .py file"
        )
    here = os.getcwd()
    if here not in sys.path:
        sys.path.insert(0, here)
    return name


def _append_here() -> None:
    """Let an app in another folder import from the current one, unless other users may write there.

    The current folder comes last: a file there never replaces an installed package.
    """
    here = Path.cwd()
    if str(here) not in sys.path and is_trusted_directory(here):
        sys.path.append(str(here))


def no_module(name: str) -> AppLoadError:
    """Make the error for a missing module, with a hint at a similar one in the current directory."""
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
        path.stem for path in entries if path.suffix == ".py" or (path / "__init__.py").is_file()
    ]
