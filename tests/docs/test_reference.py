"""The generated pages and scripts are what the code says now."""

from __future__ import annotations

from pathlib import Path

from docs import generate
from tests.tables import each

DOCS = Path(generate.__file__).parent
GENERATED = generate.generated()


@each("name", GENERATED)
def test_a_generated_file_is_fresh(name):
    assert (DOCS / name).read_text("utf-8") == GENERATED[name], "run python -m docs.generate"


@each("name", [name for name in GENERATED if name.endswith(".md")])
def test_a_generated_page_has_no_token_left(name):
    assert "{{" not in GENERATED[name]


def test_a_token_may_be_wrapped(monkeypatch, tmp_path):
    """A template that breaks its line inside the braces is filled in."""
    monkeypatch.setattr(generate, "_DOCS", tmp_path)
    (tmp_path / "templates").mkdir()
    (tmp_path / "templates" / "metrics.md").write_text("`outcome` is one of {{\noutcomes }}.\n")
    assert "`acked`" in generate.generated()["reference/metrics.md"]


def test_no_other_files_lie_beside_the_generated_ones():
    files = {
        str(path.relative_to(DOCS))
        for name in ("reference", "scripts")
        for path in (DOCS / name).iterdir()
    }
    assert files == set(GENERATED)


def test_a_stale_file_is_named_and_rewritten(capsys, monkeypatch, tmp_path):
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
