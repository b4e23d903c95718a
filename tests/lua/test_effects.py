"""Effects of acks (lib/effects.lua), and what a message with flag r tells when it ends (lib/ends.lua)."""

from __future__ import annotations

from collections.abc import Callable
from itertools import count
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from qworker.engine.dead import redrive
from qworker.engine.effects import result_effect
from qworker.engine.message import delete
from qworker.engine.reap import promote, trim
from qworker.engine.remove import purge
from qworker.engine.settle import Outcomes
from qworker.errors import AccessDeniedError
from qworker.wire.ids import EntryId
from tests.effort import examples
from tests.lua.drive import NOW, Drive, deny, guarded, own
from tests.lua.test_reap import reaped

KEEP_MS = 60_000
KEPT = {"r": str(KEEP_MS)}


def received(drive: Drive, *ids: str, lease: str = "L", **options: Any) -> Outcomes:
    """Send messages that ask for results, and receive them into a lease."""
    drive.send(*ids, **{"flags": dict(KEPT), **options})
    drive.receive(lease, 1000)
    return Outcomes(lease)


def results(drive: Drive) -> dict[str, str]:
    """Message id → what is kept of it."""
    return {
        part.removeprefix("result:"): value
        for part, value in drive.state().items()
        if part.startswith("result:")
    }


# -- effects --------------------------------------------------------------------------------------


def test_a_counted_ack_keeps_the_result(engine_drive: Drive) -> None:
    """The message is gone, its result is there for as long as asked, and the counters are those of an ack."""
    drive = engine_drive
    outcomes = received(drive, "a", "b")
    outcomes.ack_with(1, [result_effect(b"ok\n7", KEEP_MS)])
    settled = drive.settle(outcomes)
    assert (settled.per_lease, settled.counted) == ((1,), (True,))
    assert drive.state("result:a", "lease:L", "ready") == {
        "result:a": "ok\n7",
        "lease:L": {"2": own("b", flags=f" r={KEEP_MS}")},
    }
    assert 0 < drive.redis.pttl(drive.keys.result("a")) <= KEEP_MS
    assert drive.stats("acked", "stored", "unacked", "stale") == {
        "acked": 1, "stored": 1, "unacked": 1,
    }  # fmt: skip


def test_a_repeated_or_stale_ack_has_no_effect(drive: Drive) -> None:
    """A repetition with another value changes nothing, nor does an ack of a lease that is gone."""
    outcomes = received(drive, "a")
    outcomes.ack_with(0, [result_effect(b"ok\n1", KEEP_MS)])
    drive.settle(outcomes)
    again, gone = Outcomes("L"), Outcomes("M")
    again.ack_with(0, [result_effect(b"ok\n2", KEEP_MS)])
    gone.ack_with(0, [result_effect(b"ok\n3", KEEP_MS)])
    assert drive.settle(again, gone).counted == (False, False)
    assert results(drive) == {"a": "ok\n1"}
    assert drive.stats("acked", "stale") == {"acked": 1, "stale": 2}


def test_an_ack_repeated_in_a_resumed_receive_has_no_second_effect(drive: Drive) -> None:
    """The reply of a receive was lost: its repetition settles again, and finds the message gone."""
    outcomes = received(drive, "a")
    drive.send("b")
    outcomes.ack_with(0, [result_effect(b"ok\n1", KEEP_MS)])
    assert drive.receive("M", 10, outcomes).settled == (1,)
    drive.redis.delete(drive.keys.result("a"))
    batch = drive.receive("M", 10, outcomes, resume=True)
    assert (batch.settled, len(batch.items)) == ((0,), 1)
    assert results(drive) == {}


def test_a_late_ack_of_a_message_given_to_another_has_no_effect(drive: Drive) -> None:
    """The lease was reaped, and another consumer has the message: only its ack counts."""
    late = received(drive, "a")
    late.ack_with(0, [result_effect(b"ok\nlate", KEEP_MS)])
    reaped(drive, "L", at=NOW + 30_000)
    drive.receive("M", at=NOW + 30_001)
    assert drive.settle(late, at=NOW + 30_002).counted == (False,)
    assert results(drive) == {}
    current = Outcomes("M")
    current.ack_with(0, [result_effect(b"ok\nnow", KEEP_MS)])
    assert drive.settle(current, at=NOW + 30_003).counted == (True,)
    assert results(drive) == {"a": "ok\nnow"}


