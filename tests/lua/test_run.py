"""Recorded steps of runs: step.lua, recall.lua, and how the end of a message ends its run."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from qworker.engine.effects import result_effect
from qworker.engine.message import delete, enqueue
from qworker.engine.options import SendOptions
from qworker.engine.reap import promote, trim
from qworker.engine.remove import purge
from qworker.engine.run import (
    LoopPosition,
    Recalled,
    StepRecord,
    inspect_runs,
    keep_position,
    recall_steps,
    record_step,
    signal_run,
    start_run,
)
from qworker.engine.send import NewMessage
from qworker.engine.settle import Outcomes
from qworker.errors import AccessDeniedError, LeaseLostError, RunEndedError, RunTooLargeError
from qworker.wire.envelope import tail
from tests.lua.drive import NOW, Drive, deny, guarded, own
from tests.lua.test_reap import reaped

KEEP_MS = 60_000
FLAGS = {"r": str(KEEP_MS), "c": "1"}
HEADER = f" r={KEEP_MS} c=1"


def received(drive: Drive, *ids: str, lease: str = "L", **options: Any) -> Outcomes:
    """Send runs and receive them into a lease."""
    drive.send(*ids, **{"flags": dict(FLAGS), **options})
    drive.receive(lease, 1000)
    return Outcomes(lease)


def recorded(
    drive: Drive, name: str = "charge", value: bytes = b"\n1", *, at: int = NOW, **more: Any
) -> bytes:
    """Record a step of the run `a`, held as index 0 of the lease L unless `more` says otherwise."""
    step = StepRecord(
        **{"message_id": "a", "lease_id": "L", "index": "0", "name": name, "value": value, **more}
    )
    counts: bytes = drive.run(record_step(drive.keys, step, now_ms=at))
    return _untimed(counts)


def _untimed(value: bytes) -> bytes:
    """A value without the time at which it was recorded."""
    return value[max(value.find(b"\n"), 0) :]


def recalled(drive: Drive, *names: str) -> Recalled:
    """Recall steps of the run `a`."""
    found: Recalled = drive.run(recall_steps(drive.keys, "a", names))
    return found


def test_a_step_is_recorded_once(engine_drive: Drive) -> None:
    """The first value stays, and the second writer gets it."""
    drive = engine_drive
    received(drive, "a")
    assert recorded(drive) == b"\n1"
    assert recorded(drive, value=b"\n2", at=NOW + 5) == b"\n1"
    assert recorded(drive, "ship", b"\n3") == b"\n3"
    assert drive.state("run:a", "runs", "lease:L") == {
        "run:a": {"@bytes": "14", "charge": f" t={NOW}\n1", "ship": f" t={NOW}\n3"},
        "runs": {"a": NOW},
        "lease:L": {"0": own("a", flags=HEADER)},
    }
    assert drive.redis.pttl(drive.keys.run("a")) == -1


@pytest.mark.parametrize("lease", ["L", "gone"])
def test_a_delivery_that_lost_its_lease_records_nothing(drive: Drive, lease: str) -> None:
    """Its lease was reaped and another consumer has the run, or its message was settled."""
    received(drive, "a")
    if lease == "L":
        reaped(drive, "L", at=NOW + 30_000)
        drive.receive("M", at=NOW + 30_001)
    before = drive.state()
    with pytest.raises(LeaseLostError, match="has lost its lease"):
        recorded(drive, lease_id=lease, at=NOW + 30_002)
    assert drive.state() == before
    if lease == "L":
        assert recorded(drive, lease_id="M", at=NOW + 30_003) == b"\n1"


def test_a_message_of_a_batch_records_for_itself(drive: Drive) -> None:
    """The others of its lease stay in it, and one that was settled records nothing."""
    outcomes = received(drive, "a", "b", "c")
    assert recorded(drive, index="1") == b"\n1"
    outcomes.acks = [1]
    drive.settle(outcomes)
    with pytest.raises(LeaseLostError):
        recorded(drive, "ship", index="1")
    for index in ("4", "", "batch", "x"):
        with pytest.raises(LeaseLostError):
            recorded(drive, "ship", index=index)
    assert drive.state("lease:L") == {
        "lease:L": {"2": own("b", flags=HEADER), "3": own("c", flags=HEADER)}
    }


def test_progress_resets_failures(drive: Drive) -> None:
    """A run that failed, and records a step, begins anew: only failures since then count."""
    outcomes = received(drive, "a")
    outcomes.nack(0, 0, max_receives=2)
    drive.settle(outcomes)
    drive.receive("M")
    recorded(drive, lease_id="M", progress=True)
    outcomes = Outcomes("M")
    outcomes.nack(0, 0, max_receives=2)
    drive.settle(outcomes)
    assert drive.state("ready") == {
        "ready": [own("a", receives=2, nacks=1, flags=f"{HEADER} m=2", ready_ms=NOW)]
    }


def test_a_repeated_step_resets_nothing(drive: Drive) -> None:
    """A step that was recorded before is no progress."""
    outcomes = received(drive, "a")
    recorded(drive)
    outcomes.nack(0, 0)
    drive.settle(outcomes)
    drive.receive("M")
    recorded(drive, lease_id="M", progress=True)
    assert drive.state("lease:M")["lease:M"]["0"].startswith(f"q1 a {NOW} 1 1 0 0")


def test_a_message_that_was_not_sent_as_a_run_becomes_one(drive: Drive) -> None:
    """That of a schedule, or of another program: its first step marks it, and its end ends the run."""
    drive.redis.rpush(drive.keys.ready[0], '{"task": "t"}')
    drive.receive("L")
    recorded(drive, message_id="L.0", keep_ms=5000)
    assert drive.state("lease:L") == {
        "lease:L": {"0": own("L.0", flags=" c=1 r=5000", body='{"task": "t"}')}
    }
    outcomes = Outcomes("L")
    outcomes.ack_with(0, [result_effect(b"ok\n1", 5000)])
    drive.settle(outcomes)
    assert 0 < drive.redis.pttl(drive.keys.run("L.0")) <= 5000


def test_a_step_of_another_message_is_refused(drive: Drive) -> None:
    """An index that is another message's, where its item is written again."""
    received(drive, "a", "b")
    before = drive.state("run:a", "runs", "ready")
    reply = drive.call("step", _keys(drive), NOW, "a", "2", "", "1", "charge", "1")
    assert reply == ["ARG", "message id"]
    assert drive.state("run:a", "runs", "ready") == before


