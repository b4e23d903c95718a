"""Tables of which no row needs a test of its own.

    @each("name", SCRIPT_NAMES)
    def test_a_script_has_a_text(name: str) -> None: ...

A test costs some milliseconds beside what it does: each process of pytest-xdist collects it, three reports go between
processes. For a row that compares two texts that is ten times as much as the row. Rows that change something, or whose
fixtures must be new, are tests of their own: `pytest.mark.parametrize`.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Iterable, Sequence
from typing import cast

import pytest
from _pytest.mark import ParameterSet

__all__ = ["each"]

Test = Callable[..., None]


def each(names: str, rows: Iterable[object]) -> Callable[[Test], Test]:
    """Run a test for each row, as `pytest.mark.parametrize` does, but as one test; its fixtures serve all rows.

    `names`: of the arguments, with commas between; with several, a row is a sequence of as many, and any may be a
    `pytest.param` with an id. Every row runs: those that fail are raised together, each with its row as a note.
    """
    words = [word.strip() for word in names.split(",")]
    table = [*rows]
    if not table:
        raise ValueError(
            f"rows of {names!r}: there is none; a table that is read must have been found"
        )
    if any(isinstance(row, ParameterSet) and row.marks for row in table):
        raise ValueError(f"rows of {names!r}: a row without a test of its own has no marks")

    def decorate(test: Test) -> Test:
        @functools.wraps(test)
        def whole(*args: object, **fixtures: object) -> None:
            failures: list[BaseException] = []
            for row in table:
                values = _values(row, len(words))
                try:
                    test(*args, **fixtures, **dict(zip(words, values, strict=True)))
                except (Exception, pytest.fail.Exception) as failure:
                    failure.add_note(f"row: {_name(row)}")
                    failures.append(failure)
            if failures:
                raise BaseExceptionGroup(f"{len(failures)} of {len(table)} rows", failures)

        signature = inspect.signature(test)
        asked = [one for name, one in signature.parameters.items() if name not in words]
        whole.__signature__ = signature.replace(parameters=asked)  # type: ignore[attr-defined]
        return whole

    return decorate


def _values(row: object, width: int) -> Sequence[object]:
    if isinstance(row, ParameterSet):
        return row.values
    return cast(Sequence[object], row) if width > 1 else [row]


def _name(row: object) -> str:
    if isinstance(row, ParameterSet):
        return f"{row.id}: {row.values!r}" if row.id else repr(row.values)
    return repr(row)
