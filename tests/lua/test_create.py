"""create.lua: make a queue that is not there yet."""

from __future__ import annotations

import pytest

from qworker.engine.attributes import create
from qworker.errors import QueueExistsError
from tests.lua.drive import STANDARD_PARTS, Drive


def test_makes_a_queue_with_its_attributes(engine_drive: Drive) -> None:
    """A new queue has the attributes that differ from the defaults, and the server's time of its making."""
    drive = engine_drive
    drive.redis.delete(drive.keys.meta)
    made_ms = drive.run(create(drive.keys, {"maxlen": "5", "ttl_ms": ""}))
    assert drive.state() == {
        "meta": {"maxlen": "5", "created_ms": str(made_ms), "modified_ms": str(made_ms)}
    }
    seconds, _ = drive.redis.time()
    assert abs(made_ms / 1000 - seconds) < 60


@pytest.mark.parametrize("part", STANDARD_PARTS)
def test_a_queue_that_has_any_key_is_left_alone(drive: Drive, part: str) -> None:
    """A queue that is there is refused, whatever it has of itself."""
    drive.redis.delete(drive.keys.meta)
    drive.redis.set(drive.base + part, "x")
    with pytest.raises(QueueExistsError) as refused:
        drive.run(create(drive.keys, {"maxlen": "5"}))
    assert str(refused.value) == (
        f"queue {drive.keys.queue!r} exists already; nothing was changed "
        f"(qworker queue set {drive.keys.queue} changes its attributes)"
    )
    assert [
        key.decode() for key in drive.redis.scan_iter(match=drive.base + "*", count=1_000_000)
    ] == [drive.base + part]