def test_a_run_is_bounded(drive: Drive) -> None:
    """64 MiB in all; nothing of a step that exceeds it is recorded."""
    received(drive, "a")
    recorded(drive)
    drive.redis.hset(drive.keys.run("a"), "@bytes", 64 * 2**20 - 10)
    assert recorded(drive, "n", b"12345678") == b"12345678"
    with pytest.raises(RunTooLargeError, match="67,108,866 bytes"):
        recorded(drive, "n2", b"1")
    assert drive.redis.hget(drive.keys.run("a"), "n2") is None


def _keys(drive: Drive) -> list[str]:
    return [drive.keys.meta, drive.keys.runs, drive.keys.run("a"), drive.keys.lease("L")]


# -- loops ----------------------------------------------------------------------------------------


def kept(
    drive: Drive, done: int, value: bytes = b"\nv", *steps: str, at: int = NOW, **more: Any
) -> int:
    """Keep the position of the loop `rows` of the run `a`, held as index 0 of the lease L."""
    position = LoopPosition(
        **{
            "message_id": "a", "lease_id": "L", "index": "0", "loop": "*rows", "done": done,
            "value": value, "steps": steps, **more,
        }
    )  # fmt: skip
    counts: int = drive.run(keep_position(drive.keys, position, now_ms=at))
    return counts


def test_a_position_is_kept_in_place_of_the_one_before(engine_drive: Drive) -> None:
    """It never moves back: a call that comes late changes nothing."""
    drive = engine_drive
    received(drive, "a")
    assert kept(drive, 0) == 0
    assert kept(drive, 100, b"\nvalue", at=NOW + 5) == 100
    expected = {
        "run:a": {"@bytes": "11", "*rows": f" t={NOW + 5} d=100\nvalue"},
        "runs": {"a": NOW},
        "lease:L": {"0": own("a", flags=HEADER)},
    }
    assert drive.state("run:a", "runs", "lease:L") == expected
    assert kept(drive, 99, at=NOW + 6) == 100
    assert drive.state("run:a", "runs", "lease:L") == expected
    assert kept(drive, 100, b"\nw", at=NOW + 7) == 100
    assert drive.state("run:a")["run:a"] == {"@bytes": "7", "*rows": f" t={NOW + 7} d=100\nw"}


