"""Every command that the product's own texts suggest is one that the command line has."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator

import click
import pytest

from qworker.cli.dead.group import drop, redrive
from qworker.cli.main import cli
from tests.docs.blocks import ROOT
from tests.trees import nodes

#: Where a value is filled in.
FILLED = "VALUE"
#: A command, until its sentence goes on.
COMMAND = re.compile(r"qworker (?:(?!\sqworker)[^\n;,`()|'\"…]|…)+")
#: Commands that refuse to act on everything unless they are told to.
CHOOSERS = (redrive, drop)
ARGUMENT = re.compile(r"VALUE|[A-Z][A-Z-]+|--[a-z].*|-[a-z]")


def texts(path) -> Iterator[str]:
    """The texts of a module, without docstrings: of each the parts that are written together, values filled in."""
    tree = nodes(path)
    inner = {
        id(part)
        for node in tree
        if isinstance(node, ast.JoinedStr)
        for part in ast.walk(node)
        if part is not node
    } | {
        id(node.value)
        for node in tree
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)
    }
    for node in tree:
        if id(node) in inner:
            continue
        if isinstance(node, ast.JoinedStr):
            yield "".join(
                str(part.value) if isinstance(part, ast.Constant) else FILLED
                for part in node.values
            )
        elif isinstance(node, ast.Constant) and isinstance(node.value, str):
            yield node.value


def suggested() -> list[tuple[str, str]]:
    """The module and the words of each command, as far as they are its names, arguments and options."""
    found = set()
    for path in sorted((ROOT / "qworker").rglob("*.py")):
        for text in texts(path) if b"qworker " in path.read_bytes() else ():
            for command in COMMAND.findall(text):
                # A comment stands behind two spaces.
                found.add((path.relative_to(ROOT).as_posix(), command.partition("  ")[0].strip()))
    return sorted(found)


def fault(text: str) -> str | None:
    """Why the command line does not have the command that a text begins with; None if it does."""
    words = [word.rstrip(".:") for word in text.split()[1:]]
    command: click.Command = cli
    context = click.Context(cli, info_name="qworker", **cli.context_settings)
    while isinstance(command, click.Group) and words:
        below = command.get_command(context, words[0])
        if below is None:
            return None if command is cli or words[0] == FILLED else f"{words[0]} is not a verb"
        command, context = below, click.Context(below, parent=context, info_name=words.pop(0))
    given = []
    for word in words:
        if not (ARGUMENT.fullmatch(word) or (given and given[-1].startswith("--"))):
            break
        given.append(word)
    if command in CHOOSERS and not any(word.startswith("--") for word in words):
        return "it must choose dead letters: --all, or a filter"
    if not given or isinstance(command, click.Group):
        return None
    if given[-1].startswith("--"):
        given[-1] = "--help"  # its value stands behind a quote, or it needs none
    _, more, _ = command.make_parser(context).parse_args(given)
    return f"{' '.join(more)} is too much" if more else None


@pytest.mark.slow  # parses the modules
@pytest.mark.xdist_group("code")
def test_the_commands_that_texts_suggest_exist():
    assert [(*one, why) for one in suggested() if (why := fault(one[1])) is not None] == []


@pytest.mark.slow  # parses the modules
@pytest.mark.xdist_group("code")
def test_there_are_texts_to_check_and_wrong_ones_are_found():
    assert len(suggested()) > 50
    assert fault("qworker message show VALUE VALUE") == "VALUE is too much"
    assert fault("qworker message look VALUE") == "look is not a verb"
    assert "must choose" in str(fault("qworker dead redrive VALUE"))
    assert fault("qworker dead redrive VALUE --all") is None
