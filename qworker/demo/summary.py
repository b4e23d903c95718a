"""The work itself, without queues: what a file of Python source code defines, and whether an older grammar accepts
it."""

from __future__ import annotations

import ast
import gc
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import msgspec

__all__ = ["FileSummary", "check_grammar", "summarize"]


class FileSummary(msgspec.Struct, frozen=True):
    """What one file defines. `imports` are the top-level names of absolute imports, sorted, each once."""

    #: Identifies this summary in the account: two summaries of one file, from two runs of a handler, have two keys.
    key: str
    path: str
    module: str
    lines: int
    classes: int
    functions: int
    imports: list[str]


def summarize(path: str, module: str, key: str) -> FileSummary:
    """Read and parse a file. Raises `OSError`, and `SyntaxError` if this Python cannot parse it."""
    source = Path(path).read_bytes()
    statements = list(_statements(_parse(source)))
    return FileSummary(
        key,
        path,
        module,
        lines=source.count(b"\n") + (not source.endswith(b"\n") and bool(source)),
        classes=sum(isinstance(statement, ast.ClassDef) for statement in statements),
        functions=sum(
            isinstance(statement, ast.FunctionDef | ast.AsyncFunctionDef)
            for statement in statements
        ),
        imports=sorted({name for statement in statements for name in _imported(statement)}),
    )


def check_grammar(path: str, grammar: tuple[int, int]) -> None:
    """Parse a file with the grammar of Python `grammar`.

    Raises `SyntaxError` for newer syntax, `UnicodeDecodeError` for a file that is not UTF-8, `OSError`.
    """
    _parse(Path(path).read_bytes().decode("utf-8-sig"), grammar)


def _parse(source: bytes | str, grammar: tuple[int, int] | None = None) -> ast.Module:
    with warnings.catch_warnings(), _collector_off():
        # Invalid escapes and the like do not matter here.
        warnings.simplefilter("ignore")
        return ast.parse(source, feature_version=grammar)


@contextmanager
def _collector_off() -> Iterator[None]:
    """Turn the garbage collector off: a tree has no cycles, and the search for them takes a third of the parsing."""
    was_on = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_on:
            gc.enable()


def _statements(tree: ast.Module) -> Iterator[ast.stmt]:
    """Yield every statement; expressions contain neither definitions nor imports."""
    waiting: list[ast.stmt] = list(tree.body)
    while waiting:
        statement = waiting.pop()
        yield statement
        for block in ("body", "orelse", "finalbody"):
            waiting += getattr(statement, block, ())
        for part in (*getattr(statement, "handlers", ()), *getattr(statement, "cases", ())):
            waiting += part.body


def _imported(statement: ast.stmt) -> Iterator[str]:
    if isinstance(statement, ast.Import):
        for alias in statement.names:
            yield alias.name.partition(".")[0]
    elif isinstance(statement, ast.ImportFrom) and statement.module and not statement.level:
        yield statement.module.partition(".")[0]
