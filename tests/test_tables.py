"""Tables in one test: every row runs, and each that fails is named."""

from __future__ import annotations

import pytest

from tests.tables import each


def test_every_row_that_fails_is_named() -> None:
    """Also after the first failure, whether it is an assertion or an error that did not come."""
    seen = []

    @each("number, text", [(1, "a"), (2, "b"), (3, "c")])
    def table(number: int, text: str) -> None:
        seen.append(text)
        assert number != 1
        if number == 2:
            with pytest.raises(LookupError):
                pass

    with pytest.raises(BaseExceptionGroup, match="2 of 3 rows") as caught:
        table()
    assert seen == ["a", "b", "c"]
    notes = [failure.__notes__ for failure in caught.value.exceptions]
    assert notes == [["row: (1, 'a')"], ["row: (2, 'b')"]]


def test_rows_of_another_length_are_refused() -> None:
    """A value that no argument takes was not tested."""

    @each("number, text", [(1, "a", "more")])
    def table(number: int, text: str) -> None: ...

    with pytest.raises(BaseExceptionGroup, match="1 of 1 rows"):
        table()


def test_a_table_without_rows_is_refused() -> None:
    """What was to be read was not found: nothing would be tested."""
    with pytest.raises(ValueError, match="rows of 'number': there is none"):
        each("number", [])


@each("number", range(3))
def test_fixtures_serve_all_rows(namespace: str, number: int) -> None:
    """Arguments beside those of rows are fixtures, as ever."""
    assert namespace.startswith("t")
    assert number in range(3)


def test_a_row_with_an_id_is_named_by_it() -> None:
    """As `pytest.param` gives it; a row has no marks, for it has no test of its own."""

    @each("number, text", [pytest.param(1, "a", id="first"), pytest.param(2, "b")])
    def table(number: int, text: str) -> None:
        assert (number, text) == ()

    with pytest.raises(BaseExceptionGroup, match="2 of 2 rows") as caught:
        table()
    notes = [failure.__notes__ for failure in caught.value.exceptions]
    assert notes == [["row: first: (1, 'a')"], ["row: (2, 'b')"]]
    with pytest.raises(ValueError, match="has no marks"):
        each("number", [pytest.param(1, marks=pytest.mark.slow)])
