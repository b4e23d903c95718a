"""What importing the package costs, and what it offers."""

from __future__ import annotations

import gc
import subprocess
import sys
from functools import cache

import pytest

import qworker
from qworker import errors
from qworker.cli.framework.quick_imports import uncollected
from tests.tables import each

#: The slowest imports, which listing names, printing help and starting pytest do not need.
HEAVY = {
    *("redis", "msgspec", "structlog", "rich", "asyncio", "prometheus_client", "cronsim"),
    "textual",
}

#: Dataclasses that a child may make before its first message: of options, and of what users write or get.
DATACLASSES = 34


@cache
def modules_after(*statements: str) -> set[str]:
    """The top-level modules that a fresh interpreter has imported after running statements."""
    code = "; ".join(
        (*statements, "import sys", "print(*{name.partition('.')[0] for name in sys.modules})")
    )
    ran = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60
    )
    return set(ran.stdout.splitlines()[-1].split())


@each(
    "statements",
    [
        ("import qworker",),
        ("import qworker.testing",),
        # Of pytest's own modules those that it imports anyway are not ours.
        ("import pytest", "import qworker.testing.plugin"),
        ("import qworker.cli.main",),
    ],
)
@pytest.mark.slow
def test_importing_the_package_imports_nothing_heavy(statements: tuple[str, ...]) -> None:
    """The pytest plugin and the help of the command line wait for no Redis client."""
    before = modules_after(*statements[:-1])

    assert not (modules_after(*statements) - before) & HEAVY


@pytest.mark.slow
def test_the_help_imports_nothing_heavy() -> None:
    """`qworker --help` names the verbs without importing them."""
    statement = "from click.testing import CliRunner; from qworker.cli.main import cli"
    run = "assert 'redrive' in CliRunner().invoke(cli, ['--help']).output"

    # From Python 3.14 on click's own test runner imports asyncio.
    before = modules_after("import click.testing")
    assert not (modules_after(statement, run) - before) & HEAVY


@pytest.mark.slow
def test_children_start_before_anything_heavy_is_imported() -> None:
    """A child takes the same imports again: its supervisor has its own meanwhile, not before."""
    names = "print(*{name.partition('.')[0] for name in sys.modules}, flush=True)"
    seen = modules_after(
        "import os, sys",
        "os.environ['QWORKER_URL'] = 'redis://127.0.0.1:1'",
        "from qworker.consumer.supervisor.processes.spawn import Starter",
        f"Starter.start_early = lambda self: ({names}, os._exit(0))",
        "from qworker.cli.main import cli",
        "cli(['run', 'nothing'])",
    )

    # A description of the child goes over as JSON.
    assert not seen & (HEAVY - {"msgspec"} | {"ssl", "psutil", "tempfile"})


@each(
    "module, words",
    [
        ("qworker.cli.queue.group", ["queue", "ls"]),
        ("qworker.service.worker", ["run", "nothing"]),
        ("qworker.service.daemon", ["daemon"]),
    ],
)
@pytest.mark.slow
def test_a_command_is_imported_without_collections(module: str, words: list[str]) -> None:
    """They would take a tenth of the time that a command or a worker takes to start."""
    seen = modules_after(
        "import gc, os, sys",
        "os.environ['QWORKER_URL'] = 'redis://127.0.0.1:1'",
        "from qworker.consumer.supervisor.processes.spawn import Starter",
        "Starter.start_early = lambda self: None",
        "Finder = type('Finder', (), {'find_spec': lambda name, *_: "
        f"name == {module!r} and (print('collects', gc.isenabled(), flush=True), os._exit(0)) or None}})",
        "sys.meta_path.insert(0, Finder)",
        "from qworker.cli.main import cli",
        f"cli({words!r})",
    )

    assert seen == {"collects", "False"}


def test_collections_are_as_before_after_an_import_that_fails() -> None:
    """Also where they were off."""
    with pytest.raises(ImportError), uncollected():
        raise ImportError
    assert gc.isenabled()
    gc.disable()
    try:
        with uncollected():
            assert not gc.isenabled()
        assert not gc.isenabled()
    finally:
        gc.enable()


@pytest.mark.slow
def test_an_app_and_its_child_import_what_they_need_for_messages() -> None:
    """What is missing here would make every child start later, and be larger: structlog comes with rich."""
    before = modules_after("import redis")  # imports opentelemetry, if it is installed, with psutil
    seen = modules_after(
        "import sys, qworker.consumer.child.main, qworker.app.app",
        "made = {value for name, module in [*sys.modules.items()] if name.startswith('qworker.') "
        "for value in vars(module).values() if isinstance(value, type) and value.__module__ == name "
        "and '__dataclass_fields__' in vars(value)}",
        # Each takes as long as forty Structs.
        f"assert len(made) <= {DATACLASSES}, made",
    )

    assert not (seen - before) & (HEAVY - {"msgspec"} | {"psutil", "click", "http", "zoneinfo"})


def test_every_public_name_is_there() -> None:
    """`__all__`, `dir` and a star import agree, and each name is the object of the module that defines it."""
    taken: dict[str, object] = {}
    exec("from qworker import *", taken)

    assert set(qworker.__all__) == set(dir(qworker)) == set(taken) - {"__builtins__"}
    assert len(qworker.__all__) == len(set(qworker.__all__))
    assert set(errors.__all__) < set(qworker.__all__)
    for name in qworker.__all__:
        assert getattr(qworker, name).__name__ == name


def test_an_unknown_name_is_refused_as_python_does() -> None:
    """A typo is an AttributeError, or an ImportError in an import."""
    with pytest.raises(AttributeError, match="module 'qworker' has no attribute 'Qworker'"):
        qworker.Qworker  # type: ignore[attr-defined]  # noqa: B018
