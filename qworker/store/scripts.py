"""Load the Lua scripts: one verb per file of `qworker/lua`, shared parts put in as fixed text.

A line `--- include lib/name.lua` is replaced by that file. Nothing else is done to the text: what runs is what the
files say, the same bytes in every process.
"""

from __future__ import annotations

import hashlib
from functools import cache
from importlib.resources import files
from typing import Final

__all__ = ["SCRIPT_NAMES", "Script", "load_script"]

SCRIPT_NAMES: Final = (
    "adopt",
    "cancel",
    "claim",
    "configure",
    "create",
    "delete",
    "divide",
    "drop",
    "edit",
    "enqueue",
    "extend",
    "fire",
    "hold",
    "inspect",
    "lengths",
    "mark",
    "mend_books",
    "mend_item",
    "mend_key",
    "mend_lane",
    "mend_lease",
    "mend_twice",
    "mend_unique",
    "names",
    "poll",
    "present",
    "promote",
    "prune",
    "purge",
    "reap",
    "recount",
    "redrive",
    "remove",
    "retire",
    "send",
    "send_chunk",
    "settle",
    "settle_receive",
    "shed",
    "split",
    "split_all",
    "sweep",
    "take_over",
    "trim",
)

_INCLUDE: Final = "--- include "


class Script:
    """One Lua script: its name, its text and the SHA1 by which the server knows it."""

    __slots__ = ("name", "sha", "source")

    def __init__(self, name: str, source: bytes) -> None:
        self.name = name
        self.source = source
        # SHA1 is what EVALSHA asks for; it protects nothing here.
        self.sha = hashlib.sha1(source, usedforsecurity=False).hexdigest()

    def __repr__(self) -> str:
        return f"Script({self.name!r}, {self.sha[:8]})"


@cache
def load_script(name: str) -> Script:
    """Read `qworker/lua/<name>.lua` with its includes. Raises `FileNotFoundError` for another name."""
    folder = files("qworker").joinpath("lua")
    lines: list[str] = []
    for line in folder.joinpath(f"{name}.lua").read_text("utf-8").splitlines():
        if line.startswith(_INCLUDE):
            part = folder.joinpath(line.removeprefix(_INCLUDE)).read_text("utf-8")
            lines.extend(part.splitlines())
        else:
            lines.append(line)
    return Script(name, "\n".join(lines).encode() + b"\n")
