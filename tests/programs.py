"""Programs that tests run and that are not in the dependency group `test`; a skip names what brings them."""

from __future__ import annotations

import os
import shutil
import sys
from pathlib import Path
from typing import Final

from tests.servers import missing

__all__ = ["program"]

_SOURCES: Final = {
    "codespell": "pip install --group check",
    "java": "apt install openjdk-17-jre-headless",
    "node": "apt install nodejs",
    "npm": "apt install npm",
    "prometheus": "apt install prometheus",
    "promtool": "apt install prometheus",
    "redis-cli": "apt install redis-tools",
    "systemd-analyze": "apt install systemd",
}


def program(name: str) -> str:
    """Find a program in this interpreter's environment or on PATH; returns its path."""
    places = os.pathsep.join([str(Path(sys.executable).parent), os.environ.get("PATH", "")])
    path = shutil.which(name, path=places)
    if path is None:
        return missing(
            f"{name} is not installed: {_SOURCES.get(name, 'pip install --group deploy')}"
        )
    return path
