"""How many CPUs this process may use, by its affinity and the quota of its container."""

from __future__ import annotations

import math
import os
from pathlib import Path
from typing import Final

__all__ = ["usable_cpus"]

_CGROUPS: Final = Path("/sys/fs/cgroup")
_MEMBERSHIP: Final = Path("/proc/self/cgroup")


def usable_cpus(cgroups: Path = _CGROUPS, membership: Path = _MEMBERSHIP) -> int:
    """Return the number of CPUs that this process may use at once, rounded up, at least 1."""
    affine = hasattr(os, "sched_getaffinity")
    number = len(os.sched_getaffinity(0)) if affine else os.cpu_count() or 1
    return max(1, math.ceil(min(number, _quota(cgroups, membership))))


def _quota(cgroups: Path, membership: Path) -> float:
    """The smallest quota of its control groups, in CPUs; infinite without any."""
    quota = math.inf
    for line in _read(membership).splitlines():
        _, controllers, path = (*line.split(":", 2), "", "")[:3]
        if controllers and "cpu" not in controllers.split(","):
            continue
        # In a container its own group may be mounted at the top, regardless of its path.
        parts = Path(path.lstrip("/")).parts
        for depth in range(len(parts) + 1):
            group = Path(*parts[:depth])
            if controllers:
                folder = cgroups / "cpu" / group
                limit, period = (
                    _read(folder / f"cpu.cfs_{name}_us") for name in ("quota", "period")
                )
            else:
                limit, period = (*_read(cgroups / group / "cpu.max").split(), "", "")[:2]
            quota = min(quota, _share(limit, period))
    return quota


def _share(limit: str, period: str) -> float:
    limit, period = limit.strip(), period.strip()
    if not (limit.isdigit() and period.isdigit() and int(limit) and int(period)):
        return math.inf  # 'max', -1, or not there
    return int(limit) / int(period)


def _read(path: Path) -> str:
    try:
        return path.read_text()
    except (OSError, UnicodeError):
        return ""
