"""The commands that the demo names as next steps."""

from __future__ import annotations

import sys

from qworker.demo.command import typed_command


def test_next_steps_can_be_typed_where_the_shell_does_not_find_the_command(tmp_path, monkeypatch):
    """`make demo` starts `.venv/bin/qworker`, and others `python -m qworker`."""
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr(sys, "argv", [".venv/bin/qworker", "demo"])
    assert typed_command() == ".venv/bin/qworker"
    monkeypatch.setattr(sys, "argv", ["/lib/qworker/__main__.py", "demo"])
    assert typed_command() == f"{sys.executable} -m qworker"
    installed = tmp_path / "qworker"
    installed.touch(mode=0o755)
    assert typed_command() == "qworker"
