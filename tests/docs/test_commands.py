"""Every `qworker …` that our pages show is one that the command line has, with its options."""

from __future__ import annotations

import re
import shlex

import click

from qworker.cli.main import cli
from tests.docs.blocks import ROOT
from tests.tables import each

PAGES = [
    *ROOT.glob("*.md"),
    *(ROOT / "docs").glob("*.md"),
    *(ROOT / "docs" / "guides").glob("*.md"),
    *(ROOT / "examples").glob("*"),
    ROOT / "deploy" / "README.md",
]


def shown() -> list[str]:
    """Find commands in code, where they begin a line, and in code spans; without the comment behind them."""
    commands: set[str] = set()
    for page in PAGES:
        if page.suffix not in (".md", ".py"):
            continue
        text = page.read_text("utf-8")
        code = (
            text
            if page.suffix == ".py"
            else "\n".join(re.findall(r"^```\w*\n(.*?)^```", text, re.S | re.M))
        )
        lines = re.findall(r"^(?: {4})?(qworker [a-z].*)$", code, re.M)
        for line in (*lines, *re.findall(r"`(qworker [a-z][^`\n]*)`", text)):
            words = re.split(r"\s{2,}|\s#\s", line.strip())[0]
            commands.add(words.replace("…", "X").replace("|| true", "").strip())
    return sorted(commands)


@each("line", shown())
def test_a_command_of_our_pages_exists_with_its_options(line):
    words = shlex.split(line)[1:]
    command: click.Command = cli
    context = click.Context(cli, info_name="qworker")
    while isinstance(command, click.Group) and words:
        name = words.pop(0)
        below = command.get_command(context, name)
        assert below is not None, f"{name} is not a verb"
        command, context = below, click.Context(below, parent=context, info_name=name)
    command.make_parser(context).parse_args(words)


def test_there_are_commands_to_check():
    assert len(shown()) > 30
