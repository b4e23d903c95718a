"""Finds and runs the outside checkers; one that is missing skips the test, or fails it where CI=true."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

from click.testing import CliRunner, Result

from tests.servers import missing

__all__ = ["DEPLOY", "ROOT", "check_schema", "program", "run"]

ROOT = Path(__file__).parents[2]
DEPLOY = ROOT / "deploy"
#: What brings a tool that is not in the dependency group `deploy`.
_SOURCES = {
    "codespell": "pip install --group check",
    "promtool": "apt install prometheus",
    "systemd-analyze": "apt install systemd",
}


def program(tool: str) -> str:
    """Find `tool` in this interpreter's environment or on PATH."""
    places = os.pathsep.join([str(Path(sys.executable).parent), os.environ.get("PATH", "")])
    path = shutil.which(tool, path=places)
    if path is None:
        return missing(
            f"{tool} is not installed: {_SOURCES.get(tool, 'pip install --group deploy')}"
        )
    return path


def run(
    tool: str, *args: str | Path, cwd: Path | None = None, stdin: str = ""
) -> subprocess.CompletedProcess[str]:
    """Run `tool` with `stdin` as its input; its exit code is the caller's."""
    return subprocess.run(
        [program(tool), *map(str, args)],
        cwd=cwd,
        input=stdin,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


def check_schema(schema: str, *files: Path) -> Result:
    """Run check-jsonschema with one of its own schemas in this process: it takes two seconds to start."""
    from check_jsonschema import main

    return CliRunner().invoke(main, ["--builtin-schema", schema, *map(str, files)])