def test_steps_of_items_that_are_done_are_forgotten(drive: Drive) -> None:
    """Those that are named, with the size that they took."""
    received(drive, "a")
    recorded(drive, "rows[0].charge", b"\n12345")
    recorded(drive, "charge", b"\n1")
    uncounted = {"~rows[0].sleep": str(NOW), "!rows[0].gather#1": f" t={NOW}\n1"}
    drive.redis.hset(drive.keys.run("a"), mapping=uncounted)
    kept(drive, 1, b"\nv", "rows[0].charge", *uncounted, "rows[0].none")
    assert drive.state("run:a")["run:a"] == {
        "@bytes": str(len("charge") + 2 + len("*rows") + 2),
        "*rows": f" t={NOW} d=1\nv",
        "charge": f" t={NOW}\n1",
    }


@pytest.mark.parametrize("lease", ["L", "gone"])
def test_a_delivery_that_lost_its_lease_keeps_no_position(drive: Drive, lease: str) -> None:
    """A zombie moves the position neither on nor back."""
    received(drive, "a")
    kept(drive, 5)
    reaped(drive, "L", at=NOW + 30_000)
    drive.receive("M", at=NOW + 30_001)
    kept(drive, 7, lease_id="M", at=NOW + 30_002)
    before = drive.state()
    for done in (6, 8):
        with pytest.raises(LeaseLostError, match="has lost its lease"):
            kept(drive, done, lease_id=lease, at=NOW + 30_003)
    assert drive.state() == before


def test_only_a_position_that_moves_resets_failures(drive: Drive) -> None:
    """Otherwise a run that always fails at one item would be tried for ever."""
    outcomes = received(drive, "a")
    kept(drive, 5)
    outcomes.nack(0, 0)
    drive.settle(outcomes)
    drive.receive("M")
    kept(drive, 5, lease_id="M", progress=True)
    assert drive.state("lease:M")["lease:M"]["0"].startswith(f"q1 a {NOW} 1 1 0 0")
    kept(drive, 6, lease_id="M", progress=True)
    assert drive.state("lease:M")["lease:M"]["0"].startswith(f"q1 a {NOW} 1 0 0 0")
    reaped(drive, "M", at=NOW + 30_000)
    drive.receive("N", at=NOW + 30_001)
    assert drive.state("lease:N")["lease:N"]["0"].startswith(f"q1 a {NOW} 2 0 1 0")
    kept(drive, 7, lease_id="N", progress=True, at=NOW + 30_002)
    assert drive.state("lease:N")["lease:N"]["0"].startswith(f"q1 a {NOW} 2 0 0 0")


def test_a_position_makes_a_message_a_run(drive: Drive) -> None:
    """That of a schedule, or of another program, as its first step does; another message's index is refused."""
    drive.redis.rpush(drive.keys.ready[0], '{"task": "t"}')
    drive.receive("L")
    before = drive.state()
    reply = drive.call("position", _keys(drive), NOW, "a", "0", 5000, "", "*rows", 1, "v")
    assert reply == ["ARG", "message id"]
    assert drive.state() == before
    kept(drive, 1, message_id="L.0", keep_ms=5000)
    assert drive.state("lease:L") == {
        "lease:L": {"0": own("L.0", flags=" c=1 r=5000", body='{"task": "t"}')}
    }


def test_a_position_is_part_of_the_size_of_a_run(drive: Drive) -> None:
    """64 MiB in all."""
    received(drive, "a")
    kept(drive, 1)
    drive.redis.hset(drive.keys.run("a"), "@bytes", 64 * 2**20 - 1)
    kept(drive, 2, b"\nvx")
    with pytest.raises(RunTooLargeError, match="67,108,865 bytes"):
        kept(drive, 3, b"\nvxy")


