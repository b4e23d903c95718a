"""Standard streams that the parent process has closed."""

from __future__ import annotations

import os
import sys
from typing import Final

__all__ = ["open_closed_streams"]

_STREAMS: Final = (("stdin", "r"), ("stdout", "w"), ("stderr", "w"))


def open_closed_streams() -> None:
    """Open /dev/null in place of standard streams that are closed.

    The next file would get their numbers, and child processes would use it as a stream. Call it before anything else
    is opened.
    """
    for number, (name, mode) in enumerate(_STREAMS):
        try:
            os.fstat(number)
        except OSError:
            opened = os.open(os.devnull, os.O_RDWR)
            if opened != number:
                os.dup2(opened, number)
                os.close(opened)
            os.set_inheritable(number, True)
        if getattr(sys, name) is None:
            stream = open(number, mode, encoding="utf-8", closefd=False)  # noqa: SIM115 - for good
            setattr(sys, name, stream)
