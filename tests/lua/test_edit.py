"""edit.lua: give a dead letter another body: a new entry at the end, then the old one goes."""

from __future__ import annotations

import pytest
from msgspec import structs

from qworker.engine.dead import edit
from qworker.errors import BodyTooLargeError, InvalidOptionError
from qworker.wire.ids import EntryId
from tests.lua.drive import NOW, Drive, own
from tests.lua.test_redrive import bury


def edited(
    drive: Drive, entry: str, body: bytes = b'{"b": 2}', flags: dict[str, str] | None = None
) -> str:
    """Edit an entry; the new entry id, or why there is none."""
    made = drive.run(edit(drive.keys, EntryId.parse(entry), body, flags, now_ms=NOW))
    return "gone" if made is None else str(made)


def test_a_dead_letter_gets_another_body(engine_drive: Drive) -> None:
    """The header and all other fields stay; the dead letter moves to the end, and names its previous entry."""
    drive = engine_drive
    item = own("a", 5, 4, 3, 2, 1, flags=" x=77 p=5 d=9")
    entry = drive.redis.xadd(
        drive.keys.dead,
        {"envelope": item, "reason": "rejected", "class": "E", "error": "e\n1", "died_ms": 7},
    ).decode()
    (other,) = bury(drive, own("b"))
    made = edited(drive, entry)
    again = edited(drive, made, b"[]")
    assert drive.redis.xrange(drive.keys.dead)[0][0].decode() == other
    assert drive.redis.xrange(drive.keys.dead)[1][0].decode() == again
    assert drive.state() == {
        "dead": [
            {"envelope": own("b"), "reason": "rejected"},
            {
                "envelope": item.partition("\n")[0] + "\n[]",
                "edited": made,
                "reason": "rejected",
                "class": "E",
                "error": "e\n1",
                "died_ms": "7",
            },
        ]
    }


def test_a_repeated_call_finds_its_result(drive: Drive) -> None:
    """The reply was lost and the call is repeated: the dead letter exists once, and its id is returned.

    A call with another body is an edit by another user, and is not reported as done.
    """
    (entry,) = bury(drive, own("a"))
    made = edited(drive, entry)
    before = drive.state()
    assert edited(drive, entry) == made
    assert edited(drive, entry, b"[]") == "gone"
    assert drive.state() == before
    bury(drive, *(own(f"m{number}") for number in range(15)))
    assert edited(drive, entry) == made
    bury(drive, own("last"))
    assert edited(drive, entry) == "gone"
    assert drive.state()["dead"][0] == before["dead"][0]


def test_what_is_not_there_or_foreign_is_left(drive: Drive) -> None:
    """Nothing is written for either."""
    entries = bury(drive, "hello", '{"a": 1}', "q1 broken\n")
    entries.append(drive.redis.xadd(drive.keys.dead, {"other": own("a")}).decode())
    before = drive.state()
    assert [edited(drive, entry) for entry in entries] == ["foreign"] * 4
    assert edited(drive, "5-5") == "gone"
    assert drive.state() == before


def test_an_entry_of_very_many_fields_keeps_the_first(drive: Drive) -> None:
    """Another program wrote it: the copy is bounded, and its envelope is kept wherever it stood."""
    fields = {f"f{number}": str(number) for number in range(5000)}
    entry = drive.redis.xadd(drive.keys.dead, {**fields, "envelope": own("a")}).decode()
    edited(drive, entry)
    (dead_letter,) = drive.state()["dead"]
    assert dead_letter.pop("envelope").endswith('\n{"b": 2}')
    assert dead_letter == {"edited": entry, **{f"f{number}": str(number) for number in range(32)}}


def test_a_body_over_maxsize_is_refused(drive: Drive) -> None:
    """As many bytes as the queue allows fit, one more does not."""
    drive.redis.hset(drive.keys.meta, "maxsize", "5")
    (entry,) = bury(drive, own("a"))
    with pytest.raises(BodyTooLargeError) as caught:
        edited(drive, entry, b"123456")
    assert (caught.value.size, caught.value.maxsize) == (6, 5)
    assert drive.state("dead")["dead"] == [{"envelope": own("a"), "reason": "rejected"}]
    assert edited(drive, entry, b"12345")


def test_what_protects_the_body_goes_with_it(drive: Drive) -> None:
    """The new body brings a codec and its own signature; those of the old one go, and so does its schedule."""
    before = own("a", 5, flags=" x=77 s=k.old e=a256gcm.k p=5 n=nightly d=9")
    (entry,) = bury(drive, before)
    made = edited(drive, entry, b"sealed", {"e": "a256gcm.new-1", "s": "k_2.mac~"})
    head = own("a", 5, flags=" x=77 p=5 d=9 e=a256gcm.new-1 s=k_2.mac~").partition("\n")[0]
    assert drive.state()["dead"][0]["envelope"] == head + "\nsealed"
    edited(drive, made, b"plain", {})
    head = own("a", 5, flags=" x=77 p=5 d=9").partition("\n")[0]
    assert drive.state()["dead"][0]["envelope"] == head + "\nplain"


@pytest.mark.parametrize("flags", ["x", " p=9", " s=a b", " s=", " s=a\nb", " e=a s=b "])
def test_other_flags_are_refused(drive: Drive, flags: str) -> None:
    """Only those of the body may be given, each with its value."""
    (entry,) = bury(drive, own("a"))
    before = drive.state()
    command = edit(drive.keys, EntryId.parse(entry), b"{}", {}, now_ms=NOW)
    wrong = structs.replace(command, args=(*command.args[:-1], flags))
    with pytest.raises(InvalidOptionError, match="argument flags"):
        drive.run(wrong)
    assert drive.state() == before
