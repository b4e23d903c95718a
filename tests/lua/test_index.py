"""names.lua, present.lua and announcing: the index of queues, into which others may write what they like."""

from __future__ import annotations

import pytest

from qworker.engine.index import announce, names, present, withdraw
from qworker.errors import BrokenQueueError
from qworker.wire.keys import QueueKeys, queues_key
from qworker.wire.shards import WHOLE, Shards
from tests.lua.drive import Drive


def test_only_names_come_from_the_server(engine_drive: Drive) -> None:
    """Nothing else that stands there, however large; it is counted."""
    drive = engine_drive
    drive.run(announce(drive.namespace, ["q", "q/1", "a.b-c_d", "z" * 64 + "/63"]))
    index = queues_key(drive.namespace)
    for other in ("Q", "q\n", "q/x", "", "$(rm)", "z" * 65 + "/63", b"\xff", "-a", "x" * 100_000):
        drive.redis.hset(index, other, "x" * 1000)
    page = drive.run(names(drive.namespace))
    assert (page.cursor, page.others) == ("0", 9)
    assert sorted(page.names) == ["a.b-c_d", "q", "q/1", "z" * 64 + "/63"]


def test_a_large_index_comes_in_pages(drive: Drive) -> None:
    """Each name at least once."""
    wanted = {f"q{number}" for number in range(3000)}
    drive.run(announce(drive.namespace, wanted))
    read, cursor, pages = set[str](), "0", 0
    while True:
        page = drive.run(names(drive.namespace, cursor, 500))
        assert len(page.names) < 1500
        read |= set(page.names)
        cursor, pages = page.cursor, pages + 1
        if cursor == "0":
            break
    assert read == wanted
    assert pages > 2
    assert drive.run(withdraw(drive.namespace, ["q1", "q2", "nothing"])) == 2


def test_another_type_is_named(drive: Drive) -> None:
    """With the key and what it holds."""
    drive.redis.set(queues_key(drive.namespace), "x")
    with pytest.raises(BrokenQueueError, match="queues"):
        drive.run(names(drive.namespace))


@pytest.mark.parametrize(
    "part",
    [
        "meta",
        "stats",
        "ready",
        "suspect",
        "delayed",
        "unacked",
        "dead",
        "schedules",
        "journal",
        "producers",
        "unique",
    ],
)
def test_a_queue_is_there_by_any_of_its_keys(drive: Drive, part: str) -> None:
    """Of whatever type; one without is not."""
    drive.redis.delete(drive.keys.meta)
    other = QueueKeys(drive.namespace, "other")
    assert drive.run(present([drive.keys, other])) == [None, None]
    drive.redis.set(drive.base + part, "x")
    assert drive.run(present([drive.keys, other])) == [WHOLE, None]


def test_it_says_how_queues_are_divided(drive: Drive) -> None:
    """As they say themselves; nonsense is whole."""
    drive.redis.hset(drive.keys.meta, "shards", "2 3 7")
    assert drive.run(present([drive.keys])) == [Shards(2, 3, 7)]
    drive.redis.hset(drive.keys.meta, "shards", "many")
    assert drive.run(present([drive.keys])) == [WHOLE]
