"""What the queue promises as a whole: stories over several scripts, by the server's own clock."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import Any

import pytest

from qworker.client.execute.sync import Client
from qworker.engine.attributes import configure
from qworker.engine.dead import redrive
from qworker.engine.extend import extend, split
from qworker.engine.fire import fire
from qworker.engine.inspect import inspect
from qworker.engine.message import cancel
from qworker.engine.raw import raw
from qworker.engine.reap import promote, prune, reap, sweep, trim
from qworker.engine.receive import settle_receive
from qworker.engine.remove import purge
from qworker.engine.send import NewMessage, send
from qworker.engine.settle import Outcomes, settle
from qworker.errors import GhostSendError, LeaseUsedError, QueueFullError
from qworker.store.connections import ConnectionFactory
from qworker.wire.envelope import tail
from qworker.wire.ids import EntryId
from qworker.wire.keys import QueueKeys
from tests.lua.drive import NOW, Drive, own


@pytest.fixture
def drive(store_url: str, namespace: str, queue_name: str) -> Iterator[Drive]:
    """A queue whose calls name their time."""
    queue = Drive(store_url, namespace, queue_name)
    yield queue
    queue.close()


def acked(lease: str, indices: Any) -> Outcomes:
    """Acks of a lease."""
    return Outcomes(lease, acks=list(indices))


# -- leases ---------------------------------------------------------------------------------------


def test_call_repeated_with_its_own_lease_loses_nothing(drive: Drive) -> None:
    """A receive of a hundred that is repeated as if new, its reply lost, does not overwrite its lease: it is refused,
    and only a resume tells what the lease holds; all two hundred messages are delivered once.
    """
    ids = [f"m{number:03d}" for number in range(200)]
    drive.send(*ids)
    drive.receive("L", 100)
    with pytest.raises(LeaseUsedError):
        drive.receive("L", 100)
    first = drive.receive("L", 100, resume=True)
    second = drive.receive("M", 100, acked("L", first.indices))
    seen = [item.split(b" ")[1].decode() for item in first.items + second.items]
    assert seen == ids


def test_a_late_settle_acks_no_message_of_another_delivery(drive: Drive) -> None:
    """A settle that comes after its lease was reaped, and its messages are with another consumer, acks nothing."""
    drive.send(*(f"m{number}" for number in range(100)))
    drive.receive("L", 100, visibility_ms=1000)
    drive.run(reap(drive.keys, ["L"], 1000, now_ms=NOW + 1000))
    drive.receive("M", 100, at=NOW + 1001)
    drive.settle(acked("L", range(1, 101)), at=NOW + 1002)
    assert len(drive.state("lease:M")["lease:M"]) == 100
    assert drive.stats("acked", "stale", "stored") == {"stale": 100, "stored": 100}


def test_receipt_is_good_until_its_lease_is_reaped(drive: Drive) -> None:
    """An ack after the deadline counts while no reaper took the message back; so does an extension."""
    drive.send("a", "b")
    drive.receive("L", 2, visibility_ms=1000)
    assert drive.settle(acked("L", [1]), at=NOW + 9000).counted == (True,)
    assert drive.run(extend(drive.keys, ["L"], 1000, now_ms=NOW + 9000)).deadlines == {
        "L": NOW + 10_000
    }


@pytest.mark.slow
def test_stall_costs_live_consumers_nothing(drive: Drive) -> None:
    """A server that was frozen for longer than the visibility has every lease overdue and reaps queued before
    extensions; of two thousand leases whose consumers live none is taken back.
    """
    drive.send(*(f"m{number}" for number in range(1000)))
    drive.send(*(f"n{number}" for number in range(1000)))
    leases = [f"L{number}" for number in range(2000)]
    for lease in leases:
        drive.receive(lease, 1, visibility_ms=1000)
    drive.run(sweep([drive.keys], 200, leases=100, now_ms=NOW + 900))
    late = NOW + 5000
    for _ in range(3):
        _, looks = drive.run(sweep([drive.keys], 200, leases=100, now_ms=late))
        assert looks[0].overdue == ()
        assert drive.run(reap(drive.keys, leases[:500], 200, now_ms=late)).leases == 0
    for first in range(0, 2000, 1000):
        drive.run(extend(drive.keys, leases[first : first + 1000], 5000, now_ms=late + 100))
    _, looks = drive.run(sweep([drive.keys], 200, leases=100, now_ms=late + 900))
    assert looks[0].overdue == ()


def test_worker_that_is_gone_after_a_stall_is_noticed(drive: Drive) -> None:
    """The grace ends: leases that were not extended come back within a heartbeat, a second and a tick."""
    drive.send("a", "b")
    drive.receive("L", 2, visibility_ms=1000)
    drive.run(sweep([drive.keys], 200, now_ms=NOW + 900))
    overdue: list[str] = []
    at = NOW + 60_000
    while not overdue:
        _, looks = drive.run(sweep([drive.keys], 200, now_ms=at))
        overdue = list(looks[0].overdue)
        at += 200
    assert (overdue, at) == (["L"], NOW + 60_000 + 6000 + 200)


# -- blame ----------------------------------------------------------------------------------------


def test_poison_is_buried_alone(drive: Drive) -> None:
    """One message kills every worker that holds it: it is dead in the end, its ninety-nine companions are not, and none
    of them was lost in company more than twice.
    """
    drive.redis.hset(drive.keys.meta, "max_receives", 3)
    ids = [f"m{number:02d}" for number in range(99)]
    drive.send("poison", *ids)
    done: list[str] = []
    shared: Counter[int] = Counter()
    lost: list[int] = []
    at = NOW
    for number in range(2000):
        at += 1500
        batch = drive.receive(f"L{number}", 100, at=at, visibility_ms=1000)
        names = [item.split(b" ")[1].decode() for item in batch.items]
        if not names:
            break
        if "poison" in names:
            drive.redis.hset(drive.keys.stats, "reaped_ms", at)
            drive.run(reap(drive.keys, [f"L{number}"], 1000, now_ms=at + 1500))
            lost.append(at + 1500)
            continue
        shared.update(int(item.split(b"\n")[0].split(b" ")[6]) for item in batch.items)
        drive.settle(acked(f"L{number}", batch.indices), at=at)
        done += names
    assert sorted(done) == ids
    assert max(shared) <= 2
    dead = drive.state("dead")["dead"]
    # Leases that do not tell their visibility are taken for ones of the queue's, which is 30 s.
    first_ms = lost[0] - 1500 + 1000 - 30_000
    assert [dead_letter["envelope"] for dead_letter in dead] == [
        own("poison", receives=5, timeouts=3, shared=2, first_ms=first_ms, ready_ms=lost[-2])
    ]
    assert drive.stats("stored", "unacked") == {"stored": 0, "unacked": 0}


# -- sending --------------------------------------------------------------------------------------


def test_reordered_calls_of_one_lane_are_an_error_never_a_loss(drive: Drive) -> None:
    """Number two overtakes number one: the first is refused as a ghost, so that its sender knows it was not stored."""
    drive.send("b", lane="lane", sequence=2)
    with pytest.raises(GhostSendError):
        drive.send("a", lane="lane", sequence=1)
    drive.send("a", lane="lane", sequence=3)
    assert drive.state("ready") == {"ready": [own("b"), own("a")]}


def test_full_queue_can_be_worked_on_in_every_way(drive: Drive) -> None:
    """At maxlen nothing more is sent, but messages are received, nacked, released, reaped, promoted and redriven."""
    drive.redis.hset(drive.keys.meta, "maxlen", 3)
    drive.send("a", "b")
    drive.send("c", delay_ms=10)
    dead_letter = EntryId.of_stream(drive.redis.xadd(drive.keys.dead, {"envelope": own("d")}), 0)

    def assert_full() -> None:
        with pytest.raises(QueueFullError):
            drive.send("x")

    assert_full()
    drive.receive("L", 1, visibility_ms=20)
    assert_full()
    outcomes = Outcomes("L")
    outcomes.nack(0, 5)
    drive.settle(outcomes)
    assert_full()
    assert drive.run(promote(drive.keys, now_ms=NOW + 10)).moved == 2
    drive.receive("M", 3, at=NOW + 10, visibility_ms=5)
    assert_full()
    assert drive.run(reap(drive.keys, ["M"], 1000, now_ms=NOW + 15)).messages == 3
    assert drive.run(redrive(drive.keys, [dead_letter], now_ms=NOW + 15)) == (1,)
    assert_full()
    batch = drive.receive("N", 4, at=NOW + 15)
    assert len(batch.items) == 4
    drive.settle(acked("N", batch.indices[:1]), at=NOW + 16)
    assert_full()
    drive.settle(acked("N", batch.indices[1:]), at=NOW + 16)
    drive.send("x", "y", "z")


def test_equal_due_times_keep_the_order_of_sending(store_url: str, drive: Drive) -> None:
    """Messages with real ids that are due in the same millisecond become ready as they were sent."""
    with Client(ConnectionFactory(store_url)) as client:
        ids = [client.ids.message_id() for _ in range(1200)]
    for first in range(0, 1200, 600):
        drive.send(*ids[first : first + 600], delay_ms=10)
    drive.run(promote(drive.keys, 5000, now_ms=NOW + 10))
    assert drive.state("ready") == {
        "ready": [own(message_id, ready_ms=NOW + 10) for message_id in ids]
    }


# -- content --------------------------------------------------------------------------------------


def test_equal_plain_messages_stay_two(drive: Drive) -> None:
    """Two identical messages of another program survive a delay and a lost worker as two."""
    drive.redis.rpush(drive.keys.ready[0], '{"task": "x"}', '{"task": "x"}')
    drive.receive("L", 2, visibility_ms=10)
    outcomes = Outcomes("L")
    outcomes.nack(1, 5)
    outcomes.nack(2, 5)
    drive.settle(outcomes)
    assert drive.run(promote(drive.keys, now_ms=NOW + 5)).moved == 2
    drive.receive("M", 2, at=NOW + 5, visibility_ms=10)
    drive.run(reap(drive.keys, ["M"], 1000, now_ms=NOW + 15))
    batch = drive.receive("N", 2, at=NOW + 15)
    assert len(set(batch.items)) == 2
    assert all(item.endswith(b'\n{"task": "x"}') for item in batch.items)


def test_invalid_items_in_a_queue_stop_no_consumer(drive: Drive) -> None:
    """Between foreign bytes, broken headers and items of other versions the good messages flow, and all is kept."""
    rubbish = ["hello", "q1 ", "q1 x\n", "q1 a 1 1234567 0 0 0\n", "\x00", "q9 z", "q1 a 1 0 0 0 0"]
    good = []
    for number, item in enumerate(rubbish):
        drive.redis.rpush(drive.keys.ready[0], item)
        drive.send(f"m{number}")
        good.append(f"m{number}")
    at, done = NOW, []
    for number in range(20):
        at += 1500
        batch = drive.receive(f"L{number}", 3, at=at, visibility_ms=1000)
        acks = [
            index
            for index, item in zip(batch.indices, batch.items, strict=True)
            if item.startswith(b"q1 m")
        ]
        done += [item.split(b"\n")[1].decode() for item in batch.items if item.startswith(b"q1 m")]
        drive.settle(acked(f"L{number}", acks), at=at)
        drive.redis.hset(drive.keys.stats, "reaped_ms", at)
        drive.run(reap(drive.keys, [f"L{number}"], 1000, now_ms=at + 1499))
    assert sorted(done) == good
    dead = {dead_letter["envelope"] for dead_letter in drive.state("dead")["dead"]}
    assert dead == {item for item in rubbish if item != "q9 z"}
    assert drive.state("ready", "unacked", "suspect") == {"ready": ["q9 z"]}


# -- the server's own clock -----------------------------------------------------------------------


def test_every_script_runs_by_the_clock_of_the_server(
    engine_url: str, namespace: str, queue_name: str
) -> None:
    """Without meta.test a message goes through every script, and each answers with the server's time."""
    keys = QueueKeys(namespace, queue_name)
    with Client(ConnectionFactory(engine_url), give_up_s=5) as client:
        seconds, micros = client.execute(_time())
        server_ms = seconds * 1000 + micros // 1000

        def is_now(now_ms: int) -> bool:
            return 0 <= now_ms - server_ms < 60_000

        assert is_now(client.execute(configure(keys, {"maxlen": "100"})))
        for name, options in (("a", {}), ("b", {}), ("c", {"delay_ms": 1})):
            sent = client.send(
                lambda lane, sequence, name=name, options=options: send(
                    keys,
                    [NewMessage(name, tail(b""))],
                    lane=lane,
                    sequence=sequence,
                    **options,
                )
            )
            assert is_now(sent.now_ms)
        batch = client.execute(settle_receive(keys, "L", 2, visibility_ms=5000))
        assert is_now(batch.now_ms)
        assert batch.deadline_ms == batch.now_ms + 5000
        assert is_now(client.execute(split(keys, "L", 1, "M", 6000)) - 6000)
        assert is_now(client.execute(extend(keys, ["L"], 7000)).deadlines["L"] - 7000)
        outcomes = Outcomes("L")
        outcomes.bury(2, "rejected")
        assert is_now(client.execute(settle(keys, [outcomes])).now_ms)
        now_ms, looks = client.execute(sweep([keys], 1000))
        assert is_now(now_ms)
        assert looks[0].overdue == ()
        assert client.execute(reap(keys, ["M"], 1000)).leases == 0
        assert client.execute(trim(keys)).expired == 0
        assert client.execute(prune(keys)).forgotten == 0
        assert is_now(client.execute(cancel(keys, "b", 1000)))
        seen = client.execute(inspect(keys))
        assert is_now(seen.now_ms)
        assert (seen.unacked, seen.dead) == (1, 1)
        missed = client.execute(fire(keys, "s", 1, b"spec", message_id="s", tail=tail(b"")))
        assert missed.fired is False
        assert client.execute(purge(keys, "dead")).messages == 1
        assert client.execute(redrive(keys, [EntryId(1, 1)])) == (0,)
        assert client.execute(promote(keys)).next_due_ms is None


def _time() -> Any:
    return raw("TIME", decode=lambda reply: (int(reply[0]), int(reply[1])))