# -- reading --------------------------------------------------------------------------------------


def test_a_short_run_is_read_at_once(drive: Drive) -> None:
    """Whatever was asked for; an unknown run has no steps."""
    assert recalled(drive, "charge") == Recalled({}, whole=True)
    received(drive, "a")
    recorded(drive)
    recorded(drive, "ship", b"\n2")
    found = recalled(drive, "x")
    assert found.whole
    assert (found.values["charge"], found.values["ship"]) == (b" t=%d\n1" % NOW, b" t=%d\n2" % NOW)


def test_a_long_run_is_read_by_name(drive: Drive) -> None:
    """Of more than 128 fields what is asked for, and None for what is not recorded."""
    key = drive.keys.run("a")
    drive.redis.hset(key, mapping={"@bytes": 1, **{f"n#{i}": f"\n{i}" for i in range(200)}})
    assert recalled(drive, "n#7", "n#200") == Recalled({"n#7": b"\n7", "n#200": None}, whole=False)


def test_a_run_of_large_steps_is_read_in_parts(drive: Drive) -> None:
    """A call ends after 256 KiB, and reads at least the step that is needed."""
    key = drive.keys.run("a")
    big = "\n" + "v" * 200_000
    drive.redis.hset(key, mapping={"@bytes": 600_000, "n": big, "n#2": big, "n#3": big})
    found = recalled(drive, "n", "n#2", "n#3")
    assert ([*found.values], found.whole) == (["n", "n#2"], False)


# -- sleeping and waiting -------------------------------------------------------------------------


def parked(
    drive: Drive, name: str = "~sleep", signal: str = "", *, at: int = NOW, lease: str = "L"
) -> None:
    """The run in a lease sleeps for a second, or waits for a signal."""
    outcomes = Outcomes(lease)
    outcomes.park(0, 1000, name, signal)
    drive.settle(outcomes, at=at)


def signalled(
    drive: Drive, value: bytes = b"\n1", *, name: str = "!go", at: int = NOW + 5, **more: Any
) -> Any:
    """Give the run `a` a signal."""
    counts = drive.run(signal_run(drive.keys, "a", name, value, now_ms=at, **more))
    return None if counts is None else _untimed(counts)


def test_a_parked_run_is_delayed_and_not_blamed(engine_drive: Drive) -> None:
    """It has left its lease, and comes back when it is due."""
    drive = engine_drive
    received(drive, "a")
    parked(drive)
    item = own("a", receives=1, flags=HEADER, ready_ms=NOW + 1000)
    assert drive.state("lease:L", "unacked", "delayed", "run:a", "runs") == {
        "delayed": {item: NOW + 1000},
        "run:a": {"~sleep": str(NOW + 1000), "@parked": "~sleep", "@since": str(NOW)},
        "runs": {"a": NOW},
    }
    assert drive.stats("parked", "nacked", "timeouts", "unacked", "stored") == {
        "parked": 1, "unacked": 0, "stored": 1,
    }  # fmt: skip


def test_a_look_tells_what_a_run_waits_for(engine_drive: Drive) -> None:
    """And since when: of a wait that is interrupted, since it began. Of one that does not wait only its size."""
    drive = engine_drive
    for message_id in "abcd":
        drive.send(message_id, flags=dict(FLAGS))
    drive.receive("L", 4)
    outcomes = Outcomes("L")
    outcomes.park(1, 1000, "~wait:go", "!go")
    outcomes.park(2, 2**53, "~sleep", "")
    outcomes.ack_with(4, [result_effect(b"ok\n1", KEEP_MS)])
    recorded(drive, message_id="d", index="4")
    drive.settle(outcomes)
    found = drive.run(inspect_runs(drive.keys, "abcd", now_ms=NOW + 7))
    assert [seen.known for seen in found] == [True, True, False, True]
    assert [seen.ended for seen in found] == [False, False, False, True]
    assert (found[0].now_ms, found[0].since_ms, found[0].due_ms) == (NOW + 7, NOW, NOW + 1000)
    assert [seen.waits for seen in found] == ["go", "", "", ""]
    assert [bool(seen.item) for seen in found] == [True, True, False, False]
    assert found[1].due_ms == 2**53

    [item, _] = drive.redis.zrange(drive.keys.delayed, 0, -1)
    drive.run(enqueue(drive.keys, [item], now_ms=NOW + 400))
    drive.receive("M", at=NOW + 400)
    parked(drive, "~wait:go", "!go", at=NOW + 500, lease="M")
    [again] = drive.run(inspect_runs(drive.keys, "a", now_ms=NOW + 600))
    assert (again.since_ms, again.due_ms) == (NOW, NOW + 1000)


