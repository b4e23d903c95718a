"""The Lua files keep their contract: named, included, described, bounded, and all their keys declared."""

from __future__ import annotations

import hashlib
import re
from functools import cache
from pathlib import Path

import pytest

import qworker
from qworker.engine.scripts import SCRIPT_NAMES, load_script
from tests.tables import each

FOLDER = Path(qworker.__file__).parent / "lua"
PARTS = sorted(path.name for path in (FOLDER / "lib").glob("*.lua"))
#: Scripts that add messages, larger bodies or tombstones: a full server refuses them.
SENDERS = {
    "gather",
    "join",
    "send",
    "send_chunk",
    "start",
    "feed",
    "accept",
    "tell",
    "fire",
    "take_over",
    "edit",
    "cancel",
    "conclude",
    "step",
    "position",
    "signal",
}
#: Scripts that only read.
READERS = {
    "groups",
    "inspect",
    "inspect_runs",
    "largest",
    "lengths",
    "names",
    "poll",
    "present",
    "recall",
    "values",
}
#: Scripts without times.
TIMELESS = {"absorb", "declare", "feed", "lengths", "names", "note", "present", "recall", "values"}
#: Commands whose first argument is not a key.
KEYLESS = {"INFO", "TIME"}


def text_of(name: str) -> str:
    """Return the text of a script's file, without its includes."""
    return path_of(name).read_text("utf-8")


def path_of(name: str) -> Path:
    """Return the file of a script or of a part."""
    (path,) = FOLDER.glob(f"{name}.lua") if "/" in name else FOLDER.glob(f"[!l]*/{name}.lua")
    return path


def code_of(source: str) -> str:
    """Return Lua without comments."""
    return re.sub(r"--.*", "", source)


def test_every_file_is_listed_and_every_name_has_its_file() -> None:
    """The list of scripts is that of the files."""
    assert sorted(path.stem for path in FOLDER.glob("[!l]*/*.lua")) == list(SCRIPT_NAMES)
    assert not list(FOLDER.glob("*.lua"))


def test_every_part_is_included_somewhere() -> None:
    """Every shared part is in use."""
    included = {
        line.removeprefix("--- include lib/")
        for name in SCRIPT_NAMES
        for line in text_of(name).splitlines()
        if line.startswith("--- include ")
    }
    assert sorted(included) == PARTS


@each("name", SCRIPT_NAMES)
def test_includes_are_put_in_as_fixed_text(name: str) -> None:
    """A script is its file with parts in place of the include lines, always the same bytes."""
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
    """An include in a part would not be replaced."""
    for part in PARTS:
        assert "--- include" not in (FOLDER / "lib" / part).read_text("utf-8")


def test_unknown_script_is_refused() -> None:
    """Loading a script of another name fails."""
    with pytest.raises(FileNotFoundError):
        load_script("drop_everything")


@each("name", SCRIPT_NAMES)
def test_header_is_a_contract_in_order(name: str) -> None:
    """Flags, a sentence, ROLES, KEYS, ARGV, Returns and complexity, in this order, with all letters explained."""
    lines = text_of(name).splitlines()
    assert lines[0].startswith("#!lua")
    assert re.fullmatch(rf"-- {name}\.lua: [a-z].*\.", lines[1])
    header = []
    for line in lines[1:]:
        if not line.startswith("-- "):
            break
        header.append(line.removeprefix("-- "))
    marks = [
        word for line in header for word in re.findall(r"^(ROLES|KEYS|ARGV|Returns|O\()", line)
    ]
    order = [mark for at, mark in enumerate(marks) if at == 0 or marks[at - 1] != mark]
    arguments = ["ARGV"] if "ARGV[" in "\n".join(lines) else []
    assert order == ["ROLES", "KEYS", *arguments, "Returns", "O("]
    complexity = header[-1]
    assert complexity.endswith(".")
    formula, _, explained = complexity.partition(")")
    for letter in set(re.findall(r"\b[a-z]\b", formula)):
        assert re.search(rf"\b{letter}\b", explained), letter


