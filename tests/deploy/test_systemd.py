"""The systemd units are valid, hardened, and give consumers the time they need to stop."""

from __future__ import annotations

import json
import re
import shlex
from pathlib import Path

import pytest

from tests.deploy.checkers import DEPLOY, run
from tests.deploy.surface import FLAGS
from tests.deploy.units import PROGRAM, UNITS, options, seconds

# In tenths: 20 is an exposure of 2.0, of 10 for a unit that restricts nothing.
EXPOSURE_LIMIT = 20


@pytest.fixture(params=UNITS)
def installed(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    """A copy of a unit as it would be installed, with a program that exists on every machine."""
    text = (DEPLOY / "systemd" / request.param).read_text()
    assert PROGRAM in text
    path = tmp_path / str(request.param).replace("@", "@shop.tasks")
    path.write_text(text.replace(PROGRAM, "/usr/bin/env"))
    return path


def verify(unit: Path) -> tuple[int, str]:
    # Without --recursive-errors systemd 252 prints what is wrong and exits with 0.
    done = run("systemd-analyze", "verify", "--recursive-errors=no", unit)
    return done.returncode, done.stderr


def test_unit_is_valid(installed: Path) -> None:
    """systemd knows every key and value."""
    assert verify(installed) == (0, "")


def test_a_misspelt_key_is_noticed(installed: Path) -> None:
    """The check above is able to fail."""
    installed.write_text(installed.read_text().replace("KillMode=", "KilMode="))
    code, text = verify(installed)
    assert code != 0
    assert "KilMode" in text


def test_exposure_is_low(installed: Path) -> None:
    """The unit stays at or below the exposure limit; the finding list names what got worse."""
    tool = ("systemd-analyze", "security", "--offline=yes")
    done = run(*tool, f"--threshold={EXPOSURE_LIMIT}", "--json=short", installed)
    worst = [row for row in json.loads(done.stdout) if float(row.get("exposure") or 0) >= 0.2]
    assert done.returncode == 0, worst


@pytest.mark.parametrize("unit", UNITS)
def test_unit_is_supervised(unit: str) -> None:
    """A hang, a crash and a stalled receive lead to a restart; bad configuration does not."""
    have = dict(options(unit))
    want = {
        "Type": "notify",
        "NotifyAccess": "main",
        "KillMode": "mixed",
        "Restart": "on-failure",
        "RestartForceExitStatus": "70",
        "RestartPreventExitStatus": "2",
        "StartLimitIntervalSec": "0",
    }
    assert {name: have.get(name) for name in want} == want
    assert seconds(have["WatchdogSec"]) > 10


@pytest.mark.parametrize("unit", UNITS)
def test_flags_exist(unit: str) -> None:
    """ExecStart uses commands and flags that the command line has."""
    program, command, *rest = shlex.split(dict(options(unit))["ExecStart"])
    assert program == PROGRAM
    assert {word for word in rest if word.startswith("--")} <= FLAGS[command]


def test_consumers_may_finish_before_they_are_killed() -> None:
    """TimeoutStopSec leaves the grace time and a margin for what comes after it."""
    have = dict(options("qworker-worker@.service"))
    words = shlex.split(have["ExecStart"])
    grace = seconds(words[words.index("--grace") + 1])
    assert seconds(have["TimeoutStopSec"]) >= grace + 10


def test_a_child_killed_for_memory_does_not_end_its_siblings() -> None:
    """The supervisor deals with it; systemd's default would stop the whole unit."""
    assert dict(options("qworker-worker@.service"))["OOMPolicy"] == "continue"


@pytest.mark.parametrize("unit", UNITS)
def test_process_table_is_complete_enough_for_psutil(unit: str) -> None:
    """psutil needs /proc/stat to look at a process, which ProcSubset=pid would hide."""
    assert "ProcSubset" not in dict(options(unit))


def test_environment_file_is_one() -> None:
    """The example holds NAME=value lines, all named for qworker, and the URL without which it exits."""
    lines = (DEPLOY / "systemd" / "qworker.env").read_text().splitlines()
    pairs = [line.partition("=") for line in lines if line and not line.startswith("#")]
    assert all(re.fullmatch(r"QWORKER_[A-Z_]+", name) and value for name, _, value in pairs)
    assert {name for name, _, _ in pairs} >= {"QWORKER_URL", "QWORKER_NAMESPACE"}
