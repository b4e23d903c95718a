"""Random damage to a queue in a random state: a repair makes the queue sound and keeps all readable messages."""

from __future__ import annotations

import uuid
from collections import Counter

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from qworker.engine.settle import Outcomes
from qworker.wire.envelope import Envelope
from tests.effort import examples
from tests.fsck.test_damage import bodies, checked
from tests.lua.drive import READY_PARTS, Drive, own

PARTS = [*READY_PARTS, "suspect", "delayed", "unacked", "dead", "meta", "stats", "unique"]
PLACES = [READY_PARTS[0], READY_PARTS[5], "suspect", "delayed", "lease:L-1", "lease:gone", "dead"]

numbers = st.integers(0, 11)
items = st.one_of(
    st.binary(max_size=40),
    st.builds(lambda n: own(f"m{n}").encode(), numbers),
    st.builds(lambda n: own(f"m{n}", body="another").encode(), numbers),
    st.builds(lambda n: own(f"m{n}", receives=3, flags=" p=5").encode(), numbers),
    st.sampled_from([b"q1 ", b"q1 a 1 1 1 1 9999999\nx", b"q2 a\nx", b"{}", b"[1]", b""]),
)
steps = st.one_of(
    st.tuples(
        st.just("send"), numbers, st.sampled_from([0, 0, 3_600_000]), st.sampled_from([0, 5])
    ),
    st.tuples(st.just("receive"), st.integers(1, 3)),
    st.tuples(st.just("settle"), st.sampled_from(["ack", "nack", "bury"])),
)
scores = st.floats(allow_nan=False)
harms = st.one_of(
    st.tuples(st.just("put"), st.sampled_from(PLACES), items, scores),
    st.tuples(st.just("copy"), st.sampled_from(PLACES), st.sampled_from(PLACES)),
    st.tuples(st.just("expire"), st.sampled_from(PARTS)),
    st.tuples(st.just("deadline"), st.sampled_from([b"L-1", b"L-2", b"x", b"\xff y"]), scores),
    st.tuples(st.just("forget"), st.sampled_from([b"L-1", b"L-2"])),
    st.tuples(
        st.just("count"),
        st.sampled_from(["stored", "unacked", "sent", "journal_entries", "journal_events"]),
        st.sampled_from(["0", "-9", "77", "x", "1e3", ""]),
    ),
    st.tuples(st.just("string"), st.sampled_from(["ready:3", "wake", "cancelled", "lease:L-7"])),
    st.tuples(st.just("unique"), st.sampled_from(["m1 9999999999999", "?", ""])),
)


def _live(drive: Drive, steps_: list[tuple[object, ...]]) -> None:
    """Run the steps with the scripts."""
    drive.redis.hset(drive.keys.meta, "journal", "all")
    leases: list[str] = []
    names = set()
    for number, step in enumerate(steps_):
        match step:
            case ("send", name, delay_ms, priority) if name not in names:
                names.add(name)
                drive.send(f"m{name}", at=None, delay_ms=delay_ms, priority=priority)
            case ("receive", int(count)):
                leases.append(f"L-{number % 3}-{number}" if number else "L-1")
                drive.receive(leases[-1], count, at=None)
            case ("settle", kind) if leases:
                outcomes = Outcomes(leases[-1])
                if kind == "ack":
                    outcomes.acks.append(0)
                elif kind == "nack":
                    outcomes.nack(0, 0)
                else:
                    outcomes.bury(0, "rejected")
                drive.settle(outcomes, at=None)


def _put(drive: Drive, part: str, item: bytes, score: float) -> None:
    key, kind = drive.base + part, drive.redis.type(drive.base + part)
    if part.startswith("lease:") and kind in (b"hash", b"none"):
        drive.redis.hset(key, "9", item)
    elif part == "delayed" and kind in (b"zset", b"none"):
        drive.redis.zadd(key, {item: score})
    elif part == "dead" and kind in (b"stream", b"none"):
        drive.redis.xadd(key, {"envelope" if item else "text": item, "reason": "rejected"})
    elif kind in (b"list", b"none"):
        drive.redis.rpush(key, item)


