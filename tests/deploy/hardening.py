"""Runs a program under what a unit's hardening comes to without systemd: its own program, not for import.

    python hardening.py RESTRICTIONS PROGRAM [ARGUMENT …]

RESTRICTIONS is a file of JSON, see `units.restrictions`. Capabilities, new privileges, core files, system calls,
address families and memory that is writable and executable are always restricted; the file system is read-only but for
/tmp and /dev where this process may make a mount namespace.
"""

from __future__ import annotations

import ctypes
import errno
import json
import mmap
import os
import resource
import socket
import sys
from pathlib import Path
from typing import Any

PR_CAPBSET_DROP = 24
PR_SET_NO_NEW_PRIVS = 38
CLONE_NEWNS = 0x20000
MS_BIND, MS_REC, MS_PRIVATE = 0x1000, 0x4000, 0x40000
AT_FDCWD, AT_RECURSIVE = -100, 0x8000
MOUNT_SETATTR, MOUNT_ATTR_RDONLY = 442, 1
ALLOW, ERRNO = 0x7FFF0000, 0x00050000
EQUAL, MASKED_EQUAL = 4, 7
MAX_FAMILIES = 64
KEPT = (b"/tmp", b"/dev")

libc = ctypes.CDLL(None, use_errno=True)


class Comparison(ctypes.Structure):
    """`struct scmp_arg_cmp` of libseccomp."""

    _fields_ = (
        ("argument", ctypes.c_uint),
        ("operator", ctypes.c_int),
        ("first", ctypes.c_uint64),
        ("second", ctypes.c_uint64),
    )


class Filter:
    """A filter of system calls: what `default` says, with exceptions."""

    def __init__(self, default: int) -> None:
        self._library = ctypes.CDLL("libseccomp.so.2")
        self._library.seccomp_init.restype = ctypes.c_void_p
        self._filter = ctypes.c_void_p(self._library.seccomp_init(default))

    def add(self, action: int, call: str, *comparisons: Comparison) -> None:
        """Except a call; one that this machine does not have is passed over."""
        number = self._library.seccomp_syscall_resolve_name(call.encode())
        if number < 0:
            return
        conditions = (Comparison * len(comparisons))(*comparisons)
        done = self._library.seccomp_rule_add_array(
            self._filter, ctypes.c_uint32(action), number, len(comparisons), conditions
        )
        if done:
            raise OSError(-done, call)

    def load(self) -> None:
        """Put it into force, for this process and all that come from it."""
        done = self._library.seccomp_load(self._filter)
        if done:
            raise OSError(-done, "seccomp_load")


def make_read_only() -> None:
    """ProtectSystem=strict, where a mount namespace is allowed; what is KEPT stays writable."""
    if libc.unshare(CLONE_NEWNS) or libc.mount(None, b"/", None, MS_REC | MS_PRIVATE, None):
        return
    for path in KEPT:
        libc.mount(path, path, None, MS_BIND | MS_REC, None)
    set_attributes(b"/", (MOUNT_ATTR_RDONLY, 0))
    for path in KEPT:
        set_attributes(path, (0, MOUNT_ATTR_RDONLY))


def set_attributes(path: bytes, changes: tuple[int, int]) -> None:
    """Call mount_setattr(2), which the C library may not have: (to set, to clear), here and below."""
    struct = (ctypes.c_uint64 * 4)(*changes, 0, 0)
    libc.syscall(MOUNT_SETATTR, AT_FDCWD, path, AT_RECURSIVE, struct, ctypes.sizeof(struct))


def restrict(wanted: dict[str, Any]) -> None:
    """Put all restrictions into force."""
    os.umask(wanted["umask"])
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    if wanted["read_only"]:
        make_read_only()
    for capability in range(64):
        libc.prctl(PR_CAPBSET_DROP, capability, 0, 0, 0)
    libc.prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0)

    forbidden = Filter(ALLOW)
    if not wanted["write_execute"]:
        # As systemd does it: no page is made writable and executable, and none becomes executable later.
        both = mmap.PROT_WRITE | mmap.PROT_EXEC
        forbidden.add(ERRNO | errno.EPERM, "mmap", Comparison(2, MASKED_EQUAL, both, both))
        for call in ("mprotect", "pkey_mprotect"):
            exec_only = Comparison(2, MASKED_EQUAL, mmap.PROT_EXEC, mmap.PROT_EXEC)
            forbidden.add(ERRNO | errno.EPERM, call, exec_only)
    families = {getattr(socket, name) for name in wanted["families"]}
    for family in set(range(MAX_FAMILIES)) - families:
        refused = Comparison(0, EQUAL, family, 0)
        forbidden.add(ERRNO | errno.EAFNOSUPPORT, "socket", refused)
    forbidden.load()
    # Last, since the calls that load filters are not among those that are allowed.
    allowed = Filter(ERRNO | errno.EPERM)
    for call in wanted["calls"]:
        allowed.add(ALLOW, call)
    allowed.load()


if __name__ == "__main__":
    restrict(json.loads(Path(sys.argv[1]).read_text()))
    os.environ["WATCHDOG_PID"] = str(os.getpid())
    os.execv(sys.argv[2], sys.argv[2:])
