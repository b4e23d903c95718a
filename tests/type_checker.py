"""mypy with the settings of the tree, beginning with what its last run over the tree has kept.

`make test` runs it before the tests: they check the files that they add or change, and no others again.
"""

from __future__ import annotations

import shutil
from contextlib import chdir
from pathlib import Path

__all__ = ["ROOT", "check_types"]

ROOT = Path(__file__).parents[1]


def check_types(tree: Path, *names: str, cache: Path) -> tuple[str, str, int]:
    """Check files of the tree, or of a copy of it with its times; returns report, errors and exit code.

    `cache`: a directory that does not exist yet.
    """
    from mypy import api as mypy

    if (kept := ROOT / ".mypy_cache").exists():
        shutil.copytree(kept, cache)
    with chdir(tree):
        return mypy.run(["--config-file", "pyproject.toml", "--cache-dir", str(cache), *names])