def _first(drive: Drive, part: str) -> bytes | None:
    key, kind = drive.base + part, drive.redis.type(drive.base + part)
    if kind == b"list":
        return drive.redis.lindex(key, 0)
    if kind == b"zset":
        return next(iter(drive.redis.zrange(key, 0, 0)), None)
    if kind == b"hash":
        return next(iter(drive.held(key).values()), None)
    return None


def _harm(drive: Drive, harm: tuple[object, ...]) -> None:
    match harm:
        case ("put", str(part), bytes(item), float(score)):
            _put(drive, part, item, score)
        case ("copy", str(source), str(target)):
            item = _first(drive, source)
            if item is not None:
                _put(drive, target, item, 1e12)
        case ("expire", str(part)):
            drive.redis.expire(drive.base + part, 10_000)
        case ("deadline", bytes(lease), float(score)):
            drive.redis.zadd(drive.keys.unacked, {lease: score})
        case ("forget", bytes(lease)):
            drive.redis.zrem(drive.keys.unacked, lease)
        case ("count", str(name), str(value)):
            drive.redis.hset(drive.keys.stats, name, value)
        case ("string", str(part)):
            # Overwriting a key would lose its content.
            drive.redis.set(drive.base + part, "x", nx=True)
        case ("unique", str(value)):
            drive.redis.hset(drive.keys.unique, "k", value)


def _invariants(drive: Drive) -> None:
    """Each id is in one place, every lease has a deadline, and the counters are right."""
    state = drive.state()
    leases = {part: value for part, value in state.items() if part.startswith("lease:")}
    waiting = [*state.get("suspect", []), *state.get("delayed", {})]
    ready = [item for part in READY_PARTS for item in state.get(part, [])]
    held = [item for lease in leases.values() for item in lease.values()]
    dead = [entry["envelope"] for entry in state.get("dead", [])]
    ids = Counter(
        envelope.id
        for item in [*waiting, *ready, *held, *dead]
        if (envelope := Envelope.parse(item.encode("utf-8", "surrogateescape")))
    )
    assert [name for name, number in ids.items() if number > 1] == []
    assert {f"lease:{name}" for name in state.get("unacked", {})} == set(leases)
    assert drive.stats().get("unacked", 0) == len(held)
    least = len(held) + len(waiting)
    assert least <= drive.stats().get("stored", 0) <= least + len(ready)
    levels = state.get("meta", {}).get("levels", "")
    assert all(level in levels for level in "123456789" if state.get(f"ready:{level}"))


@pytest.mark.slow
@pytest.mark.bad_input("data found: a message in two places")
@pytest.mark.parametrize(
    "number",
    [
        25,
        pytest.param(
            100,
            marks=pytest.mark.nightly("test_repaired_damage_is_gone_and_nothing_readable_with_it"),
        ),
    ],
)
def test_repaired_damage_is_gone_and_nothing_readable_with_it(store_url: str, number: int) -> None:
    """Whatever the damage, one repair makes the queue sound and keeps every readable body."""

    @settings(
        max_examples=examples(number), deadline=None, suppress_health_check=[HealthCheck.too_slow]
    )
    @given(steps_=st.lists(steps, max_size=12), harms_=st.lists(harms, min_size=1, max_size=8))
    def repair(steps_: list[tuple[object, ...]], harms_: list[tuple[object, ...]]) -> None:
        drive = Drive(store_url, f"t{uuid.uuid4().hex[:12]}", "q")
        try:
            drive.redis.hdel(drive.keys.meta, "test")
            _live(drive, steps_)
            for harm in harms_:
                _harm(drive, harm)
            known = bodies(drive.state())
            checked(drive, repair=True)
            assert set(bodies(drive.state())) >= set(known)
            _invariants(drive)
            assert checked(drive) == []
        finally:
            drive.close()

    repair()
