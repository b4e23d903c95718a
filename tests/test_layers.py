"""Who may import whom: downwards only, and siblings not at all. See docs/concepts.md for the picture."""

from __future__ import annotations

import ast
import subprocess
import sys
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
    {"consumer", "daemon", "fsck", "moving", "pipeline"},
    {"app"},
    {"client"},
    {"store"},
    {"telemetry"},
    {"wire"},
    {"config"},
    {"durations"},
    {"errors"},
]


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
        assert _rank(imported) > _rank(part), (
            f"{relative} ({part}) imports {imported}, which is not below it"
        )


def test_every_part_has_a_layer() -> None:
    """A new folder or module is put into the order when it is made."""
    parts = {path.relative_to(_ROOT).parts[0].removesuffix(".py") for path in _FILES}
    assert parts <= set().union(*LAYERS)


#: What comes with the extra `spark` only.
_SPARK = {"numpy", "pandas", "plotly", "pyarrow", "pyspark"}


def _imported_at_run_time(path: Path) -> set[str]:
    """The top-level modules that a file imports, inside of functions included, for types left out."""
    found: set[str] = set()

    def walk(node: ast.AST) -> None:
        if isinstance(node, ast.If) and "TYPE_CHECKING" in ast.dump(node.test):
            return
        if isinstance(node, ast.ImportFrom) and node.module and not node.level:
            found.add(node.module.partition(".")[0])
        elif isinstance(node, ast.Import):
            found.update(alias.name.partition(".")[0] for alias in node.names)
        for child in ast.iter_child_nodes(node):
            walk(child)

    walk(ast.parse(path.read_text("utf-8")))
    return found


def test_spark_is_imported_by_the_pipeline_and_its_verbs_only() -> None:
    """Everything else works in an install without the extra."""
    names = {str(path.relative_to(_ROOT)): path for path in _FILES}
    wrong = {
        name: _imported_at_run_time(path) & _SPARK
        for name, path in names.items()
        if not name.startswith(("pipeline/", "cli/spark_"))
    }
    assert {name: modules for name, modules in wrong.items() if modules} == {}


def test_without_spark_the_package_and_the_command_line_work() -> None:
    """Help of every verb, and a doctor that says what to install."""
    code = f"""
import sys
sys.modules.update(dict.fromkeys({_SPARK}))  # None: there is no such module.
import qworker
from click.testing import CliRunner
from qworker.cli.main import cli
from qworker.cli.spark import SECTIONS
for verb in [name for section in SECTIONS.values() for name in section]:
    done = CliRunner().invoke(cli, ["spark", verb, "--help"])
    assert done.exit_code == 0, (verb, done.output, done.exception)
from qworker.errors import SparkMissingError
from qworker.pipeline.source.session import open_session
try:
    open_session()
except SparkMissingError as error:
    assert "pip install 'qworker-redis[spark]'" in str(error)
else:
    raise SystemExit("Spark was started")
"""
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert ran.returncode == 0, ran.stderr
