"""Quick tests in several processes: each file is imported by the process that runs it, and every test is reported."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.slow  # starts processes

pytest_plugins = ["pytester"]

HOOKS = """
from tests.late import pytest_pycollect_makemodule, pytest_runtest_protocol

def pytest_runtest_logreport(report):
    if hasattr(report, "node"):  # it came from another process
        with open("told", "a") as file:
            file.write(f"{report.nodeid.partition('::')[2]} {report.when}\\n")
"""
#: Says that it is imported.
SAYS = "import os, pytest\nwith open('imports', 'a') as file: file.write(__name__ + '\\n')\n"
TESTS = {
    "test_mixed": """
@pytest.mark.parametrize("number", range(3))
def test_rows(number): assert number < 2
@pytest.mark.slow
def test_slow(): assert False
class TestOfClass:
    def test_method(self, tmp_path): pass
@pytest.fixture
def loose():
    yield
    raise ValueError("left open")
def test_end(loose): pass
""",
    "folder/test_all_slow": "pytestmark = pytest.mark.slow\ndef test_slow(): assert False",
    "folder/test_none": "number = 1",
    "test_skipped": "pytest.skip('no moon', allow_module_level=True)",
    "test_broken": "import nothing_of_that_name",
    **{
        f"{folder}test_small_{number}": "def test_small(): pass"
        for number, folder in enumerate(["", "folder/"] * 2)
    },
}


def run(
    pytester: pytest.Pytester,
    monkeypatch: pytest.MonkeyPatch,
    hooks: str,
    files: dict[str, str],
    marked: str = "not slow",
    processes: int = 2,
) -> pytest.RunResult:
    """Run the tests of files that are marked so, in two processes or in this one's child alone (0)."""
    monkeypatch.setenv("PYTHONPATH", str(Path(__file__).parents[1]))
    monkeypatch.setenv("PYTEST_DISABLE_PLUGIN_AUTOLOAD", "1")
    pytester.makeini("[pytest]\nmarkers =\n    slow: x\naddopts = --dist loadgroup")
    pytester.makeconftest(hooks)
    pytester.makepyfile(**{name: SAYS + text for name, text in files.items()})
    words = ("-p", "xdist", "-n", str(processes), "-m", marked, "-rA")
    return pytester.run(sys.executable, "-m", "pytest", *words)


def test_each_file_is_imported_once_and_each_test_reported(
    pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also where nothing in a file is quick, and where a file fails or skips as it is imported.

    Of a test that passes nothing else is told, of another one how its fixtures came and went as well.
    """
    ran = run(pytester, monkeypatch, HOOKS, TESTS)

    assert ran.parseoutcomes() == {"passed": 8, "failed": 1, "errors": 2, "skipped": 1}
    ran.stdout.fnmatch_lines_random(
        [
            "FAILED test_mixed.py::test_rows[[]2[]] - assert 2 < 2",
            "ERROR test_broken.py - *",
            "ERROR test_mixed.py::test_end - ValueError: left open",
            "PASSED test_mixed.py::TestOfClass::test_method",
        ]
    )
    imported = (pytester.path / "imports").read_text().splitlines()
    assert sorted(imported) == sorted(Path(name).name for name in TESTS)
    told = (pytester.path / "told").read_text().splitlines()
    phases = ["setup", "call", "teardown"]
    for name, whens in {
        "TestOfClass::test_method": ["call"],
        "test_rows[2]": phases,
        "test_end": phases,
    }.items():
        assert [line for line in told if line.startswith(name)] == [
            f"{name} {when}" for when in whens
        ]


@pytest.mark.parametrize(
    "package",
    [
        "pytest-xdist",
        pytest.param(
            "pytest",
            marks=pytest.mark.nightly(
                "test_with_a_version_that_was_not_tried_each_process_collects_all"
            ),
        ),
    ],
)
def test_with_a_version_that_was_not_tried_each_process_collects_all(
    pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch, package: str
) -> None:
    """Collection as usual needs nothing of how the two work inside, and every test is reported all the same."""
    hooks = f"{HOOKS}\nfrom tests.late import TRIED\nTRIED[{package!r}] = ('1.',)"
    files = {name: text for name, text in TESTS.items() if name != "test_broken"}
    ran = run(pytester, monkeypatch, hooks, files)
    assert ran.parseoutcomes() == {"passed": 8, "failed": 1, "errors": 1, "skipped": 1}
    imported = (pytester.path / "imports").read_text().splitlines()
    assert sorted(imported) == sorted(2 * [Path(name).name for name in files])


def test_a_quick_test_that_computes_for_long_fails(
    pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By the CPU time of its process: a test that waits is none of these, and neither is one in another run."""
    hooks = """
from tests import quickness
from tests.quickness import pytest_runtest_call

quickness.MAX_S = 0.2
"""
    tests = """
import time
def test_wait(): time.sleep(0.3)
def test_work():
    end = time.process_time() + 0.3
    while time.process_time() < end: pass
"""
    ran = run(pytester, monkeypatch, hooks, {"test_long": tests}, processes=0)
    assert ran.parseoutcomes() == {"passed": 1, "failed": 1}
    ran.stdout.fnmatch_lines(
        ["_* test_work _*", "took 0.* s of CPU: make it cheaper, or mark it slow"]
    )
    everything = run(pytester, monkeypatch, hooks, {"test_long": tests}, "not slower", processes=0)
    assert everything.parseoutcomes() == {"passed": 2}
