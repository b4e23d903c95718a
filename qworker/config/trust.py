"""Which files, directories and programs to trust where other users can write, too.

People run qworker in any directory, such as `/tmp` or a colleague's, and as root. Files that happen to be there must
not decide where it connects or what it starts. Parent directories are not checked: a user who can rename your directory
can put another one in its place, but not one that belongs to you.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator
from pathlib import Path

__all__ = ["distrust", "find_programs", "is_trusted_directory"]


def distrust(status: os.stat_result) -> str | None:
    """Say why another user may have written a file or directory, as the end of a sentence; None if no other user can.

    It must belong to this user or to root, and be writable for no other user. Exceptions: a directory with the sticky
    bit (others can add files, but not replace ours), the user's own primary group (a umask of 002 makes every file
    writable for it), and Windows, which has no such modes.
    """
    if not hasattr(os, "geteuid"):
        return None
    if status.st_uid not in (0, os.geteuid()):
        return "belongs to another user"
    if stat.S_ISDIR(status.st_mode) and status.st_mode & stat.S_ISVTX:
        return None
    if status.st_mode & stat.S_IWOTH:
        return "is writable by every user"
    if status.st_mode & stat.S_IWGRP and status.st_gid != os.getegid():
        return "is writable by a group of users"
    return None


def is_trusted_directory(path: Path) -> bool:
    """Whether only this user or root can have put files into a directory.

    Stricter than `distrust`: despite the sticky bit others can add files.
    """
    try:
        status = path.stat()
    except OSError:
        return False
    return distrust(status) is None and not status.st_mode & stat.S_IWOTH


def find_programs(name: str, environ_path: str | None = None) -> Iterator[str]:
    """Yield the absolute paths of a program on PATH, in its order, each file once.

    Skips relative entries ('.', '' and others): they depend on the current directory.
    """
    import shutil  # here: few processes look for programs

    search = os.environ.get("PATH", os.defpath) if environ_path is None else environ_path
    seen = set()
    for folder in search.split(os.pathsep):
        if os.path.isabs(folder) and (program := shutil.which(name, path=folder)):
            real = os.path.realpath(program)
            if real not in seen:
                seen.add(real)
                yield program
