"""Who may import whom: downwards only, and siblings not at all. See docs/concepts.md for the picture."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

import qworker

_ROOT = Path(qworker.__file__).parent

#: Layers from the top down; names in one row are siblings and never import each other.
LAYERS: list[set[str]] = [
    {"__main__"},
    {"cli"},
    {"demo"},
    {"testing"},
    {"__init__"},
    {"consumer", "daemon"},
    {"app", "config", "configfile"},
    {"queue", "aqueue"},
    {"client", "aclient"},
    {"operations"},
    {"message"},
    {"commands"},
    {"options"},
    {"store", "store_directory", "private_store", "engine"},
    {"connection"},
    {"server_errors", "url", "scripts"},
    {"logs", "schedule", "fields"},
    {"kinds"},
    {"envelope", "codec", "ids", "keys", "names"},
    {"durations"},
    {"errors"},
]
#: Modules that are one subject in several files.
_ONE_SUBJECT = (
    {"config", "configfile"},
    {"store", "store_directory", "private_store", "engine"},
)


def _rank(part: str) -> int:
    return next(rank for rank, names in enumerate(LAYERS) if part in names)


def _imports(path: Path) -> set[str]:
    """The parts of qworker that a file imports, inside of functions and for types included."""
    found = set()
    for node in ast.walk(ast.parse(path.read_text("utf-8"))):
        if isinstance(node, ast.ImportFrom) and node.module:
            names = [node.module]
            if node.module == "qworker":
                names = [f"qworker.{alias.name}" for alias in node.names]
        elif isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        else:
            continue
        for name in names:
            parts = name.split(".")
            if parts[0] == "qworker":
                known = len(parts) > 1 and any(parts[1] in names for names in LAYERS)
                found.add(parts[1] if known else "__init__")
    return found


_FILES = sorted(_ROOT.rglob("*.py"))


@pytest.mark.parametrize("path", _FILES, ids=lambda path: str(path.relative_to(_ROOT)))
def test_a_module_imports_only_from_layers_below(path: Path) -> None:
    """A change in one layer can only be felt above it."""
    relative = path.relative_to(_ROOT)
    part = relative.parts[0].removesuffix(".py")
    for imported in _imports(path) - {part}:
        together = any({part, imported} <= subject for subject in _ONE_SUBJECT)
        allowed = _rank(imported) > _rank(part) or together
        assert allowed, f"{relative} ({part}) imports {imported}, which is not below it"


def test_every_part_has_a_layer() -> None:
    """A new folder or module is put into the order when it is made."""
    parts = {path.relative_to(_ROOT).parts[0].removesuffix(".py") for path in _FILES}
    assert parts <= set().union(*LAYERS)
