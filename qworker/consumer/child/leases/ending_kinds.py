"""How a delivery ended: the letters of `Delivery.kind`."""

from __future__ import annotations

from typing import Final

__all__ = [
    "ACKED",
    "BURIED",
    "CANCELLED",
    "DISCARDED",
    "DROPPED",
    "EXPIRED",
    "KEPT",
    "LEFT",
    "LIMITED",
    "NACKED",
    "NOT_STARTED",
    "PARKED",
    "RELEASED",
]

# The letters of `lua/lib/outcomes.lua`:
ACKED: Final = "a"
KEPT: Final = "t"  # acked, with effects
NACKED: Final = "n"
BURIED: Final = "b"
DISCARDED: Final = "d"
CANCELLED: Final = "k"
RELEASED: Final = "r"
LIMITED: Final = "l"
PARKED: Final = "p"  # a run that sleeps or waits
# These are not sent as they are: never started, to be given back; not this child's any more; started, and left to its
# deadline.
DROPPED: Final = "-"
LEFT: Final = "~"
EXPIRED: Final = "x"
NOT_STARTED: Final = (DROPPED, LEFT)
