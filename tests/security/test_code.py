"""What the code must not contain, looked for in its syntax trees."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

import qworker
from qworker.engine.scripts import SCRIPT_NAMES, load_script
from tests.tables import each
from tests.trees import nodes

# One process parses the whole package, which takes seconds.
pytestmark = [pytest.mark.xdist_group("code"), pytest.mark.slow]

ROOT = Path(qworker.__file__).parent
FILES = sorted(ROOT.rglob("*.py"))
#: Modules that run what they read, or might.
RUNNING = {
    "pickle", "marshal", "shelve", "dill", "cloudpickle", "jsonpickle", "joblib", "yaml", "runpy",
}  # fmt: skip
#: The one exception reads pickles of RQ and Celery for `qworker import`, as a reader of plain values that refuses
#: everything else (tests/importers/test_pickles.py), and that nothing else imports.
READS_PICKLES = Path("importers/pickles.py")


def imported(path: Path) -> set[str]:
    """The modules that a file imports, first words only."""
    modules: set[str] = set()
    for node in nodes(path):
        if isinstance(node, ast.Import):
            modules |= {alias.name.partition(".")[0] for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            modules.add(node.module.partition(".")[0])
    return modules


def called(path: Path) -> Iterator[tuple[str, int]]:
    """What a file calls by name, with the line: `name`, or `module.name`."""
    for node in nodes(path):
        match node:
            case ast.Call(func=ast.Name(id=name)):
                yield name, node.lineno
            case ast.Call(func=ast.Attribute(value=ast.Name(id=module), attr=name)):
                yield f"{module}.{name}", node.lineno
            case ast.Call(func=ast.Attribute() as function):
                yield ast.unparse(function), node.lineno


@pytest.mark.bad_input("data found: body that is none")
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
    modules = []
    for path in FILES:
        relative = path.relative_to(ROOT)
        allowed = {"pickle"} if relative == READS_PICKLES else set()
        modules += [(relative, name) for name in (imported(path) & RUNNING) - allowed]
        modules += [(relative, *call) for call in called(path) if call[0] in wrong]
        modules += [
            (relative, "shell")
            for node in nodes(path)
            if isinstance(node, ast.keyword) and node.arg == "shell"
        ]
    assert modules == []


def test_the_reader_of_pickles_is_imported_by_the_import_alone() -> None:
    """No message of ours comes near it, and it lets no pickle run."""
    name = "qworker.importers.pickles"
    users = {
        str(path.relative_to(ROOT))
        for path in FILES
        for node in nodes(path)
        if isinstance(node, ast.ImportFrom) and node.module == name
    }
    assert users
    assert all(user.startswith("importers/") for user in users)
    tree = ast.parse((ROOT / READS_PICKLES).read_text())
    loads = [
        node
        for node in ast.walk(tree)
        if isinstance(node, ast.Attribute) and node.attr in ("load", "loads")
    ]
    # Only that of the restricted reader.
    assert [ast.unparse(node) for node in loads] == ["_Reader(data).load"]


def test_modules_are_imported_by_fixed_names_or_those_of_the_command_line() -> None:
    """No name out of a message: the app of `qworker run`, `qworker web --authorize`, and the verbs of the command."""
    users = {
        str(path.relative_to(ROOT))
        for path in FILES
        for name, _ in called(path)
        if name.endswith("import_module")
    }
    # Names of our own modules, the store's wheel and Spark's packages, and the app that the command line names.
    fixed = {
        "__init__.py",
        "testing/__init__.py",
        "cli/framework/commands.py",
        "store/embedded/engines.py",
    }
    assert users - fixed - {"pipeline/session.py"} == {"consumer/manifest.py", "web/server.py"}


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
            words = [arg.value for arg in node.args if isinstance(arg, ast.Constant)]
            if words[:2] == ["SCRIPT", "LOAD"]:
                loaders.add(relative)
                # The text itself: an attribute `source`, and no expression that makes another one of it.
                assert isinstance(node.args[-1], ast.Attribute)
                assert node.args[-1].attr == "source"
            assert "EVAL" not in words
    assert makers == {"engine/scripts.py"}
    assert loaders


@each("name", SCRIPT_NAMES)
def test_scripts_run_nothing_that_they_read(name: str) -> None:
    """No loadstring, no cjson or struct: what is stored is text to a script. What only scripts write is unpacked (a
    batch in a lease, the records of groups), and counts as foreign, or as missing, if that fails.
    """
    code = re.sub(r"--[^\n]*", "", load_script(name).source.decode())
    assert not re.search(r"\b(loadstring|load|dofile|setfenv|cjson|struct|bit)\s*[.(]", code)
    guarded = code.count("pcall(cmsgpack.unpack") + code.count("pcall(even_records")
    assert code.count("cmsgpack.unpack") == guarded


def test_temporary_files_have_unpredictable_names() -> None:
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
    ours = re.findall(r"^from (qworker\S*) import", listener.read_text(), re.MULTILINE)
    assert ours == ["qworker.telemetry.exposition"]  # writes a registry as text
    assert "qworker" not in imported(ROOT / "telemetry" / "exposition.py")
    server = re.compile(
        r"^\s*(from|import) (http\.server|socketserver|flask|aiohttp)\b", re.MULTILINE
    )
    served = {path for path in FILES if server.search(path.read_text())}
    assert served == {listener}
