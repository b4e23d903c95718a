"""retire.lua: the totals of a shard that is given up."""

from __future__ import annotations

from qworker.client.commands.sharding import retire
from tests.lua.drive import Drive

TOTALS = {"sent": "12", "acked": "11", "dead:rejected": "1", "gaps": "2"}
STATE = {
    "stored": "3",
    "unacked": "1",
    "reaped_ms": "1700000000000",
    "gap_from_ms": "5",
    "journal_events": "40",
    "stale": "0",
    "nacked": "many",
    "released": "-1",
}


def test_totals_are_taken_once_and_the_rest_stays(engine_drive: Drive) -> None:
    """What a shard holds, when it was looked at and the numbers of its journal are not added up."""
    drive = engine_drive
    drive.redis.hset(drive.keys.meta, "shard", "draining 1 7")
    drive.redis.hset(drive.keys.stats, mapping={**TOTALS, **STATE})
    assert drive.run(retire(drive.keys)) == {name: int(total) for name, total in TOTALS.items()}
    left = drive.redis.hgetall(drive.keys.stats)
    assert {name.decode(): value.decode() for name, value in left.items()} == STATE
    assert drive.run(retire(drive.keys)) == {}


def test_a_shard_that_is_in_use_keeps_them(drive: Drive) -> None:
    """It was divided again meanwhile."""
    drive.send("a")
    assert drive.run(retire(drive.keys)) == {}
    assert drive.stats("sent") == {"sent": 1}


def test_key_of_another_type_refuses(drive: Drive) -> None:
    """A key that holds something else is named."""
    drive.send("a")
    drive.assert_broken(
        ["meta", "stats"], lambda: drive.call("retire", [drive.keys.meta, drive.keys.stats])
    )
