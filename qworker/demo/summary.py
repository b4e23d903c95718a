"""The work itself, which knows nothing of queues: what a file of Python source code holds, and whether it is old enough
for another grammar."""

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
    """What one file holds. `imports` are the top-level names of absolute imports, sorted, each once."""

    #: Names this summary in the account: two summaries of one file, from two runs of a handler, have two keys.
    key: str
    path: str
    module: str
    lines: int
    classes: int
    functions: int
    imports: list[str]


def summarize(path: str, module: str, key: str) -> FileSummary:
    """Read and parse a file. Raises `OSError`, and `SyntaxError` for what this Python cannot parse."""
    source = Path(path).read_bytes()
    statements = list(_statements(_parse(source)))
    return FileSummary(
        key,
        path,
        module,
        lines=source.count(b"\n") + (not source.endswith(b"\n") and bool(source)),
        classes=sum(isinstance(each, ast.ClassDef) for each in statements),
        functions=sum(
            isinstance(each, ast.FunctionDef | ast.AsyncFunctionDef) for each in statements
        ),
        imports=sorted({name for each in statements for name in _imported(each)}),
    )


def check_grammar(path: str, grammar: tuple[int, int]) -> None:
    """Parse a file with the grammar of Python `grammar`.

    Raises `SyntaxError` for newer syntax, `UnicodeDecodeError` for a file that is not UTF-8, `OSError`.
    """
    _parse(Path(path).read_bytes().decode("utf-8-sig"), grammar)


def _parse(source: bytes | str, grammar: tuple[int, int] | None = None) -> ast.Module:
    with warnings.catch_warnings(), _collector_off():
        # Invalid escapes and the like: not what is asked here.
        warnings.simplefilter("ignore")
        return ast.parse(source, feature_version=grammar)


@contextmanager
def _collector_off() -> Iterator[None]:
    """Leave the garbage collector out: a tree has no cycles, and looking for them costs a third of the parsing."""
    was_on = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_on:
            gc.enable()


def _statements(tree: ast.Module) -> Iterator[ast.stmt]:
    """Yield every statement; expressions are left out, they hold neither definitions nor imports."""
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
