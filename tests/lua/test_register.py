"""register.lua: a queue and its shards in the registry; of two that differ the later one stands."""

from __future__ import annotations

from typing import Any

import pytest

from qworker.client.commands.registering import register, registered
from qworker.errors import BrokenQueueError
from qworker.wire.keys import queues_key
from qworker.wire.shards import WHOLE, Shards
from tests.lua.drive import BAD_NUMBERS, Drive


def told(drive: Drive, shards: Shards = WHOLE) -> Any:
    """Tell the registry of queue `q` and return what stands there."""
    return drive.run(register(queues_key(drive.namespace), "q", shards))


def written(drive: Drive) -> dict[str, str]:
    """The registry as it is."""
    found = drive.redis.hgetall(queues_key(drive.namespace))
    return {name.decode(): value.decode() for name, value in found.items()}


def test_a_whole_queue_is_written_once(engine_drive: Drive) -> None:
    """As one number, and again is no change."""
    drive = engine_drive
    for _ in range(2):
        assert told(drive) == WHOLE
        assert written(drive) == {"q": "1"}


def test_shards_are_written_with_the_queue(engine_drive: Drive) -> None:
    """Each beside the first one has an entry of its own, by which reapers find it."""
    drive = engine_drive
    assert told(drive, Shards(2, 3, 4)) == Shards(2, 3, 4)
    assert written(drive) == {"q": "2 3 4", "q/1": "1", "q/2": "1"}


@pytest.mark.parametrize(
    ("stands", "brings", "after"),
    [
        ("2 3 4", Shards(), Shards(2, 3, 4)),  # who knows nothing learns
        ("2 3 4", Shards(5, 5, 3), Shards(2, 3, 4)),
        ("2 3 4", Shards(1, 1, 5), Shards(1, 1, 5)),
        ("2 3 4", Shards(1, 4, 4), Shards(2, 4, 4)),  # found by a reaper: it may hold messages
        ("1", Shards(1, 3, 0), Shards(1, 3, 0)),
        ("rubbish", Shards(), WHOLE),
        ("0 3 4", Shards(), WHOLE),
        ("2 3 99999999999999999999", Shards(), WHOLE),
        ("3", Shards(), Shards(3, 3, 0)),
    ],
)
def test_the_later_knowledge_stands(
    drive: Drive, stands: str, brings: Shards, after: Shards
) -> None:
    """By the epoch; of two alike the one that keeps more, for a shard too many costs nothing."""
    drive.redis.hset(queues_key(drive.namespace), "q", stands)
    assert told(drive, brings) == after
    assert Shards.parse(written(drive)["q"].encode()) == after
    assert drive.run(registered(queues_key(drive.namespace), "q")) == after
    assert drive.run(registered(queues_key(drive.namespace), "other")) == WHOLE


def test_bad_numbers_are_refused(drive: Drive) -> None:
    """Nothing is written."""
    key = queues_key(drive.namespace)
    bad = [each for each in BAD_NUMBERS if each != "1"]
    drive.assert_refused_argument(
        [
            *(lambda each=each: drive.call("register", (key,), "q", each, 2, 0) for each in bad),
            *(lambda each=each: drive.call("register", (key,), "q", 1, each, 0) for each in bad),
            *(lambda each=each: drive.call("register", (key,), "q", 1, 1, each) for each in bad),
            lambda: drive.call("register", (key,), "q", 65, 65, 0),
            lambda: drive.call("register", (key,), "q", 3, 2, 0),
        ]
    )
    assert written(drive) == {}


def test_a_registry_of_another_type_is_named(drive: Drive) -> None:
    """And left as it is."""
    key = queues_key(drive.namespace)
    drive.redis.set(key, "x")
    with pytest.raises(BrokenQueueError, match=key):
        told(drive)
    drive.redis.delete(key)