def test_acks_with_and_without_effects_go_together(drive: Drive) -> None:
    """In one call, in a batch, with a unique key that the ack frees by itself."""
    drive.send("a", "b")
    outcomes = received(drive, "c", "d", "e")
    outcomes.acks = [1, 2]
    outcomes.ack_with(3, [result_effect(b"ok\n3", KEEP_MS)])
    outcomes.nack(4, 0)
    outcomes.ack_with(5, [result_effect(b"ok\n5", KEEP_MS)])
    assert drive.settle(outcomes).counted == (True,) * 5
    assert results(drive) == {"c": "ok\n3", "e": "ok\n5"}
    assert drive.stats("acked", "nacked", "unacked") == {"acked": 4, "nacked": 1, "unacked": 0}


def test_an_ack_with_effects_frees_the_unique_key(drive: Drive) -> None:
    """As a plain ack does, if the key is still this message's."""
    outcomes = received(drive, "a", flags={**KEPT, "u": "k"})
    drive.redis.hset(drive.keys.unique, "k", f"a {NOW + 1000}")
    outcomes.ack_with(0, [result_effect(b"ok\n1", KEEP_MS)])
    drive.settle(outcomes)
    assert drive.state("unique") == {}


def test_the_result_of_a_plain_message_has_its_delivery_as_name(drive: Drive) -> None:
    """It has no id of its own."""
    drive.redis.rpush(drive.keys.ready[0], '{"task": "t", "args": []}')
    drive.receive("L")
    outcomes = Outcomes("L")
    outcomes.ack_with(0, [result_effect(b"ok\n1", KEEP_MS)])
    drive.settle(outcomes)
    assert results(drive) == {"L.0": "ok\n1"}


def test_an_ack_with_effects_is_journalled(drive: Drive) -> None:
    """As any other ack."""
    drive.redis.hset(drive.keys.meta, "journal", "outcomes")
    outcomes = received(drive, "a")
    outcomes.ack_with(0, [result_effect(b"ok\n1", KEEP_MS)], times=f"{NOW} 0+1 t")
    drive.settle(outcomes)
    [entry] = drive.state("journal")["journal"]
    assert entry["e1"].startswith(f"acked {NOW} 0+1 t - -\nq1 a ")


def test_those_who_wait_are_told(drive: Drive) -> None:
    """On a sharded channel with the name of the key."""
    outcomes = received(drive, "a")
    with drive.redis.pubsub() as ears:
        ears.execute_command("SSUBSCRIBE", drive.keys.result("a"))
        ears.connection.read_response()
        outcomes.ack_with(0, [result_effect(b"ok\n1", KEEP_MS)])
        drive.settle(outcomes)
        assert ears.connection.read_response()[:2] == [
            b"smessage",
            drive.keys.result("a").encode(),
        ]


@pytest.mark.parametrize(
    "words",
    [
        (0,),
        (1001,),
        ("x",),
        (1,),
        (1, "result"),
        (1, "result", KEEP_MS),
        (1, "result", 0, "v"),
        (1, "result", 2_592_000_001, "v"),
        (1, "result", "x", "v"),
        (1, "other", KEEP_MS, "v"),
        (2, "result", KEEP_MS, "v"),
        (1, "result", KEEP_MS, "v" * 1_114_113),
    ],
)
def test_wrong_effects_are_refused_before_anything_is_written(
    drive: Drive, words: tuple[Any, ...]
) -> None:
    """Their number, names, words and bounds."""
    received(drive, "a", "b")
    before = drive.state()
    number, *effects = words
    keys = drive.standard_keys("L")
    outcome = ("t", 1, number, "", "", "", "", "", *effects)
    reply = drive.call("settle", keys, NOW, "", 1, 0, 0, 2, "d", 2, *[""] * 6, *outcome, 0)
    assert reply[0] == "ARG"
    assert drive.state() == before


