"""The recipe of CONTRIBUTING.md for an operation with its own script, carried out in a copy of the package."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from contextlib import closing
from pathlib import Path

import pytest

from qworker import QWorker
from tests.docs.blocks import ROOT
from tests.type_checker import check_types

pytestmark = pytest.mark.slow

RECIPE = re.findall(
    r"^\*\*(\d)\. [^`]*`(qworker/[^`]+)`.*?^```\w+\n(.*?)^```$",
    (ROOT / "CONTRIBUTING.md").read_text(),
    re.DOTALL | re.MULTILINE,
)


@pytest.fixture
def copy(tmp_path: Path) -> Path:
    """A directory with a copy of the package in which the recipe was carried out."""
    shutil.copytree(
        ROOT / "qworker", tmp_path / "qworker", ignore=shutil.ignore_patterns("__pycache__")
    )
    for _, name, text in RECIPE:
        path = tmp_path / name
        if path.exists():
            before = path.read_text()
            verb = re.search(r"^def (\w+)", text, re.MULTILINE)
            assert verb is not None
            head, verbs, tail = before.partition("VERBS: Final = (")
            assert verbs
            path.write_text(f"{head.rstrip()}\n\n\n{text}\n\n{verbs}{verb[1]}, {tail}")
        else:
            path.write_text(text)
    return tmp_path


def run(copy: Path, *words: str, url: str, namespace: str) -> str:
    """Run Python in the copy; return what it printed."""
    done = subprocess.run(
        [sys.executable, *words],
        cwd=copy,
        env={
            **os.environ,
            "PYTHONPATH": str(copy),
            "QWORKER_URL": url,
            "QWORKER_NAMESPACE": namespace,
        },
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_four_files_make_an_operation(copy: Path, store_url: str, namespace: str) -> None:
    """Script, binding, plan and command: the command prints what the script reads, and the role may call it."""
    assert [number for number, _, _ in RECIPE] == ["1", "2", "3", "4"]
    with closing(QWorker(namespace, url=store_url)) as app:
        app.queue("emails").send({"n": 1})
        urgent = app.queue("emails").send({"n": 2}, priority=7)

    printed = run(
        copy, "-m", "qworker", "queue", "head", "emails", url=store_url, namespace=namespace
    )

    assert printed == f"{urgent}\n"
    code = """
from qworker.cli.main import cli
from qworker.engine.acl import scripts_of

print(*(role for role in ("producer", "consumer", "daemon", "operator") if "head" in scripts_of(role)))
cli(["queue", "head", "emails", "--json"])
"""
    printed = run(copy, "-c", code, url=store_url, namespace=namespace)
    roles, _, document = printed.partition("\n")
    assert roles == "consumer operator"
    assert json.loads(document) == {"queue": "emails", "id": urgent}


@pytest.mark.nightly("test_four_files_make_an_operation")
def test_the_recipe_keeps_the_rules_of_the_tree(copy: Path) -> None:
    """mypy --strict finds nothing in the files of Python."""
    names = [name for _, name, _ in RECIPE if name.endswith(".py")]
    shutil.copy(ROOT / "pyproject.toml", copy)
    out, err, code = check_types(copy, *names, cache=copy / "cache")
    assert code == 0, out + err
