"""Finds and runs the outside checkers; one that is missing skips the test, or fails it where CI=true."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

__all__ = ["DEPLOY", "ROOT", "run"]

ROOT = Path(__file__).parents[2]
DEPLOY = ROOT / "deploy"


def run(tool: str, *args: str | Path, cwd: Path | None = None) -> subprocess.CompletedProcess[str]:
    """Run `tool` from this interpreter's environment or from PATH; its exit code is the caller's."""
    places = os.pathsep.join([str(Path(sys.executable).parent), os.environ.get("PATH", "")])
    path = shutil.which(tool, path=places)
    if path is None:
        reason = f"{tool} is not installed (pip: the dependency group `deploy`; Debian: prometheus)"
        if os.environ.get("CI") == "true":
            pytest.fail(reason)
        pytest.skip(reason)
    return subprocess.run(
        [path, *map(str, args)], cwd=cwd, capture_output=True, text=True, timeout=60, check=False
    )
