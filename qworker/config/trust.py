"""What may be used of the file system that other users write to as well: files, directories, programs on PATH.

qworker is run in any directory, `/tmp` and a colleague's among them, and by root. What only happens to stand there must
not decide where it connects or what it starts. Directories above are not looked at: whoever may rename one of ours
can put another in its place, but not one that belongs to us.
"""

from __future__ import annotations

import os
import shutil
import stat
from collections.abc import Iterator
from pathlib import Path

__all__ = ["distrust", "find_programs", "is_trusted_directory"]


def distrust(found: os.stat_result) -> str | None:
    """Say why somebody else may have written this, to follow the path in a sentence; None if nobody else can have.

    It must belong to this user or to root, and be writable for nobody else. Three things count as not writable: a
    directory with the sticky bit (others make files there, and cannot replace ours), anything for the group that is
    our own primary one (a umask of 002 gives every file to it), and everything on Windows, which has no such modes.
    """
    if not hasattr(os, "geteuid"):
        return None
    if found.st_uid not in (0, os.geteuid()):
        return "belongs to another user"
    if stat.S_ISDIR(found.st_mode) and found.st_mode & stat.S_ISVTX:
        return None
    if found.st_mode & stat.S_IWOTH:
        return "can be written to by every user"
    if found.st_mode & stat.S_IWGRP and found.st_gid != os.getegid():
        return "can be written to by a group of users"
    return None


def is_trusted_directory(path: Path) -> bool:
    """Whether what a directory holds by names not checked one by one was put there by this user or root.

    Stricter than `distrust`: with the sticky bit others may not replace a file, but they may add one.
    """
    try:
        found = path.stat()
    except OSError:
        return False
    return distrust(found) is None and not found.st_mode & stat.S_IWOTH


def find_programs(name: str, environ_path: str | None = None) -> Iterator[str]:
    """Yield the absolute paths of a program on PATH, in its order, each file once.

    Relative entries ('.', '' and others) are passed over: they name whatever directory one happens to be in.
    """
    search = os.environ.get("PATH", os.defpath) if environ_path is None else environ_path
    seen = set()
    for folder in search.split(os.pathsep):
        if os.path.isabs(folder) and (found := shutil.which(name, path=folder)):
            real = os.path.realpath(found)
            if real not in seen:
                seen.add(real)
                yield found
