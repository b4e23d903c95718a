"""Load the Lua scripts: one verb per file below `qworker/lua`, with shared parts (`lib/`) included as fixed text.

A line `--- include lib/name.lua` is replaced by that file. Nothing else changes the text: every process runs the same
bytes.
"""

from __future__ import annotations

import hashlib
from functools import cache
from importlib.resources import files
from typing import Final

__all__ = ["SCRIPT_NAMES", "Script", "load_script"]

_INCLUDE: Final = "--- include "
_ROLES: Final = "-- ROLES "
_ONLY_READS: Final = b"#!lua flags=no-writes\n"
_FOLDER: Final = files("qworker").joinpath("lua")


def _find() -> dict[str, str]:
    """Name the scripts, each with its folder."""
    return {
        file.name.removesuffix(".lua"): folder.name
        for folder in _FOLDER.iterdir()
        if folder.is_dir() and folder.name != "lib"
        for file in folder.iterdir()
        if file.name.endswith(".lua")
    }


_FOLDERS: Final = _find()
SCRIPT_NAMES: Final = tuple(sorted(_FOLDERS))


class Script:
    """One Lua script: its name, its text, the SHA1 by which the server knows it, and the roles that call it.

    `only_reads`: the server lets it write nothing.
    """

    __slots__ = ("name", "only_reads", "roles", "sha", "source")

    def __init__(self, name: str, source: bytes, roles: frozenset[str] = frozenset()) -> None:
        self.name = name
        self.source = source
        self.roles = roles
        self.only_reads = source.startswith(_ONLY_READS)
        # EVALSHA names scripts by SHA1; it protects nothing here.
        self.sha = hashlib.sha1(source, usedforsecurity=False).hexdigest()

    def __repr__(self) -> str:
        return f"Script({self.name!r}, {self.sha[:8]})"


@cache
def load_script(name: str) -> Script:
    """Read the script of this name with its includes. Raises `FileNotFoundError` for another name."""
    if name not in _FOLDERS:
        raise FileNotFoundError(f"no such script: {name!r}")
    # Without a string per line: a child's scripts have 9,000, whose memory would stay with the process.
    head, *rest = _read(f"{_FOLDERS[name]}/{name}.lua").split(f"\n{_INCLUDE}")
    parts = [head]
    for piece in rest:
        included, newline, text = piece.partition("\n")
        parts.append(_read(included).removesuffix("\n"))
        if newline:
            parts.append(text)
    _, _, declared = head.partition(_ROLES)
    roles = declared.partition("\n")[0].replace(",", " ").split()
    return Script(name, "\n".join(parts).encode(), frozenset(roles))


def _read(path: str) -> str:
    return _FOLDER.joinpath(path).read_text("utf-8")
