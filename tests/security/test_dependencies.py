"""What is installed and what is released: pinned with hashes, listed, and reproducible."""

from __future__ import annotations

import hashlib
import json
import os
import re
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from tests.deploy.checkers import run

ROOT = Path(__file__).parents[2]
LOCK = ROOT / "deploy/requirements.lock"
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]


def pinned() -> dict[str, tuple[str, list[str]]]:
    """Name → version and hashes, of the lock file."""
    pins: dict[str, tuple[str, list[str]]] = {}
    name = ""
    for line in LOCK.read_text().splitlines():
        if match := re.match(r"([A-Za-z0-9._-]+)==([^ ;\\]+)", line):
            name = canonicalize_name(match[1])
            pins[name] = (match[2], [])
        elif match := re.match(r" +--hash=sha256:([0-9a-f]{64})", line):
            pins[name][1].append(match[1])
        else:
            assert line.startswith("#"), line
    return pins


def test_every_dependency_is_pinned_within_its_range() -> None:
    """Those of the package, and those of the extras that a server wants."""
    locked = pinned()
    extras = PROJECT["optional-dependencies"]
    for text in [*PROJECT["dependencies"], *extras["uvloop"], *extras["crypto"]]:
        requirement = Requirement(text)
        version, _ = locked[canonicalize_name(requirement.name)]
        assert requirement.specifier.contains(version), f"{text} is pinned to {version}: make lock"


def test_every_pin_has_hashes_and_no_place() -> None:
    """pip refuses whatever else it is given; where it fetches from is the installer's choice."""
    assert all(hashes for _, hashes in pinned().values())
    assert not re.search(r"https?://|--index|--find-links", LOCK.read_text())


def build(source: Path, target: Path, *, epoch: str) -> dict[str, str]:
    """Build sdist and wheel; file → SHA-256."""
    done = subprocess.run(
        [sys.executable, "-m", "hatchling", "build", "--directory", str(target)],
        cwd=source,
        env={**os.environ, "SOURCE_DATE_EPOCH": epoch},
        capture_output=True,
        text=True,
        timeout=100,
    )
    assert done.returncode == 0, done.stderr
    return {
        path.name: hashlib.sha256(path.read_bytes()).hexdigest()
        for path in sorted(target.iterdir())
    }


@pytest.mark.slow
@pytest.mark.needs("hatchling")
def test_a_release_is_reproducible(tmp_path: Path) -> None:
    """Other times, rights and places of the files, and the same bytes of sdist and wheel."""
    kept = (
        "qworker",
        "pyspark_qworker",
        "deploy",
        "README.md",
        "CHANGELOG.md",
        "LICENSE",
        "pyproject.toml",
    )
    built, built_from = [], list[Path]()
    for number in range(2):
        source = tmp_path.joinpath(*["elsewhere"] * number, "source")
        source.mkdir(parents=True)
        # The second place is a copy of the first: the checkout may be in use.
        origin = built_from[-1] if built_from else ROOT
        built_from.append(source)
        for name in kept:
            place = origin / name
            if place.is_dir():
                ignored = shutil.ignore_patterns("__pycache__", "*.pyc")
                shutil.copytree(place, source / name, ignore=ignored, copy_function=shutil.copyfile)
            else:
                shutil.copyfile(place, source / name)
        for path in source.rglob("*"):
            os.utime(path, (1_000_000_000 + number, 1_000_000_000 + number))
            path.chmod(path.stat().st_mode & ~(0o022 * number))
        built.append(build(source, tmp_path / f"out-{number}", epoch="1700000000"))
    assert built[0] == built[1]
    assert {Path(name).suffix for name in built[0]} == {".gz", ".whl"}


def test_reports_have_a_way_and_a_time() -> None:
    """SECURITY.md says where to report, and when there is an answer."""
    text = (ROOT / "SECURITY.md").read_text()
    for words in ("Report a vulnerability", "48 hours", "7 days", "Supported"):
        assert words in text


@pytest.mark.slow
def test_a_release_has_its_list_of_parts(tmp_path: Path) -> None:
    """What `make dist` runs lists every pin with its version and hashes, each time the same, and asks no network."""
    makefile = (ROOT / "Makefile").read_text()
    command = re.search(r"cyclonedx-py (.*) -o dist/sbom\.cdx\.json", makefile)
    assert command
    words = command[1].replace("$(LOCK)", str(LOCK)).split()
    written = tmp_path / "sbom.json"
    done = run("cyclonedx-py", *words, "-o", written, cwd=ROOT)
    assert done.returncode == 0, done.stderr
    document = json.loads(written.read_text())
    assert "serialNumber" not in document  # what would be another one each time
    assert "timestamp" not in document["metadata"]
    parts = {
        canonicalize_name(part["name"]): (
            part["version"],
            sorted(
                each["content"] for place in part["externalReferences"] for each in place["hashes"]
            ),
        )
        for part in document["components"]
    }
    assert parts == {
        name: (version, sorted(hashes)) for name, (version, hashes) in pinned().items()
    }
    assert document["metadata"]["component"]["name"] == PROJECT["name"]
    assert "SOURCE_DATE_EPOCH" in makefile