def test_a_run_that_sleeps_is_found_among_others_due_in_the_same_millisecond(drive: Drive) -> None:
    """Its state names the time alone; where more than a hundred are due then, a look leaves it to a search."""
    names = [f"r{number:03}" for number in range(101)]
    for name in names:
        drive.send(name, flags=dict(FLAGS))
    for first in (0, 50, 100):
        drive.receive(f"L{first}", 50)
        outcomes = Outcomes(f"L{first}")
        some = names[first : first + 50]
        for index in range(len(some)):
            outcomes.park(index + 1 if len(some) > 1 else 0, 1000, "~sleep", "")
        drive.settle(outcomes)
    read = drive.run(inspect_runs(drive.keys, names[:100], now_ms=NOW + 7))
    assert [seen.item.split()[1].decode() for seen in read] == names[:100]
    assert {seen.due_ms for seen in read} == {NOW + 1000}
    [beyond] = drive.run(inspect_runs(drive.keys, names[100:], now_ms=NOW + 7))
    assert beyond.item == b""


@pytest.mark.parametrize("denied", ["hset", "rpush", "zadd"])
def test_a_start_that_lacks_a_right_leaves_nothing_behind(denied: str) -> None:
    """Or the id would name a run that has no message, and a second start would find it started."""
    with guarded() as drive:
        deny(drive, denied)
        message = NewMessage("a", tail(b"a", dict(FLAGS)))
        with pytest.raises(AccessDeniedError):
            drive.run(start_run(drive.keys, message, b"x", SendOptions(), now_ms=NOW))
        assert drive.state() == {}


def test_a_sleep_that_is_interrupted_keeps_its_end(drive: Drive) -> None:
    """Woken by hand, the run sleeps for what is left: the first time that was recorded counts."""
    received(drive, "a")
    parked(drive)
    [item] = drive.redis.zrange(drive.keys.delayed, 0, -1)
    drive.run(enqueue(drive.keys, [item], now_ms=NOW + 400))
    drive.receive("M", at=NOW + 400)
    parked(drive, at=NOW + 500, lease="M")
    assert [*drive.state("delayed")["delayed"].values()] == [NOW + 1000]


@pytest.mark.parametrize("again", [False, True])
def test_a_park_counts_once(drive: Drive, again: bool) -> None:
    """Repeated after a lost reply, or late, it finds its message gone and changes nothing."""
    received(drive, "a")
    if not again:
        reaped(drive, "L", at=NOW + 30_000)
    else:
        parked(drive)
    before = drive.state()
    parked(drive, at=NOW + 30_001)
    after = drive.state()
    before["stats"].pop("stale", None)
    assert after["stats"].pop("stale") == "1"
    assert after == before


def test_a_signal_wakes_the_run_that_waits_for_it(engine_drive: Drive) -> None:
    """At once: it is ready, and no longer delayed."""
    drive = engine_drive
    received(drive, "a")
    parked(drive, "~wait:go", "!go")
    assert signalled(drive) == b"\n1"
    assert drive.state("ready", "delayed", "run:a") == {
        "ready": [own("a", receives=1, flags=HEADER, ready_ms=NOW + 5)],
        "run:a": {"~wait:go": str(NOW + 1000), "!go": f" t={NOW + 5}\n1", "@given": "5"},
    }
    assert signalled(drive, b"\n2") == b"\n1"
    assert len(drive.state("ready")["ready"]) == 1


def test_another_signal_wakes_nothing(drive: Drive) -> None:
    """Nor does one wake a run that sleeps."""
    received(drive, "a")
    parked(drive, "~sleep", "")
    assert signalled(drive) == b"\n1"
    assert "ready" not in drive.state("ready")


