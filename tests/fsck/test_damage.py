"""Each kind of damage is found, repaired, and gone; nothing that could be read is lost."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Mapping
from typing import Any

import pytest

from qworker.client.queue import Queue
from qworker.client.relay import relay
from qworker.fsck.check import check
from qworker.fsck.damage import REMEDIES, Damage, DamageKind
from qworker.wire.envelope import Envelope
from qworker.wire.keys import QueueKeys
from tests.fsck.damage import DAMAGES, fill
from tests.lua.drive import NOW, Drive


@pytest.fixture
def drive(store_url: str, namespace: str, queue_name: str) -> Iterator[Drive]:
    """A queue that holds some of everything."""
    queue = Drive(store_url, namespace, queue_name)
    fill(queue)
    yield queue
    queue.close()


def checked(drive: Drive, *, repair: bool = False) -> list[Damage]:
    """Check the namespace; nothing was left unchecked."""
    namespace = drive.base.partition(":")[0]
    reports = list(check(drive.client, namespace, repair=repair))
    texts = [text for text in reports if isinstance(text, str)]
    assert not [
        text for text in texts if repair or not re.search("another type|without a name", text)
    ]
    return [damage for damage in reports if isinstance(damage, Damage)]


def bodies(state: Mapping[str, Any]) -> Counter[bytes]:
    """The bodies of all readable messages of what `Drive.state` has seen."""
    items: list[str] = []
    for part, value in state.items():
        if part == "dead" and isinstance(value, list):
            items += [entry.get("envelope", "") for entry in value]
        elif part.startswith("lease:") and isinstance(value, dict):
            items += value.values()
        elif part == "delayed" and isinstance(value, dict):
            items += value
        elif isinstance(value, list):
            items += [item for item in value if isinstance(item, str)]
    stored = [item.encode("utf-8", "surrogateescape") for item in items]
    return Counter(envelope.body for item in stored if (envelope := Envelope.parse(item)))


def test_results_are_no_damage(drive: Drive) -> None:
    """They expire by themselves, also after their queue was removed: it is not found again by them."""
    drive.redis.set(drive.keys.result("a"), "ok\n1", px=60_000)
    gone = QueueKeys(drive.namespace, "gone")
    drive.redis.set(gone.result("b"), "ok\n2", px=60_000)
    assert checked(drive, repair=True) == []
    assert drive.redis.exists(drive.keys.result("a"), gone.result("b")) == 2


def test_a_throttle_that_is_over_is_no_damage(drive: Drive) -> None:
    """Its key outlives its message, and a reaper prunes it minutes later."""
    drive.redis.hset(drive.keys.unique, "k", f"gone {NOW} for")
    assert checked(drive, repair=True) == []
    assert drive.redis.hexists(drive.keys.unique, "k")


def test_a_sound_queue_is_clean(drive: Drive) -> None:
    """What the scripts write is not damage, and a repair changes nothing."""
    assert checked(drive) == []
    before = drive.state()
    assert checked(drive, repair=True) == []
    assert drive.state() == before


@pytest.mark.parametrize("name", DAMAGES)
def test_damage_is_found_repaired_and_gone(drive: Drive, name: str) -> None:
    """A check changes nothing; after a repair the queue is clean and has every message."""
    do, kinds = DAMAGES[name]
    do(drive)
    before = drive.state()
    damage = checked(drive)
    assert [one.kind for one in damage if not one.repaired][: len(kinds)] == kinds
    assert drive.state() == before
    repaired = checked(drive, repair=True)
    # What only follows from other damage is gone with that.
    assert kinds[0] in {damage.kind for damage in repaired}
    assert all(damage.repaired for damage in repaired)
    assert checked(drive) == []
    assert set(bodies(drive.state())) >= set(bodies(before))


def test_every_kind_has_its_damage_and_its_remedy() -> None:
    """No kind without a way to cause it, and none without a repair but that of which `test_calls` says why."""
    caused = {kind for _, kinds in DAMAGES.values() for kind in kinds}
    assert caused == set(DamageKind) - {DamageKind.SHARED_ID}
    assert set(REMEDIES) == set(DamageKind)


def test_lost_runs_end_and_others_stay(drive: Drive) -> None:
    """Wherever their message is: parked, ready, delayed, received or dead. Those who wait for a lost one are told."""
    there = {"a1": 1, "b1": 1, "d1": 1, "e1": 1, "x1": 1}
    drive.redis.zadd(drive.keys.runs, {**there, "lost": 1})
    drive.redis.hset(drive.keys.run("lost"), "charge", "\n1")
    assert [damage.where for damage in checked(drive)] == ["run lost"]
    [repaired] = checked(drive, repair=True)
    assert (repaired.kind, repaired.repaired) == (DamageKind.RUN, True)
    assert drive.redis.zrange(drive.keys.runs, 0, -1) == sorted(name.encode() for name in there)
    assert drive.redis.get(drive.keys.result("lost")) == b"discarded"
    assert 0 < drive.redis.pttl(drive.keys.run("lost")) <= 86_400_000
    assert checked(drive) == []


def test_a_lost_outbox_is_relayed_again(drive: Drive) -> None:
    """After a repair its entries are stored, in order, as those of any other."""
    for number in (5, 6):
        entry = {"priority": 0, "delay": "", "ttl": "", "head": f"q1 m{number} ", "tail": "\nx"}
        drive.redis.xadd(drive.keys.outbox("other"), entry, id=f"{number}-0")
    checked(drive, repair=True)
    assert drive.client.run(relay(drive.namespace, drive.keys)) == {}
    other = QueueKeys(drive.namespace, "other")
    stored = [item.split()[1] for item in drive.redis.lrange(other.ready[0], 0, -1)]
    assert stored == [b"m5", b"m6"]
    assert drive.redis.xlen(drive.keys.outbox("other")) == 0


@pytest.mark.parametrize(
    ("stored", "problem"),
    [
        ("c=9 s={version}", "its share is 'c=9 s={version}', and 'c=1 s={version}' was allotted"),
        ("", "it has no share, so it runs without the limit"),
    ],
)
@pytest.mark.slow
def test_a_share_that_was_not_allotted_is_written_again(
    drive: Drive, stored: str, problem: str
) -> None:
    """Somebody gave a queue more of a limit over several queues, or took its share away."""
    queue = Queue(drive.client, drive.namespace, drive.keys.queue)
    queue.set_limit("api/", concurrency=2, with_queues=["other"])
    words = drive.redis.hget(drive.keys.limits, "api/").decode()
    version = words.partition("s=")[2]
    assert words == f"c=1 s={version}"
    assert checked(drive) == []
    if stored:
        drive.redis.hset(drive.keys.limits, "api/", stored.format(version=version))
    else:
        drive.redis.hdel(drive.keys.limits, "api/")
    (damage,) = checked(drive)
    assert (damage.queue, damage.kind, damage.where) == (queue.name, DamageKind.SHARE, "limit api/")
    assert damage.problem == problem.format(version=version)
    assert [each.repaired for each in checked(drive, repair=True)] == [True]
    assert checked(drive) == []
    shares = queue.shared_limits()["api/"].shares
    assert shares == {queue.name: (1, 0), "other": (1, 0)}
    assert drive.redis.hget(drive.keys.limits, "api/").startswith(b"c=1 s=")
