"""Each kind of damage is found, repaired, and gone; nothing that could be read is lost."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator

import pytest

from qworker.fsck.check import check
from qworker.fsck.finding import REMEDIES, Finding, Kind
from qworker.wire.envelope import Envelope
from tests.fsck.damage import DAMAGES, fill
from tests.lua.drive import Drive


@pytest.fixture
def drive(store_url: str, namespace: str, queue_name: str) -> Iterator[Drive]:
    """A queue that holds some of everything."""
    queue = Drive(store_url, namespace, queue_name)
    fill(queue)
    yield queue
    queue.close()


def looked(drive: Drive, *, repair: bool = False) -> list[Finding]:
    """Check the namespace; nothing was left unchecked."""
    namespace = drive.base.partition(":")[0]
    found = list(check(drive.client, namespace, repair=repair))
    texts = [each for each in found if isinstance(each, str)]
    assert not [each for each in texts if repair or not re.search("another type|has no name", each)]
    return [each for each in found if isinstance(each, Finding)]


def bodies(drive: Drive) -> Counter[bytes]:
    """The bodies of all messages that can be read, wherever they stand."""
    items: list[bytes] = []
    for name in drive.redis.scan_iter(match=drive.base + "*", count=1000):
        part, kind = name.decode().removeprefix(drive.base), drive.redis.type(name)
        if kind == b"list":
            items += drive.redis.lrange(name, 0, -1)
        elif kind == b"zset" and part == "delayed":
            items += drive.redis.zrange(name, 0, -1)
        elif kind == b"hash" and part.startswith("lease:"):
            items += drive.held(name).values()
        elif kind == b"stream" and part == "dead":
            items += [fields.get(b"envelope", b"") for _, fields in drive.redis.xrange(name)]
    return Counter(envelope.body for item in items if (envelope := Envelope.parse(item)))


def test_a_sound_queue_is_clean(drive: Drive) -> None:
    """No finding where the scripts wrote everything, and a repair changes nothing."""
    assert looked(drive) == []
    before = drive.state()
    assert looked(drive, repair=True) == []
    assert drive.state() == before


@pytest.mark.parametrize("name", DAMAGES)
def test_damage_is_found_repaired_and_gone(drive: Drive, name: str) -> None:
    """A look changes nothing; a repair mends, and after it the queue is clean with every message in it."""
    do, kinds = DAMAGES[name]
    do(drive)
    before, known = drive.state(), set(bodies(drive))
    found = looked(drive)
    assert [each.kind for each in found if not each.repaired][: len(kinds)] == kinds
    assert drive.state() == before
    repaired = looked(drive, repair=True)
    # What only follows from other damage is gone with that.
    assert kinds[0] in {each.kind for each in repaired}
    assert all(each.repaired for each in repaired)
    assert looked(drive) == []
    assert set(bodies(drive)) >= known


def test_every_kind_has_its_damage_and_its_remedy() -> None:
    """A kind that nobody can cause, or that has no repair, is none."""
    assert {kind for _, kinds in DAMAGES.values() for kind in kinds} == set(Kind)
    assert set(REMEDIES) == set(Kind)
