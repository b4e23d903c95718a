"""The syntax trees of the package, parsed once for the tests of a process that look into them.

Such a test belongs to the group `code` of pytest-xdist, which one process runs: all of the package takes seconds.
"""

from __future__ import annotations

import ast
from functools import cache
from pathlib import Path

__all__ = ["nodes"]


@cache
def nodes(path: Path) -> list[ast.AST]:
    """All nodes of a file, the module first; do not change them."""
    return list(ast.walk(ast.parse(path.read_text("utf-8"))))
