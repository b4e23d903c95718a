"""The reference pages are what the code says now."""

from __future__ import annotations

import pytest

from docs import generate


@pytest.mark.parametrize("name", generate.pages())
def test_a_reference_page_is_fresh(name):
    written = (generate.REFERENCE / name).read_text("utf-8")
    assert written == generate.render(name), "run python -m docs.generate"


def test_every_reference_page_has_a_writer():
    assert {path.name for path in generate.REFERENCE.iterdir()} == set(generate.pages())
