"""Tests of what may not be read, run by root as well: in CI everything runs as root, who reads everything."""

from __future__ import annotations

import ctypes
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

__all__ = ["like_others"]

#: CAP_DAC_OVERRIDE and CAP_DAC_READ_SEARCH: reading, writing and entering in spite of modes. See capabilities(7).
_IN_SPITE_OF_MODES = 1 << 1 | 1 << 2
_VERSION_3 = 0x20080522


@contextmanager
def like_others() -> Iterator[None]:
    """Let modes of files apply to this thread, even as root; skips the test if that is impossible."""
    if os.geteuid() != 0:
        yield
        return
    if sys.platform != "linux":
        pytest.skip("root reads everything")
    libc = ctypes.CDLL(None, use_errno=True)
    header = (ctypes.c_uint32 * 2)(_VERSION_3, 0)  # 0: this thread
    # Effective, permitted and inheritable, of capabilities 0 to 31 and 32 to 63.
    sets = (ctypes.c_uint32 * 6)()

    def call(function: str) -> None:
        if getattr(libc, function)(header, sets) != 0:
            pytest.skip(f"{function}: {os.strerror(ctypes.get_errno())}")

    call("capget")
    had = sets[0]
    sets[0] = had & ~_IN_SPITE_OF_MODES
    call("capset")
    try:
        yield
    finally:
        # A right that is granted again takes effect again.
        sets[0] = had
        call("capset")