def test_a_user_who_may_not_write_results_changes_nothing() -> None:
    """The rights of an older version: the call is refused before its first write."""
    with guarded() as drive:
        outcomes = received(drive, "a", "b")
        outcomes.acks = [1]
        outcomes.ack_with(2, [result_effect(b"ok\n1", KEEP_MS)])
        before = drive.state()
        deny(drive, "set")
        with pytest.raises(AccessDeniedError, match="may not write results"):
            drive.settle(outcomes)
        assert drive.state() == before


# -- ends without a value -------------------------------------------------------------------------


def _buried(drive: Drive) -> None:
    outcomes = received(drive, "a")
    outcomes.bury(0, "rejected", ("Value Error", "no\nsuch"))
    drive.settle(outcomes)


def _nacked(drive: Drive) -> None:
    outcomes = received(drive, "a")
    outcomes.nack(0, 0, max_receives=1, error=("E", "x"))
    drive.settle(outcomes)


def _timed_out(drive: Drive) -> None:
    received(drive, "a", flags={**KEPT, "m": "1"})
    reaped(drive, "L", at=NOW + 30_000)


def _discarded(drive: Drive) -> None:
    outcomes = received(drive, "a")
    outcomes.discard(0)
    drive.settle(outcomes)


def _expired_when_received(drive: Drive) -> None:
    drive.send("a", flags=dict(KEPT), ttl_ms=10)
    drive.receive("L", at=NOW + 20)


def _expired_in_a_lease(drive: Drive) -> None:
    received(drive, "a", ttl_ms=10)
    reaped(drive, "L", at=NOW + 30_000)


def _trimmed(drive: Drive) -> None:
    drive.send("a", flags=dict(KEPT), ttl_ms=10)
    drive.run(trim(drive.keys, 10, now_ms=NOW + 20))


def _expired_when_due(drive: Drive) -> None:
    drive.send("a", flags=dict(KEPT), ttl_ms=10, delay_ms=20)
    drive.run(promote(drive.keys, 10, now_ms=NOW + 30))


def _cancelled(drive: Drive) -> None:
    drive.send("a", flags=dict(KEPT))
    drive.redis.zadd(drive.keys.cancelled, {"a": NOW + 1000})
    drive.receive("L")


def _deleted(drive: Drive) -> None:
    drive.send("a", flags=dict(KEPT))
    drive.run(delete(drive.keys, [own("a", flags=f" r={KEEP_MS}").encode()], now_ms=NOW))


def _purged(drive: Drive) -> None:
    drive.send("a", flags=dict(KEPT))
    drive.run(purge(drive.keys, "ready", now_ms=NOW))


ENDS: list[tuple[Callable[[Drive], None], str]] = [
    (_buried, "dead rejected Value_Error\nno\nsuch"),
    (_nacked, "dead max_receives E\nx"),
    (_timed_out, "dead max_receives \n"),
    (_discarded, "discarded"),
    (_expired_when_received, "expired"),
    (_expired_in_a_lease, "expired"),
    (_trimmed, "expired"),
    (_expired_when_due, "expired"),
    (_cancelled, "cancelled"),
    (_deleted, "cancelled"),
    (_purged, "purged"),
]


@pytest.mark.parametrize(("end", "told"), ENDS, ids=lambda value: getattr(value, "__name__", ""))
def test_every_end_is_told(drive: Drive, end: Callable[[Drive], None], told: str) -> None:
    """A message that asks for a result ends the wait in every way it can end."""
    end(drive)
    assert results(drive) == {"a": told}
    assert 0 < drive.redis.pttl(drive.keys.result("a")) <= KEEP_MS


@pytest.mark.parametrize("flags", [{}, {"r": "0"}, {"r": "x"}, {"r": "1e3"}, {"x": "1"}])
def test_a_message_that_asks_for_no_result_leaves_none(drive: Drive, flags: dict[str, str]) -> None:
    """Nor does one whose flag is not a number."""
    outcomes = received(drive, "a", "b", flags=flags)
    if "x" not in flags:
        outcomes.bury(1, "rejected")
        outcomes.discard(2)
        drive.settle(outcomes)
    assert results(drive) == {}


