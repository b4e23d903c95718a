"""The Lua files keep their contract: named, included, described, bounded, and all their keys declared."""

from __future__ import annotations

import hashlib
import re
from pathlib import Path

import pytest

import qworker
from qworker.store.scripts import SCRIPT_NAMES, load_script

FOLDER = Path(qworker.__file__).parent / "lua"
PARTS = sorted(path.name for path in (FOLDER / "lib").glob("*.lua"))
#: Scripts that take messages, larger bodies or tombstones in: a full server refuses them.
SENDERS = {"send", "send_chunk", "fire", "take_over", "edit", "cancel"}
#: Scripts that only look.
READERS = {"inspect", "lengths", "names", "poll", "present"}
#: Scripts in which nothing has a time.
TIMELESS = {"lengths", "names", "poll", "present", "retire"}
#: Commands whose first argument is no key.
KEYLESS = {"TIME"}


def text_of(name: str) -> str:
    """The file of a script as it stands."""
    return (FOLDER / f"{name}.lua").read_text("utf-8")


def code_of(source: str) -> str:
    """Lua without its comments."""
    return re.sub(r"--.*", "", source)


def test_every_file_is_listed_and_every_name_has_its_file() -> None:
    """The list of scripts is the folder."""
    assert sorted(path.stem for path in FOLDER.glob("*.lua")) == sorted(SCRIPT_NAMES)


def test_every_part_is_included_somewhere() -> None:
    """No shared part is left over."""
    included = {
        line.removeprefix("--- include lib/")
        for name in SCRIPT_NAMES
        for line in text_of(name).splitlines()
        if line.startswith("--- include ")
    }
    assert sorted(included) == PARTS


@pytest.mark.parametrize("name", SCRIPT_NAMES)
def test_includes_are_put_in_as_fixed_text(name: str) -> None:
    """What runs is the file with its parts in the place of the include lines, the same bytes each time."""
    script = load_script(name)
    expected = re.sub(
        r"^--- include (\S+)$",
        lambda match: (FOLDER / match[1]).read_text("utf-8").rstrip("\n"),
        text_of(name),
        flags=re.MULTILINE,
    )
    assert script.source.decode() == expected
    assert script.sha == hashlib.sha1(script.source).hexdigest()
    assert b"--- include" not in script.source
    assert load_script(name) is script


def test_parts_include_nothing() -> None:
    """An include in a part would not be put in."""
    for part in PARTS:
        assert "--- include" not in (FOLDER / "lib" / part).read_text("utf-8")


def test_unknown_script_is_refused() -> None:
    """There is no script of another name."""
    with pytest.raises(FileNotFoundError):
        load_script("drop_everything")


@pytest.mark.parametrize("name", SCRIPT_NAMES)
def test_header_is_a_contract_in_order(name: str) -> None:
    """Flags, one sentence, KEYS, ARGV, Returns, complexity, in this order, and each letter of it is explained."""
    lines = text_of(name).splitlines()
    assert lines[0].startswith("#!lua")
    assert re.fullmatch(rf"-- {name}\.lua: [a-z].*\.", lines[1])
    header = []
    for line in lines[1:]:
        if not line.startswith("-- "):
            break
        header.append(line.removeprefix("-- "))
    marks = [word for line in header for word in re.findall(r"^(KEYS|ARGV|Returns|O\()", line)]
    order = [mark for at, mark in enumerate(marks) if at == 0 or marks[at - 1] != mark]
    arguments = ["ARGV"] if "ARGV[" in "\n".join(lines) else []
    assert order == ["KEYS", *arguments, "Returns", "O("]
    complexity = header[-1]
    assert complexity.endswith(".")
    formula, _, explained = complexity.partition(")")
    for letter in set(re.findall(r"\b[a-z]\b", formula)):
        assert re.search(rf"\b{letter}\b", explained), letter


