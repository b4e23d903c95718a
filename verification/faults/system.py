"""What the machine can do: processes that end with their parent, clocks that lie, groups with little memory."""

from __future__ import annotations

import atexit
import ctypes
import functools
import mmap
import os
import shutil
import signal
import struct
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

__all__ = ["ClockShim", "clock_reason", "die_with_parent", "memory_group", "memory_reason", "tmpfs"]

_PR_SET_PDEATHSIG = 1
_libc = ctypes.CDLL(None, use_errno=True)
#: Linux keeps one directory per group of processes here; version 1, and version 2 has no such file.
_MEMORY = Path("/sys/fs/cgroup/memory")


def die_with_parent() -> None:
    """Ask Linux to end this process when its parent's thread ends; between fork and exec."""
    if sys.platform == "linux":
        _libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)


# -- clocks ------------------------------------------------------------------------------------

_SHIM = """
#define _GNU_SOURCE
#include <sys/time.h>
#include <sys/syscall.h>
#include <sys/mman.h>
#include <unistd.h>
#include <fcntl.h>
#include <stdlib.h>
#include <time.h>
static volatile long *off;
__attribute__((constructor)) static void init(void) {
  const char *p = getenv("CLOCKSHIM"); if (!p) return;
  int f = open(p, O_RDONLY); if (f < 0) return;
  void *m = mmap(0, 8, PROT_READ, MAP_SHARED, f, 0); close(f);
  if (m != MAP_FAILED) off = m;
}
int clock_gettime(clockid_t c, struct timespec *t) {
  int r = syscall(SYS_clock_gettime, c, t);
  if (!r && off && (c == CLOCK_REALTIME || c == CLOCK_REALTIME_COARSE)) {
    long n = t->tv_sec * 1000000L + t->tv_nsec / 1000 + *off;
    t->tv_sec = n / 1000000; t->tv_nsec = n % 1000000 * 1000;
  }
  return r;
}
int gettimeofday(struct timeval *restrict v, void *restrict z) {
  struct timespec t; clock_gettime(CLOCK_REALTIME, &t);
  if (v) { v->tv_sec = t.tv_sec; v->tv_usec = t.tv_nsec / 1000; }
  return 0;
}
time_t time(time_t *p) {
  struct timespec t; clock_gettime(CLOCK_REALTIME, &t);
  if (p) *p = t.tv_sec;
  return t.tv_sec;
}
"""


def clock_reason() -> str:
    """Why no clock can be made to lie here; '' where one can."""
    if sys.platform != "linux":
        return "LD_PRELOAD is Linux's"
    return "" if _compiler() else "no C compiler for the clock shim"


def _compiler() -> str | None:
    return shutil.which("cc") or shutil.which("gcc")


@functools.cache
def _library() -> str:
    directory = Path(tempfile.mkdtemp(prefix="qworker-clock"))
    atexit.register(shutil.rmtree, directory, ignore_errors=True)
    (directory / "shim.c").write_text(_SHIM)
    compiler = _compiler()
    assert compiler is not None
    library = str(directory / "shim.so")
    subprocess.run(
        [compiler, "-O2", "-shared", "-fPIC", "-o", library, str(directory / "shim.c")], check=True
    )
    return library


class ClockShim:
    """The wall clock of some processes, off by `offset_s` from the moment that is set; monotonic clocks stay."""

    def __init__(self, file: Path) -> None:
        file.write_bytes(bytes(8))
        self._file = file
        self.environ = {"LD_PRELOAD": _library(), "CLOCKSHIM": str(file)}

    def shift(self, offset_s: float) -> None:
        """Let the clock jump to this many seconds off the true time."""
        with self._file.open("r+b") as file, mmap.mmap(file.fileno(), 8) as memory:
            memory[:] = struct.pack("q", round(offset_s * 1e6))


# -- memory and disk ---------------------------------------------------------------------------


def memory_reason() -> str:
    """Why no group of processes can be given little memory here; '' where one can."""
    if not (_MEMORY / "memory.limit_in_bytes").exists():
        return "no version 1 memory control group here"
    return "" if os.access(_MEMORY, os.W_OK) else "control groups need root"


@contextmanager
def memory_group(limit_bytes: int) -> Iterator[str]:
    """Make a control group whose processes have so much memory together."""
    directory = _MEMORY / f"qworker-faults-{os.getpid()}"
    directory.mkdir()
    try:
        (directory / "memory.limit_in_bytes").write_text(str(limit_bytes))
        yield str(directory)
    finally:
        for pid in (directory / "tasks").read_text().split():
            (_MEMORY / "tasks").write_text(pid)
        directory.rmdir()


@contextmanager
def tmpfs(size: str) -> Iterator[Path]:
    """Mount a small disk; raises `OSError` where this is not allowed."""
    directory = Path(tempfile.mkdtemp(prefix="qworker-disk"))
    if _libc.mount(b"tmpfs", bytes(directory), b"tmpfs", 0, f"size={size}".encode()):
        directory.rmdir()
        raise OSError(ctypes.get_errno(), "a small disk needs mount(2), which root may call")
    try:
        yield directory
    finally:
        _libc.umount2(bytes(directory), 2)
        directory.rmdir()
