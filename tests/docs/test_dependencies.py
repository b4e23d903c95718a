"""docs/dependencies.md names every package that pyproject.toml asks for, with its extra or group, and no other."""

from __future__ import annotations

import re
import tomllib
from typing import Any

import pytest

from tests.docs.blocks import ROOT

PROJECT: dict[str, Any] = tomllib.loads((ROOT / "pyproject.toml").read_text())
PAGE = (ROOT / "docs" / "dependencies.md").read_text()


def names(requirements: list[str]) -> set[str]:
    """The packages of requirements, without versions."""
    return {re.split(r"[<>=\[;]", requirement)[0] for requirement in requirements}


def rows(text: str) -> list[list[set[str]]]:
    """The names in code font of each cell of the tables."""
    return [
        [set(re.findall(r"`([^`]+)`", cell)) for cell in line.split("|")[1:-1]]
        for line in text.splitlines()
        if line.startswith("| `")
    ]


INSTALL, EXTRAS, GROUPS = (
    rows(part) for part in re.split(r"(?m)^(?:Extras:|## What development needs)$", PAGE)
)


def test_a_plain_install_is_explained() -> None:
    written = set().union(*(cells[0] for cells in INSTALL))
    assert written == names(PROJECT["project"]["dependencies"])


@pytest.mark.parametrize(
    ("tables", "wanted"),
    [
        (EXTRAS, PROJECT["project"]["optional-dependencies"]),
        (GROUPS, PROJECT["dependency-groups"]),
    ],
    ids=["extras", "groups"],
)
def test_extras_and_groups_are_explained(
    tables: list[list[set[str]]], wanted: dict[str, list[str]]
) -> None:
    written: dict[str, set[str]] = {}
    for cells in tables:
        for group in cells[0]:
            written.setdefault(group, set()).update(cells[1])
    named = {group: names(requirements) for group, requirements in wanted.items()}
    assert [group for group in named if named[group] - written.get(group, set())] == []
    assert set().union(*written.values()) == set().union(*named.values())