@pytest.mark.parametrize("name", SCRIPT_NAMES)
def test_flags_let_a_full_server_be_drained_and_not_filled(name: str) -> None:
    """Everything but sending may go on over maxmemory."""
    flags = text_of(name).splitlines()[0].removeprefix("#!lua").strip()
    if name in SENDERS:
        assert flags == ""
    elif name in READERS:
        assert flags == "flags=no-writes"
    else:
        assert flags == "flags=allow-oom"


@pytest.mark.parametrize("name", SCRIPT_NAMES)
def test_no_script_makes_the_name_of_a_key(name: str) -> None:
    """Each command is given a key that was declared: an entry of KEYS or a name bound to one, never text."""
    code = code_of(load_script(name).source.decode())
    calls = re.findall(r"redis\.p?call\(\s*'(\w+)'\s*,?\s*([^,)]*)", code)
    assert calls
    for command, key in calls:
        if command not in KEYLESS:
            assert re.fullmatch(
                r"[a-z_]+(\.key|\(\w+)?|KEYS\[[^\]]+\]|expected\[i\]", key.strip()
            ), (
                command,
                key,
            )
    assert len(calls) == len(re.findall(r"redis\.p?call\(", code)), (
        "a command that is not a literal"
    )


@pytest.mark.parametrize("name", SCRIPT_NAMES)
def test_every_shared_name_is_defined_before_it_is_used(name: str) -> None:
    """The includes are complete and in order: Lua would find out only when the line runs."""
    code = re.sub(r"'[^'\n]*'", "''", code_of(load_script(name).source.decode()))
    shared = set()
    for part in PARTS:
        text = code_of((FOLDER / "lib" / part).read_text("utf-8"))
        shared |= set(re.findall(r"^local function (\w+)", text, re.MULTILINE))
        for names in re.findall(r"^local ([\w, ]+?) =", text, re.MULTILINE):
            shared |= {each.strip() for each in names.split(",")}
    for each in shared:
        used = re.search(rf"(?<![\w.:]){each}\b(?!\s*=[^=])", code)
        if used is None:
            continue
        defined = re.search(
            rf"^\s*(?:local function {each}\b|local [\w, ]*\b{each}\b|for [\w, ]*\b{each}\b"
            rf"|.*function [\w.]*\([^)]*\b{each}\b)",
            code,
            re.MULTILINE,
        )
        assert defined is not None, f"{each} is not included"
        assert defined.start() <= used.start(), f"{each} is used before it is defined"


@pytest.mark.parametrize("name", SCRIPT_NAMES)
def test_no_line_of_the_head_stands_twice(name: str) -> None:
    """A part included twice would run twice; a key described twice has moved."""
    lines = (FOLDER / f"{name}.lua").read_text("utf-8").splitlines()
    head = [line for line in lines if line.startswith(("--- include ", "-- KEYS["))]
    assert len(head) == len(set(head))


@pytest.mark.parametrize("name", SCRIPT_NAMES)
def test_no_script_reads_a_clock_or_chance_of_its_own(name: str) -> None:
    """Time comes from TIME alone, in the one place that tests can set; nothing is random; bodies are never decoded."""
    code = code_of(load_script(name).source.decode())
    assert "math.random" not in code
    assert "cjson" not in code
    # Of what is stored, scripts decode one field of a lease, which only they write.
    assert set(re.findall(r"cmsgpack[.]?\w*", code)) <= {"cmsgpack.pack", "cmsgpack.unpack"}
    assert "os." not in code
    assert code.count("redis.call('TIME')") == (0 if name in TIMELESS else 1)
    for forbidden in ("KEYS", "FLUSHDB", "FLUSHALL", "EXPIRE", "SORT", "SMEMBERS"):
        assert f"call('{forbidden}'" not in code


@pytest.mark.parametrize("name", [*SCRIPT_NAMES, *(f"lib/{part[:-4]}" for part in PARTS)])
def test_files_fit_in_a_head(name: str) -> None:
    """A verb has about a hundred lines at most, a shared part less than two hundred."""
    lines = (FOLDER / f"{name}.lua").read_text("utf-8").splitlines()
    assert len(lines) <= (200 if name.startswith("lib/") else 100)
    assert all(len(line) <= 140 for line in lines)
