"""Imports point downwards and are not circular (contracts: pyproject.toml), and Spark stays where it belongs."""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path

import pytest

import qworker
from tests.trees import nodes

# One process parses the whole package, which takes seconds.
pytestmark = [pytest.mark.xdist_group("code"), pytest.mark.slow]

_ROOT = Path(qworker.__file__).parent
_FILES = sorted(_ROOT.rglob("*.py"))


@pytest.mark.needs("importlinter")
def test_imports_keep_the_contracts() -> None:
    """A change in one layer can only be felt above it."""
    code = (
        "from importlinter.cli import lint_imports; raise SystemExit(lint_imports(no_cache=True))"
    )
    ran = subprocess.run(
        [sys.executable, "-c", code], cwd=_ROOT.parent, capture_output=True, text=True, timeout=60
    )
    assert ran.returncode == 0, ran.stdout


#: What comes with the extras `spark` and `report` only.
_SPARK = {"jinja2", "numpy", "pandas", "plotly", "pyarrow", "pyspark"}


def _imported_at_run_time(path: Path) -> set[str]:
    """The top-level modules that a file imports, inside of functions included, for types left out."""
    modules: set[str] = set()

    def walk(node: ast.AST) -> None:
        if isinstance(node, ast.If) and "TYPE_CHECKING" in ast.dump(node.test):
            return
        if isinstance(node, ast.ImportFrom) and node.module and not node.level:
            modules.add(node.module.partition(".")[0])
        elif isinstance(node, ast.Import):
            modules.update(alias.name.partition(".")[0] for alias in node.names)
        for child in ast.iter_child_nodes(node):
            walk(child)

    walk(nodes(path)[0])
    return modules


def test_spark_is_imported_by_the_pipeline_and_its_verbs_only() -> None:
    """Everything else works in an install without the extra."""
    names = {str(path.relative_to(_ROOT)): path for path in _FILES}
    wrong = {
        name: _imported_at_run_time(path) & _SPARK
        for name, path in names.items()
        # The rows of a bulk send are Arrow batches; it imports pyarrow where it reads one.
        if not name.startswith(("pipeline/", "cli/spark/", "bulk/rows.py", "web/render.py"))
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
from qworker.cli.spark.group import SECTIONS
for verb in [name for section in SECTIONS.values() for name in section]:
    done = CliRunner().invoke(cli, ["spark", verb, "--help"])
    assert done.exit_code == 0, (verb, done.output, done.exception)
from qworker.errors import SparkMissingError
from qworker.pipeline.session import open_session
try:
    open_session()
except SparkMissingError as error:
    assert "pip install 'qworker-redis[spark]'" in str(error)
else:
    raise SystemExit("Spark was started")
"""
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert ran.returncode == 0, ran.stderr
