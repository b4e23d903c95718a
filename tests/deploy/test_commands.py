"""Every command that deploy/ tells people to run exists."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.deploy.checkers import DEPLOY
from tests.deploy.surface import COMMANDS, FLAGS

FILES = sorted(path for path in DEPLOY.rglob("*") if path.is_file() and path.suffix != ".pyc")


def mentioned(text: str) -> list[str]:
    """List what stands in backticks and begins with qworker, folded lines joined."""
    joined = re.sub(r"\s*\n *(?:# *)?", " ", text)
    return [match.strip() for match in re.findall(r"`qworker ([^`]+)`", joined)]


@pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(DEPLOY)))
def test_commands_and_flags_exist(path: Path) -> None:
    """Each begins with one of the command line's commands and uses that command's flags."""
    for mention in mentioned(path.read_text()):
        words = mention.split()
        command = " ".join(words[:2]) if " ".join(words[:2]) in COMMANDS else words[0]
        assert command in COMMANDS, mention
        used = {word.partition("=")[0] for word in words if word.startswith("--")}
        assert used <= FLAGS.get(command, frozenset()), mention


def test_mentions_are_found() -> None:
    """The check above is able to fail."""
    assert mentioned("# run `qworker dead\n#   ls`, then `qworker nap --long`") == [
        "dead ls",
        "nap --long",
    ]
