"""The generated pages and scripts are what the code says now."""

from __future__ import annotations

from pathlib import Path

import pytest

from docs import generate

DOCS = Path(generate.__file__).parent
GENERATED = generate.generated()


@pytest.mark.parametrize("name", GENERATED)
def test_a_generated_file_is_fresh(name):
    assert (DOCS / name).read_text("utf-8") == GENERATED[name], "run python -m docs.generate"


def test_nothing_lies_beside_what_is_generated():
    found = {
        str(path.relative_to(DOCS))
        for name in ("reference", "scripts")
        for path in (DOCS / name).iterdir()
    }
    assert found == set(GENERATED)


def test_a_stale_file_is_named_and_written_anew(capsys, monkeypatch, tmp_path):
    monkeypatch.setattr(generate, "_DOCS", tmp_path)
    (tmp_path / "templates").mkdir()
    (tmp_path / "templates" / "errors.md").write_text("# Errors\n\n{{ tree }}\n")
    assert generate.main(["--check"]) == 3
    assert (
        "docs/reference/errors.md is stale: run python -m docs.generate" in capsys.readouterr().err
    )
    assert generate.main([]) == 0
    assert "QworkerError" in (tmp_path / "reference" / "errors.md").read_text()
    assert generate.main(["--check"]) == 0
