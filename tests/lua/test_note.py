"""note.lua: what workers, reapers and operators note on a full server, within bounds."""

from __future__ import annotations

from typing import Any

import pytest

from qworker.engine.command import Command
from qworker.engine.note import keep_note
from qworker.engine.scripts import load_script
from qworker.errors import OutOfMemoryError, ServerError, server_refused
from tests.lua.drive import Drive
from tests.tables import each


def on_full(verb: str, key: str, *words: str | int | bytes) -> Command[Any]:
    """The command that a full server is asked."""
    command = keep_note(verb, key, *words).on_full
    assert command is not None
    return command


def test_names_of_a_hash_are_set_and_replaced(engine_drive: Drive) -> None:
    """Several at a time; the reply counts those that are new, as HSET does."""
    drive, key = engine_drive, f"{engine_drive.namespace}:notes"
    assert drive.run(on_full("HSET", key, "a", "1", "b", "2")) == 2
    assert drive.run(on_full("HSET", key, "b", "3", "c", "4")) == 1
    assert drive.redis.hgetall(key) == {b"a": b"1", b"b": b"3", b"c": b"4"}


def test_a_name_that_is_there_stays_with_hsetnx(engine_drive: Drive) -> None:
    """The first note of the name counts."""
    drive, key = engine_drive, f"{engine_drive.namespace}:notes"
    assert drive.run(on_full("HSETNX", key, "a", "1")) == 1
    assert drive.run(on_full("HSETNX", key, "a", "2")) == 0
    assert drive.redis.hgetall(key) == {b"a": b"1"}


def test_a_sorted_set_takes_names_and_times(engine_drive: Drive) -> None:
    """As ZADD does."""
    drive, key = engine_drive, f"{engine_drive.namespace}:notes"
    assert drive.run(on_full("ZADD", key, 1_795_717_814_805, "r")) == 1
    assert drive.run(on_full("ZADD", key, 1_795_717_814_806, "r")) == 0
    assert drive.redis.zrange(key, 0, -1, withscores=True) == [(b"r", 1_795_717_814_806)]


def test_a_list_keeps_its_latest_notes_and_expires(engine_drive: Drive) -> None:
    """The 64 latest, for 30 seconds after the last."""
    drive, key = engine_drive, f"{engine_drive.namespace}:notes"
    for number in range(66):
        drive.run(on_full("RPUSH", key, number))
    assert drive.redis.lrange(key, 0, -1) == [b"%d" % number for number in range(2, 66)]
    assert 29_000 < drive.redis.pttl(key) <= 30_000


@pytest.mark.bad_input("server: out of memory")
@each("verb", ["HSET", "HSETNX", "ZADD"])
def test_a_thousand_names_are_enough(drive: Drive, verb: str) -> None:
    """A full server takes no other, and still replaces those; the refusal says so, and writes nothing."""
    key = f"{drive.namespace}:{verb}"
    if verb == "ZADD":
        drive.redis.zadd(key, {f"n{number}": 1 for number in range(999)})
    else:
        drive.redis.hset(key, mapping={f"n{number}": 1 for number in range(999)})

    def words(name: str) -> tuple[str | int, ...]:
        return (2, name) if verb == "ZADD" else (name, 2)

    assert drive.run(on_full(verb, key, *words("n999"))) == 1
    with pytest.raises(OutOfMemoryError, match=r"has 1,000 names.*consume messages"):
        drive.run(on_full(verb, key, *words("n1000")))
    assert drive.run(on_full(verb, key, *words("n0"))) == 0
    size = drive.redis.zcard(key) if verb == "ZADD" else drive.redis.hlen(key)
    assert size == 1000


@each("number", [1, 2, 100])
def test_the_bound_holds_for_several_names_at_once(drive: Drive, number: int) -> None:
    """Those that fit are noted."""
    key = f"{drive.namespace}:{number}"
    drive.redis.hset(key, mapping={f"n{at}": 1 for at in range(1000 - number)})
    words = [word for at in range(number) for word in (f"new{at}", 1)]
    assert drive.run(on_full("HSET", key, *words)) == number
    with pytest.raises(OutOfMemoryError):
        drive.run(on_full("HSET", key, "n0", 1, "one more", 1))
    assert drive.redis.hlen(key) == 1000


@pytest.mark.bad_input("server: out of memory")
@each(
    "verb, words",
    [
        ("HSET", ("a", b"x" * 65_537)),
        ("HSET", ("a" * 513, 1)),
        ("HSET", [word for at in range(101) for word in (f"n{at}", 1)]),
        ("HSET", ("a",)),
        ("HSETNX", ("a", 1, "b", 1)),
        ("ZADD", (-1, "a")),
        ("ZADD", ("x", "a")),
        ("ZADD", (1, "a" * 513)),
        ("ZADD", (1, "a", 2, "b")),
        ("RPUSH", (b"x" * 65_537,)),
        ("RPUSH", (1, 2)),
        ("SET", ("x",)),
    ],
)
def test_larger_notes_are_refused(drive: Drive, verb: str, words: tuple[str | int, ...]) -> None:
    """And other commands; nothing is written."""
    key = f"{drive.namespace}:larger"
    with pytest.raises(OutOfMemoryError, match="larger than it takes"):
        drive.run(on_full(verb, key, *words))
    assert drive.redis.exists(key) == 0


@each("verb", ["HSET", "HSETNX", "ZADD", "RPUSH"])
def test_a_key_of_another_type_is_refused_as_by_the_plain_command(drive: Drive, verb: str) -> None:
    """With the same class of error: nothing of a pass depends on a note."""
    key = f"{drive.namespace}:{verb}:broken"
    drive.redis.set(key, "x")
    words: tuple[str | int, ...] = (1,) if verb == "RPUSH" else (1, 1)
    for command in (keep_note(verb, key, *words), on_full(verb, key, *words)):
        with pytest.raises(ServerError) as caught:
            drive.run(command)
        assert server_refused(caught.value)
    assert drive.redis.get(key) == b"x"


def test_the_script_takes_what_the_largest_note_needs(drive: Drive) -> None:
    """The bounds themselves are allowed."""
    key = f"{drive.namespace}:notes"
    assert drive.run(on_full("HSET", key, "a" * 512, b"x" * 65_536)) == 1
    assert drive.run(on_full("RPUSH", f"{key}:l", b"x" * 65_536)) == 1
    assert load_script("note").roles == {"consumer", "daemon", "operator"}
