"""Every script: a key of another type, an argument out of its range, and the time of a client are refused."""

from __future__ import annotations

from functools import cache
from importlib.resources import files

import pytest

from qworker.engine.command import Word
from qworker.engine.scripts import SCRIPT_NAMES
from tests.lua.drive import Drive
from tests.lua.refusals import REFUSALS, Call

_LUA = files("qworker").joinpath("lua")


@cache
def header_of(script: str) -> str:
    """The comment that a script begins with: its contract."""
    (file,) = (
        folder / f"{script}.lua"
        for folder in _LUA.iterdir()
        if folder.name != "lib" and (folder / f"{script}.lua").is_file()
    )
    lines = file.read_text("utf-8").removeprefix("#!lua").splitlines()[1:]
    end = next(number for number, line in enumerate(lines) if not line.startswith("-- "))
    return "\n".join(lines[:end])


def scripts(declared: str) -> pytest.MarkDecorator:
    """All scripts whose headers declare something."""
    return pytest.mark.parametrize(
        "script", [name for name in SCRIPT_NAMES if declared in header_of(name)]
    )


def refused_of(drive: Drive, script: str, *calls: Call) -> list[list[Word]]:
    """The replies of calls that change nothing."""
    before, replies = drive.state(), []
    for call in calls:
        replies.append(drive.call(script, call.keys, *call.words))
        assert drive.state() == before, call
    return replies


def test_each_script_has_its_row() -> None:
    """What a script refuses is tested, or its test fails."""
    assert sorted(REFUSALS) == sorted(SCRIPT_NAMES)


@pytest.mark.parametrize("script", SCRIPT_NAMES)
def test_a_row_has_what_the_header_declares(script: str, drive: Drive) -> None:
    """A script that says to refuse types or arguments has some to refuse; others have none."""
    row, header = REFUSALS[script], header_of(script)
    call = row.given(drive)
    assert ("'BROKEN'" in header) == (row.parts is None or len(row.parts) > 0)
    bad = bool(row.words) or any(row.calls(drive, call)) or "clock.lua" in header
    assert ("'ARG'" in header) == bad


@pytest.mark.bad_input("data found: key of another type")
@scripts("'BROKEN'")
def test_a_key_of_another_type_is_named(engine_drive: Drive, script: str) -> None:
    """And nothing is changed, neither that key nor another one."""
    drive, row = engine_drive, REFUSALS[script]
    call = row.given(drive)
    for key in call.keys if row.parts is None else [drive.base + part for part in row.parts]:
        kept = drive.redis.dump(key)
        drive.redis.set(key, "other")
        assert refused_of(drive, script, call) == [["BROKEN", key, "string"]], key
        drive.redis.delete(key)
        if kept is not None:
            drive.redis.restore(key, 0, kept)
    assert drive.call(script, call.keys, *call.words)[0] not in ("ARG", "BROKEN")


@scripts("'ARG'")
def test_an_argument_out_of_its_range_is_refused(engine_drive: Drive, script: str) -> None:
    """And nothing is changed; the call with its own arguments is taken, and so is the largest one."""
    drive, row = engine_drive, REFUSALS[script]
    call = row.given(drive)
    calls = [call.but({number: bad}) for number, words in row.words.items() for bad in words]
    calls += row.calls(drive, call)
    for each, reply in zip(calls, refused_of(drive, script, *calls), strict=True):
        assert reply[0] == "ARG", each.words
    for each in [call, *row.largest(drive, call)]:
        assert drive.call(script, each.keys, *each.words)[0] not in ("ARG", "BROKEN"), each.words


@pytest.mark.bad_input("time or host: clocks of clients a day off")
@scripts("clock.lua")
def test_a_time_is_taken_in_tests_alone(engine_drive: Drive, script: str) -> None:
    """Otherwise it is refused, and so is one that is not a time; without one the server's counts."""
    drive = engine_drive
    call = REFUSALS[script].given(drive)
    assert refused_of(drive, script, call.but({1: "x"}))[0][0] == "ARG"
    drive.redis.hdel(drive.keys.meta, "test")
    assert refused_of(drive, script, call)[0][0] == "ARG"
    assert drive.call(script, call.keys, *call.but({1: ""}).words)[0] not in ("ARG", "BROKEN")
