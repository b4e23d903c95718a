"""What the code must not contain, looked for in its syntax trees."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

import qworker
from qworker.store.scripts import SCRIPT_NAMES, load_script

ROOT = Path(qworker.__file__).parent
FILES = sorted(ROOT.rglob("*.py"))
#: Modules that run what they read, or might.
RUNNING = {
    "pickle", "marshal", "shelve", "dill", "cloudpickle", "jsonpickle", "joblib", "yaml", "runpy",
}  # fmt: skip
#: The one exception reads pickles of RQ and Celery for `qworker import`, as a reader of plain values that refuses
#: everything else (tests/moving/test_pickles.py), and that nothing else imports.
READS_PICKLES = Path("moving/pickles.py")


@cache
def nodes(path: Path) -> list[ast.AST]:
    return list(ast.walk(ast.parse(path.read_text())))


def imported(path: Path) -> set[str]:
    """The modules that a file imports, first words only."""
    found: set[str] = set()
    for node in nodes(path):
        if isinstance(node, ast.Import):
            found |= {alias.name.partition(".")[0] for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            found.add(node.module.partition(".")[0])
    return found


def called(path: Path) -> Iterator[tuple[str, int]]:
    """What a file calls by name, with the line: `name`, or `module.name`."""
    for node in nodes(path):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name | ast.Attribute):
            yield ast.unparse(node.func), node.lineno


def test_nothing_that_runs_data_is_imported_or_called() -> None:
    """No pickle, marshal, shelve, yaml; no eval, exec, compile, __import__; no shell."""
    wrong = {
        "eval",
        "exec",
        "compile",
        "__import__",
        "breakpoint",
        "os.system",
        "os.popen",
        "tempfile.mktemp",
    }
    found = []
    for path in FILES:
        relative = path.relative_to(ROOT)
        allowed = {"pickle"} if relative == READS_PICKLES else set()
        found += [(relative, name) for name in (imported(path) & RUNNING) - allowed]
        found += [(relative, *each) for each in called(path) if each[0] in wrong]
        found += [
            (relative, "shell")
            for node in nodes(path)
            if isinstance(node, ast.keyword) and node.arg == "shell"
        ]
    assert found == []


def test_the_reader_of_pickles_is_imported_by_the_import_alone() -> None:
    """No message of ours comes near it, and it lets no pickle run."""
    name = "qworker.moving.pickles"
    users = {
        str(path.relative_to(ROOT))
        for path in FILES
        for node in nodes(path)
        if isinstance(node, ast.ImportFrom) and node.module == name
    }
    assert users
    assert all(each.startswith("moving/") for each in users)
    tree = ast.parse((ROOT / READS_PICKLES).read_text())
    loads = [
        node
        for node in ast.walk(tree)
        if isinstance(node, ast.Attribute) and node.attr in ("load", "loads")
    ]
    # Only that of the restricted reader.
    assert [ast.unparse(node) for node in loads] == ["_Reader(data).load"]


def test_modules_are_imported_by_fixed_names_or_those_of_the_command_line() -> None:
    """No name out of a message: the app of `qworker run`, and the verbs of the command."""
    users = {
        str(path.relative_to(ROOT))
        for path in FILES
        for name, _ in called(path)
        if name.endswith("import_module")
    }
    # Names of our own modules, the store's wheel and Spark's packages, and the app that the command line names.
    fixed = {"__init__.py", "testing/__init__.py", "cli/verbs.py", "store/engine.py"}
    assert users - fixed - {"pipeline/source/session.py"} == {"consumer/manifest.py"}


def test_scripts_are_fixed_text() -> None:
    """Scripts come from the files of the package alone, and are sent as they are: nothing is put together."""
    makers, loaders = set(), set()
    for path in FILES:
        relative = str(path.relative_to(ROOT))
        for node in nodes(path):
            if not isinstance(node, ast.Call):
                continue
            if isinstance(node.func, ast.Name) and node.func.id == "Script":
                makers.add(relative)
            words = [each.value for each in node.args if isinstance(each, ast.Constant)]
            if words[:2] == ["SCRIPT", "LOAD"]:
                loaders.add(relative)
                # The text itself: an attribute `source`, and no expression that makes another one of it.
                assert isinstance(node.args[-1], ast.Attribute)
                assert node.args[-1].attr == "source"
            assert "EVAL" not in words
    assert makers == {"store/scripts.py"}
    assert loaders


@pytest.mark.parametrize("name", SCRIPT_NAMES)
def test_scripts_run_nothing_that_they_read(name: str) -> None:
    """No loadstring, no cjson or struct: what is stored is text to a script. Only the field of a lease that has a batch
    is unpacked, where anything else than an array of strings is taken for what somebody wrote there.
    """
    code = re.sub(r"--[^\n]*", "", load_script(name).source.decode())
    assert not re.search(r"\b(loadstring|load|dofile|setfenv|cjson|struct|bit)\s*[.(]", code)
    assert code.count("cmsgpack.unpack") == code.count("pcall(cmsgpack.unpack, batch)") <= 1


def test_temporary_files_have_names_that_nobody_can_foretell() -> None:
    """They are made by `tempfile`, which draws the name and opens nothing that is there already."""
    for path in FILES:
        for node in nodes(path):
            if isinstance(node, ast.Constant) and isinstance(node.value, str):
                text = node.value
                # A place to draw names in is none itself.
                assert not re.match(r"/(tmp|var/tmp|dev/shm)/", text), (path, text)


def test_http_has_no_control() -> None:
    """Two methods, three paths, and no way from a request to the server: the listener knows a registry and checks."""
    listener = ROOT / "telemetry" / "http.py"
    methods = re.findall(r"def (do_[A-Z]+)", listener.read_text())
    assert methods == ["do_GET", "do_HEAD"]
    assert "qworker" not in imported(listener)
    served = {
        path for path in FILES if imported(path) & {"http", "socketserver", "flask", "aiohttp"}
    }
    assert served == {listener}
