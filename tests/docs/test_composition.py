"""The page that compares composition: our code on it runs, and shows what its comments say."""

from __future__ import annotations

import ast
from pathlib import Path
from typing import Any

import pytest

from qworker import QWorker
from tests.consumer.conftest import app
from tests.consumer.driving import running
from tests.consumer.workers import Lab
from tests.docs.blocks import blocks

__all__ = ["app"]

PAGE = "docs/composition.md"
_DECLARED = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef, ast.Import, ast.ImportFrom)


@pytest.mark.slow
def test_our_code_runs_as_one_program(app: QWorker, tmp_path: Path) -> None:
    """Each expression with a comment has the value that the comment shows."""
    code = "\n".join(blocks(PAGE, "python"))
    names: dict[str, Any] = {}
    declared, rest = [], []
    for statement in ast.parse(code).body:
        if ast.unparse(statement).startswith("app = "):
            continue
        (declared if isinstance(statement, _DECLARED) else rest).append(statement)
    names["app"] = app
    exec(compile(ast.Module(declared, []), PAGE, "exec"), names)
    lines, shown = code.splitlines(), 0
    with Lab(app.url, app.namespace, tmp_path).reaper(), running(app):
        for statement in rest:
            _, _, comment = lines[(statement.end_lineno or 0) - 1].partition("  # ")
            if isinstance(statement, ast.Expr) and comment:
                value = eval(compile(ast.Expression(statement.value), PAGE, "eval"), names)
                assert value == ast.literal_eval(comment), ast.unparse(statement)
                shown += 1
            else:
                exec(compile(ast.Module([statement], []), PAGE, "exec"), names)
    assert shown == 8


def test_their_code_is_python() -> None:
    """It may await at its top, as in a shell."""
    for block in blocks(PAGE, "py"):
        compile(block, PAGE, "exec", flags=ast.PyCF_ALLOW_TOP_LEVEL_AWAIT)