def test_a_signal_that_came_first_lets_the_run_go_on(drive: Drive) -> None:
    """Between the look of the handler and the park: the run is not delayed."""
    received(drive, "a")
    recorded(drive)
    signalled(drive)
    parked(drive, "~wait:go", "!go", at=NOW + 10)
    assert drive.state("ready", "delayed") == {
        "ready": [own("a", receives=1, flags=HEADER, back_ms=NOW + 10)]
    }


def test_signals_are_bounded(drive: Drive) -> None:
    """64 MiB in all, beyond which nothing is written; that for which the run waits is taken, so it cannot be stuck."""
    received(drive, "a")
    recorded(drive)
    parked(drive, "~wait:go", "!go")
    drive.redis.hset(drive.keys.run("a"), "@given", 64 * 2**20 - 4)
    before = drive.state("run:a", "runs", "delayed")
    with pytest.raises(RunTooLargeError, match="67,108,868 bytes of signals; at most 64 MiB"):
        signalled(drive, b"\n1", name="!other")
    assert drive.state("run:a", "runs", "delayed") == before
    assert signalled(drive, b"\n1") == b"\n1"
    assert "ready" in drive.state("ready")
    assert signalled(drive, b"\n1") == b"\n1"  # again
    assert drive.redis.hget(drive.keys.run("a"), "@given") == b"67108865"
    assert drive.redis.hget(drive.keys.run("a"), "@bytes") == b"8"


def test_large_signals_are_not_read_with_the_steps(drive: Drive) -> None:
    """Every activation would read them, and may wait for none of them."""
    received(drive, "a")
    recorded(drive)
    signalled(drive, b"\n" + b"x" * 300_000, name="!large")
    found = recalled(drive, "charge")
    assert (found.whole, set(found.values)) == (False, {"charge"})


def test_signals_to_no_run_are_refused(drive: Drive) -> None:
    """One that is unknown, unless its message was seen, and one that has ended."""
    drive.send("a", flags=dict(FLAGS))
    assert signalled(drive) is None
    assert signalled(drive, known=True) == b"\n1"
    drive.receive("L")
    _acked(drive)
    with pytest.raises(RunEndedError):
        signalled(drive, b"\n2")


def test_the_signal_of_a_dead_run_can_be_replaced(engine_drive: Drive) -> None:
    """While its dead letter is there: that of another run, or one that was redriven, lets the first value stay."""
    drive = engine_drive
    received(drive, "a", "b")
    recorded(drive, index="1")
    signalled(drive, b"\n100")
    outcomes = Outcomes("L")
    outcomes.bury(1, "max_receives")
    outcomes.bury(2, "max_receives")
    drive.settle(outcomes, at=NOW + 6)
    entry, other = (name.decode() for name, _ in drive.redis.xrange(drive.keys.dead))
    key = drive.keys.run("a")
    before = drive.redis.hgetall(key)
    for wrong in ("", other, "1-1"):
        assert signalled(drive, b"\n2", dead_letter=wrong) == b"\n100"
    assert drive.redis.hgetall(key) == before

    assert signalled(drive, b"\n2", dead_letter=entry) == b"\n2"
    after = drive.redis.hgetall(key)
    assert (after[b"!go"], after[b"@given"]) == (f" t={NOW + 5}\n2".encode(), b"5")
    assert signalled(drive, b"\n7", name="!more", dead_letter=entry) == b"\n7"

    drive.redis.hset(key, "@given", 64 * 2**20 - 4)
    with pytest.raises(RunTooLargeError, match="67,108,867 bytes of signals"):
        signalled(drive, b"\n" + b"9" * 8, dead_letter=entry)
    assert signalled(drive, b"\n3", dead_letter=entry) == b"\n3"
    drive.call("redrive", drive.standard_keys(), NOW, entry)
    assert signalled(drive, b"\n4", dead_letter=entry) == b"\n3"