def test_a_flag_in_a_body_is_none(drive: Drive) -> None:
    """Bodies are not searched."""
    drive.send("a", body=lambda _: b"x r=1000 \n r=1000 ")
    drive.redis.rpush(drive.keys.ready[0], '{"a": " r=1000 =\n"}')
    drive.receive("L")
    outcomes = Outcomes("L")
    outcomes.bury(1, "rejected")
    outcomes.bury(2, "rejected")
    assert drive.settle(outcomes).counted == (True, True)
    assert results(drive) == {}


def test_a_redriven_message_is_waited_for_again(drive: Drive) -> None:
    """Its failure is forgotten, and its success replaces it."""
    _buried(drive)
    [entry] = drive.redis.xrange(drive.keys.dead)
    drive.run(redrive(drive.keys, [EntryId.of_stream(entry[0], 0)], now_ms=NOW))
    assert results(drive) == {}
    drive.receive("M")
    outcomes = Outcomes("M")
    outcomes.ack_with(0, [result_effect(b"ok\n1", KEEP_MS)])
    drive.settle(outcomes)
    assert results(drive) == {"a": "ok\n1"}


def test_a_dead_letter_that_is_purged_stays_a_failure(drive: Drive) -> None:
    """What it died of is what its sender wants to know."""
    _buried(drive)
    drive.run(purge(drive.keys, "dead", now_ms=NOW))
    assert results(drive) == {"a": "dead rejected Value_Error\nno\nsuch"}


def test_ends_count_where_results_may_not_be_written() -> None:
    """With the rights of an older version a message ends as before, and the call says that something was missed."""
    with guarded() as drive:
        outcomes = received(drive, "a")
        outcomes.discard(0)
        deny(drive, "set")
        reply = drive.call("settle", drive.standard_keys("L"), NOW, "", 1, *outcomes.words())
        assert (reply[0], reply[2], reply[3]) == ("OK", 1, [1])
        assert results(drive) == {}


# -- in general -----------------------------------------------------------------------------------

_QUEUES = count()
_STEPS = st.lists(
    st.tuples(
        st.sampled_from(["ack", "again", "late", "nack", "reap", "receive"]), st.integers(0, 2)
    ),
    max_size=14,
)


@settings(
    max_examples=examples(25),
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)
@given(_STEPS)
@pytest.mark.slow
def test_a_result_is_kept_if_and_only_if_its_ack_counted(
    store_url: str, namespace: str, steps: list[tuple[str, int]]
) -> None:
    """Whatever leases come and go, and however often settles are repeated."""
    drive = Drive(store_url, namespace, f"q{next(_QUEUES)}")
    try:
        drive.send("a", "b", "c", flags={**KEPT, "m": "99"})
        leases: list[str] = []
        counted: dict[str, str] = {}
        now = NOW
        for number, (step, which) in enumerate(steps):
            now += 1
            if step == "receive":
                leases.append(f"L{number}")
                drive.receive(leases[-1], 3, at=now)
                continue
            if not leases:
                continue
            lease = leases[0] if step in ("late", "again") else leases[-1]
            held = drive.held(drive.keys.lease(lease))
            index = "0" if b"0" in held else str(which + 1)
            item = held.get(index.encode(), b"").decode()
            outcomes = Outcomes(lease)
            if step == "reap":
                now += 40_000
                reaped(drive, lease, at=now)
            elif step == "nack":
                outcomes.nack(index, 0)
                drive.settle(outcomes, at=now)
            else:
                value = f"ok\n{number}"
                outcomes.ack_with(index, [result_effect(value.encode(), KEEP_MS)])
                hits = drive.settle(outcomes, at=now).counted
                assert hits == (bool(item),)
                assert drive.settle(outcomes, at=now).counted == (False,)
                if hits[0]:
                    assert item.split()[1] not in counted
                    counted[item.split()[1]] = value
            assert results(drive) == counted
        drive.redis.delete(*drive.redis.scan_iter(match=drive.base + "*", count=1_000_000))
    finally:
        drive.close()
