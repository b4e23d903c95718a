"""What the tests do about what is not installed: skip by its name for a developer, fail in CI."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path

import pytest

pytestmark = pytest.mark.slow  # starts processes

pytest_plugins = ["pytester"]

HOOKS = """
import sys
from tests.conftest import pytest_make_collect_report, pytest_runtest_makereport, pytest_runtest_setup

class Absent:
    # As if these were not installed, in front of all that finds modules.
    def find_spec(name, *where):
        if name in ("plotly", "django"):
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)

sys.meta_path.insert(0, Absent)
"""
TESTS = """
import pytest

def test_imports(): import plotly
@pytest.mark.needs("no_such_package")
def test_of_no_extra(): pass
@pytest.mark.needs("django")
def test_needs(): pass
def test_skips(): pytest.skip("no moon")
@pytest.mark.xfail(reason="known")
def test_known(): assert False
"""


@pytest.fixture
def outcomes(
    pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch
) -> Callable[[str], tuple[dict[str, int], str]]:
    """Run such tests with CI set to a value; returns the numbers of outcomes and the summary."""
    monkeypatch.setenv("PYTHONPATH", str(Path(__file__).parents[1]))
    for name in ("QWORKER_TEST_SERVER", "QWORKER_TEST_ACL", "QWORKER_TEST_RTT"):
        monkeypatch.delenv(name, raising=False)
    pytester.makeini("[pytest]\nmarkers =\n    needs: x")
    pytester.makeconftest(HOOKS)
    pytester.makepyfile(test_body=TESTS, test_top="import plotly\ndef test_never(): pass")

    def run(ci: str) -> tuple[dict[str, int], str]:
        monkeypatch.setenv("CI", ci)
        ran = pytester.run(sys.executable, "-m", "pytest", "-ra", "--continue-on-collection-errors")
        return ran.parseoutcomes(), ran.stdout.str()

    return run


@pytest.mark.nightly("test_nothing_is_skipped_in_ci")
def test_without_an_optional_package_tests_are_skipped_by_its_name(
    outcomes: Callable[[str], tuple[dict[str, int], str]],
) -> None:
    """Of files, of tests that import it and of tests that say so; a package of no extra is an error."""
    numbers, text = outcomes("false")
    assert numbers == {"skipped": 4, "errors": 1, "xfailed": 1}
    assert text.count("needs plotly: pip install -e '.[report]'") == 2
    assert "needs django: pip install --group frameworks" in text
    assert "No module named 'no_such_package'" in text


def test_nothing_is_skipped_in_ci(outcomes: Callable[[str], tuple[dict[str, int], str]]) -> None:
    """What would be skipped fails with its reason; what is known to fail still may."""
    numbers, text = outcomes("true")
    assert numbers == {"failed": 2, "errors": 3, "xfailed": 1}
    assert "no moon; with CI=true nothing may be skipped" in text
    assert "No module named 'django'" in text
