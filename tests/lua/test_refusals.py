"""Every script: a key of another type, an argument out of its range, and the time of a client are refused."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from importlib.resources import files

import pytest

from qworker.engine.command import Word
from qworker.engine.scripts import SCRIPT_NAMES
from tests.lua.drive import Drive
from tests.lua.refusals import REFUSALS, Call
from tests.tables import each

_LUA = files("qworker").joinpath("lua")
#: On Valkey, and at night on Redis.
ON_EACH = pytest.mark.parametrize(
    "engine_url",
    [
        "valkey",
        pytest.param("redis", marks=pytest.mark.nightly("test_a_key_of_another_type_is_named")),
    ],
    indirect=True,
)


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


def scripts(declared: str) -> list[str]:
    """All scripts whose headers declare something."""
    return [name for name in SCRIPT_NAMES if declared in header_of(name)]


def refused_of(drive: Drive, script: str, *calls: Call) -> list[list[Word]]:
    """The replies of calls that change nothing, alone or together."""
    before = drive.state()
    replies: list[list[Word]] = drive.call_each(script, [(call.keys, call.words) for call in calls])
    assert drive.state() == before, calls
    return replies


def refused_for(drive: Drive, script: str, call: Call, key: str) -> list[Word]:
    """The reply to a call while a key has another type, which stays as it is meanwhile."""
    with drive.redis.pipeline(transaction=False) as trip:
        kept, _ = trip.dump(key).set(key, "other").execute()
        reply: list[Word] = drive.call(script, call.keys, *call.words)
        trip.getdel(key)
        if kept is not None:
            trip.restore(key, 0, kept)
        assert trip.execute()[0] == b"other", key
    return reply


def test_each_script_has_its_row() -> None:
    """What a script refuses is tested, or its test fails."""
    assert sorted(REFUSALS) == sorted(SCRIPT_NAMES)


@each("script", SCRIPT_NAMES)
def test_a_row_has_what_the_header_declares(script: str, new_drive: Callable[[], Drive]) -> None:
    """A script that says to refuse types or arguments has some to refuse; others have none."""
    drive = new_drive()
    row, header = REFUSALS[script], header_of(script)
    call = row.given(drive)
    assert ("'BROKEN'" in header) == (row.parts is None or len(row.parts) > 0)
    bad = bool(row.words) or any(row.calls(drive, call)) or "clock.lua" in header
    assert ("'ARG'" in header) == bad


@pytest.mark.bad_input("data found: key of another type")
@ON_EACH
@each("script", scripts("'BROKEN'"))
def test_a_key_of_another_type_is_named(new_engine_drive: Callable[[], Drive], script: str) -> None:
    """And nothing is changed, neither that key nor another one."""
    drive, row = new_engine_drive(), REFUSALS[script]
    call = row.given(drive)
    before = drive.state()
    for key in call.keys if row.parts is None else [drive.base + part for part in row.parts]:
        assert refused_for(drive, script, call, key) == ["BROKEN", key, "string"], key
    assert drive.state() == before
    assert drive.call(script, call.keys, *call.words)[0] not in ("ARG", "BROKEN")


@ON_EACH
@each("script", scripts("'ARG'"))
def test_an_argument_out_of_its_range_is_refused(
    new_engine_drive: Callable[[], Drive], script: str
) -> None:
    """And nothing is changed; the call with its own arguments is taken, and so is the largest one."""
    drive, row = new_engine_drive(), REFUSALS[script]
    call = row.given(drive)
    calls = [call.but({number: bad}) for number, words in row.words.items() for bad in words]
    calls += row.calls(drive, call)
    for each_call, reply in zip(calls, refused_of(drive, script, *calls), strict=True):
        assert reply[0] == "ARG", each_call.words
    for taken in [call, *row.largest(drive, call)]:
        reply = drive.call(script, taken.keys, *taken.words)
        assert reply[0] not in ("ARG", "BROKEN"), taken.words


@pytest.mark.bad_input("time or host: clocks of clients a day off")
@ON_EACH
@each("script", scripts("clock.lua"))
def test_a_time_is_taken_in_tests_alone(new_engine_drive: Callable[[], Drive], script: str) -> None:
    """Otherwise it is refused, and so is one that is not a time; without one the server's counts."""
    drive = new_engine_drive()
    call = REFUSALS[script].given(drive)
    assert refused_of(drive, script, call.but({1: "x"}))[0][0] == "ARG"
    drive.redis.hdel(drive.keys.meta, "test")
    assert refused_of(drive, script, call)[0][0] == "ARG"
    assert drive.call(script, call.keys, *call.but({1: ""}).words)[0] not in ("ARG", "BROKEN")
