"""Finds and runs the outside checkers; one that is missing skips the test, or fails it where CI=true."""

from __future__ import annotations

import subprocess
from pathlib import Path

from click.testing import CliRunner, Result

from tests.programs import program

__all__ = ["DEPLOY", "ROOT", "check_schema", "run"]

ROOT = Path(__file__).parents[2]
DEPLOY = ROOT / "deploy"


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