@pytest.mark.parametrize("first", ["signal", "due", "reap"])
def test_a_wait_ends_once_whatever_comes_first(drive: Drive, first: str) -> None:
    """Signal, due time and the reap of a lost lease in each order: one message is left, and one value."""
    received(drive, "a")
    recorded(drive)
    if first == "reap":
        reaped(drive, "L", at=NOW + 30_000)
        drive.receive("M", at=NOW + 30_001)
        parked(drive, "~wait:go", "!go", at=NOW + 30_002)
        assert "delayed" not in drive.state("delayed")
        parked(drive, "~wait:go", "!go", at=NOW + 30_003, lease="M")
    else:
        parked(drive, "~wait:go", "!go")
    if first == "due":
        drive.run(promote(drive.keys, 10, now_ms=NOW + 1000))
        signalled(drive, at=NOW + 1001)
    else:
        signalled(drive, at=NOW + 30_004)
        drive.run(promote(drive.keys, 10, now_ms=NOW + 90_000))
    assert [len(drive.state(part).get(part, ())) for part in ("ready", "delayed")] == [1, 0]
    assert drive.stats("stored")["stored"] == 1


# -- ends -----------------------------------------------------------------------------------------


def _acked(drive: Drive) -> None:
    outcomes = Outcomes("L")
    outcomes.ack_with(0, [result_effect(b"ok\n1", KEEP_MS)])
    drive.settle(outcomes)


def _discarded(drive: Drive) -> None:
    outcomes = Outcomes("L")
    outcomes.discard(0)
    drive.settle(outcomes)


def _released(drive: Drive, delay_ms: int = 0) -> str:
    outcomes = Outcomes("L")
    outcomes.release(0, delay_ms)
    drive.settle(outcomes)
    [item] = [
        *drive.redis.lrange(drive.keys.ready[0], 0, -1),
        *drive.redis.zrange(drive.keys.delayed, 0, -1),
    ]
    text: str = item.decode()
    return text


def _deleted(drive: Drive) -> None:
    item = _released(drive)
    drive.run(delete(drive.keys, [item.encode()], now_ms=NOW))


def _purged(drive: Drive) -> None:
    _released(drive)
    drive.run(purge(drive.keys, "ready", now_ms=NOW))


def _purged_delayed(drive: Drive) -> None:
    _released(drive, 1000)
    drive.run(purge(drive.keys, "delayed", now_ms=NOW))


def _expired(drive: Drive) -> None:
    _released(drive)
    drive.run(trim(drive.keys, 10, now_ms=NOW + 20))


def _cancelled(drive: Drive) -> None:
    drive.redis.zadd(drive.keys.cancelled, {"a": NOW + 1000})
    _released(drive)
    drive.receive("M")


def _died(drive: Drive) -> str:
    outcomes = Outcomes("L")
    outcomes.bury(0, "rejected", ("E", "no"))
    drive.settle(outcomes)
    [(entry, _)] = drive.redis.xrange(drive.keys.dead)
    name: str = entry.decode()
    return name


def _dropped(drive: Drive) -> None:
    drive.call("drop", drive.standard_keys(), NOW, _died(drive))


def _purged_dead(drive: Drive) -> None:
    _died(drive)
    drive.run(purge(drive.keys, "dead", now_ms=NOW))


@pytest.mark.parametrize(
    "end",
    [
        _acked, _discarded, _deleted, _purged, _purged_delayed, _expired, _cancelled, _dropped, _purged_dead,
    ],
)  # fmt: skip
def test_the_end_of_a_message_ends_its_run(drive: Drive, end: Callable[[Drive], object]) -> None:
    """However it ends: its steps are kept as long as its result, and it is no longer one of the runs."""
    received(drive, "a", ttl_ms=10)
    recorded(drive)
    end(drive)
    assert drive.state("runs") == {}
    assert 0 < drive.redis.pttl(drive.keys.run("a")) <= KEEP_MS


def test_a_dead_run_keeps_its_steps(drive: Drive) -> None:
    """As long as its dead letter exists: redriven, it continues after its last step."""
    received(drive, "a")
    recorded(drive)
    entry = _died(drive)
    assert (drive.redis.pttl(drive.keys.run("a")), drive.state("runs")) == (
        -1,
        {"runs": {"a": NOW}},
    )
    drive.call("redrive", drive.standard_keys(), NOW, entry)
    drive.receive("M")
    assert recorded(drive, value=b"\n2", lease_id="M") == b"\n1"