@each("name", SCRIPT_NAMES)
def test_flags_let_you_drain_a_full_server_but_not_fill_it(name: str) -> None:
    """Everything but sending works over maxmemory."""
    flags = text_of(name).splitlines()[0].removeprefix("#!lua").strip()
    if name in SENDERS:
        assert flags == ""
    elif name in READERS:
        assert flags == "flags=no-writes"
    else:
        assert flags == "flags=allow-oom"


@each("name", SCRIPT_NAMES)
def test_no_script_makes_the_name_of_a_key(name: str) -> None:
    """Commands get declared keys only: an entry of KEYS or a name bound to one, never text."""
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


@cache
def shared_names() -> frozenset[str]:
    """Return the functions and names that the shared parts define."""
    shared = set()
    for part in PARTS:
        text = code_of((FOLDER / "lib" / part).read_text("utf-8"))
        shared |= set(re.findall(r"^local function (\w+)", text, re.MULTILINE))
        for names in re.findall(r"^local ([\w, ]+?) =", text, re.MULTILINE):
            shared |= {word.strip() for word in names.split(",")}
    return frozenset(shared)


#: A function with its parameters, local names, and the names of a loop.
DEFINITION = re.compile(
    r"(?:local )?function\b\s*([\w.:]*)\(([^)\n]*)\)|\blocal ([\w, ]+)|\bfor ([\w, ]+?) (?:in\b|=)"
)


@each("name", SCRIPT_NAMES)
@pytest.mark.slow
def test_every_shared_name_is_defined_before_it_is_used(name: str) -> None:
    """The includes are complete and in order, which Lua itself notices only when a line runs."""
    code = re.sub(r"'[^'\n]*'", "''", code_of(load_script(name).source.decode()))
    defined: dict[str, int] = {}
    for found in re.finditer(DEFINITION, code):
        for word in re.findall(r"\w+", " ".join(names or "" for names in found.groups())):
            defined.setdefault(word, found.start())
    used: dict[str, int] = {}
    for found in re.finditer(r"(?<![\w.:])\w+\b(?!\s*=[^=])", code):
        used.setdefault(found[0], found.start())
    for word in shared_names() & used.keys():
        assert word in defined, f"{word} is not included"
        assert defined[word] <= used[word], f"{word} is used before it is defined"


@each("name", SCRIPT_NAMES)
def test_no_line_of_the_head_is_repeated(name: str) -> None:
    """A part included twice would run twice; a key described twice is a mistake."""
    lines = path_of(name).read_text("utf-8").splitlines()
    head = [line for line in lines if line.startswith(("--- include ", "-- KEYS["))]
    assert len(head) == len(set(head))


@each("name", SCRIPT_NAMES)
def test_scripts_are_deterministic_but_for_time(name: str) -> None:
    """Time comes only from TIME, in the one part that tests can set; nothing is random; bodies are never decoded."""
    code = code_of(load_script(name).source.decode())
    assert "math.random" not in code
    assert "cjson" not in code
    # Scripts decode only what they alone write: the batch of a lease, records of groups and joins.
    assert set(re.findall(r"cmsgpack[.]?\w*", code)) <= {
        "cmsgpack.pack",
        "cmsgpack.unpack",
        "cmsgpack.unpack_limit",
    }
    assert "os." not in code
    assert code.count("redis.call('TIME')") == (0 if name in TIMELESS else 1)
    for forbidden in ("KEYS", "FLUSHDB", "FLUSHALL", "EXPIRE", "SORT", "SMEMBERS"):
        assert f"call('{forbidden}'" not in code


@each("name", [*SCRIPT_NAMES, *(f"lib/{part[:-4]}" for part in PARTS)])
def test_files_fit_in_a_head(name: str) -> None:
    """A script has a hundred lines or a few more, a shared part at most two hundred."""
    lines = path_of(name).read_text("utf-8").splitlines()
    assert len(lines) <= (200 if name.startswith("lib/") else 125)
    assert all(len(line) <= 140 for line in lines)
