"""What the demo's handlers do with a file."""

from __future__ import annotations

import pytest

from qworker.demo.summary import FileSummary, check_grammar, summarize

SOURCE = """\
import os.path, sys
from collections import abc
from . import sibling

class A:
    def method(self): ...

async def run():
    try:
        import json
    except ImportError:
        def fallback(): ...
    match 1:
        case 1:
            import re
"""


@pytest.fixture
def file(tmp_path):
    return tmp_path / "module.py"


def test_a_summary_counts_definitions_and_imports_at_any_depth(file):
    file.write_text(SOURCE)
    assert summarize(str(file), "module", "k") == FileSummary(
        "k",
        str(file),
        "module",
        lines=15,
        classes=1,
        functions=3,
        imports=["collections", "json", "os", "re", "sys"],
    )


def test_a_file_in_its_declared_encoding_is_summarized_but_is_not_utf8(file):
    file.write_bytes("# -*- coding: latin-1 -*-\nname = 'é'\n".encode("latin-1"))
    assert summarize(str(file), "module", "k").lines == 2
    with pytest.raises(UnicodeDecodeError):
        check_grammar(str(file), (3, 7))


def test_syntax_newer_than_the_grammar_is_refused(file):
    file.write_text("if (n := 1): pass\n")
    check_grammar(str(file), (3, 8))
    with pytest.raises(SyntaxError, match="Assignment expressions"):
        check_grammar(str(file), (3, 7))


@pytest.mark.parametrize("text", ["\ufeffx = 1\n", "", "x = '\\d'\n"])
def test_a_byte_order_mark_an_empty_file_and_an_odd_escape_are_fine(file, text):
    file.write_text(text, encoding="utf-8")
    check_grammar(str(file), (3, 7))
    summarize(str(file), "module", "k")
