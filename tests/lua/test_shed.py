"""shed.lua: stop writing the journals of queues, or continue."""

from __future__ import annotations

import pytest

from qworker.engine.reap import shed
from tests.lua.drive import NOW, Drive


@pytest.mark.parametrize("mode", ["outcomes", "all"])
def test_a_journal_is_shed_once_and_taken_up_again(engine_drive: Drive, mode: str) -> None:
    """The attribute comes and goes; a second call changes nothing and says so."""
    drive = engine_drive
    drive.redis.hset(drive.keys.meta, "journal", mode)
    for on, changed in ((True, 1), (True, 0), (False, 1), (False, 0)):
        assert drive.run(shed([drive.keys], on=on, now_ms=NOW)) == changed
        assert drive.state() == {
            "meta": {"journal": mode, **({"journal_shed": "1"} if on else {})},
        }


@pytest.mark.parametrize("attributes", [{}, {"journal": "off"}, {"journal": "1"}])
def test_a_queue_without_a_journal_is_left_alone(drive: Drive, attributes: dict[str, str]) -> None:
    """Nothing is written where nothing is journalled; what was shed before the journal went off is taken back."""
    if attributes:
        drive.redis.hset(drive.keys.meta, mapping=attributes)
    before = drive.state()
    assert drive.run(shed([drive.keys], on=True, now_ms=NOW)) == 0
    assert drive.state() == before
    drive.redis.hset(drive.keys.meta, "journal_shed", "1")
    assert drive.run(shed([drive.keys], on=False, now_ms=NOW)) == 1
    assert drive.state() == before


def test_a_key_of_another_type_does_not_keep_the_others(drive: Drive) -> None:
    """Of several queues those that can be shed are; one that another program has broken stays as it is."""
    drive.redis.hset(drive.keys.meta, "journal", "all")
    broken = f"{drive.base}other"
    drive.redis.set(broken, "not ours")
    reply = drive.call("shed", [drive.keys.meta, broken], NOW, 1)
    assert reply == ["OK", str(NOW), 1]
    assert drive.redis.get(broken) == b"not ours"
    assert drive.state("meta") == {"meta": {"journal": "all", "journal_shed": "1"}}
