"""reap.lua: take back the messages of leases whose visibility deadline is over."""

from __future__ import annotations

import pytest

from qworker.engine.extend import extend
from qworker.engine.reap import Reaped, reap
from qworker.engine.settle import Outcomes
from tests import servers
from tests.lua.drive import NOW, READY_PARTS, Drive, own

TICK_MS = 1000
#: When a lease of 30 s that was made at NOW is over.
OVER = NOW + 30_000


def reaped(drive: Drive, *leases: str, at: int = OVER, visited: int | None = 0) -> Reaped:
    """Reap leases; the last visit is set to 0 ms before, so that there is no gap, or left alone (None)."""
    if visited is not None:
        drive.redis.hset(drive.keys.stats, "reaped_ms", at - visited)
    result: Reaped = drive.run(reap(drive.keys, leases, TICK_MS, now_ms=at))
    return result


def leased(drive: Drive, lease: str, *items: str) -> None:
    """Put items of a known header into ready, counted, and receive them into a lease at NOW."""
    drive.redis.rpush(drive.keys.ready[0], *items)
    drive.redis.hincrby(drive.keys.stats, "stored", len(items))
    drive.receive(lease, 1000)
    drive.redis.delete(drive.keys.wake)


# -- how much a call does --------------------------------------------------------------------------


@pytest.mark.parametrize(("nacks", "leases"), [(0, 3), (1, 1)])
def test_messages_that_came_back_before_count_three_times(
    engine_drive: Drive, nacks: int, leases: int
) -> None:
    """They take as much longer, and other calls wait: a call takes a lease of 100, or three on a first delivery."""
    drive = engine_drive
    names = ["L1", "L2", "L3", "L4"]
    for name in names:
        leased(drive, name, *(own(f"{name}-{n}", nacks, nacks) for n in range(100)))
    done = reaped(drive, *names)
    assert (done.leases, done.messages, done.left) == (leases, 100 * leases, 4 - leases)


@pytest.mark.parametrize(("earlier", "leases"), [(300, 1), (299, 2)])
def test_a_call_ends_when_it_has_passed_many_messages(
    engine_drive: Drive, earlier: int, leases: int
) -> None:
    """Messages at the head that the returned ones go behind are written again."""
    drive = engine_drive
    leased(drive, "L1", own("a1"), own("a2"))
    leased(drive, "L2", own("b1"), own("b2"))
    head = [own(f"h{n}", NOW - 10, 1, back_ms=NOW - 5) for n in range(earlier)]
    drive.redis.rpush(drive.keys.ready[0], *head)
    done = reaped(drive, "L1", "L2")
    assert (done.leases, done.left) == (leases, 2 - leases)
    ids = [item.split()[1] for item in drive.state()["ready"][earlier:]]
    assert ids == ["a1", "a2", "b1", "b2"][: 2 * leases]


def test_a_call_takes_fifty_leases_of_one_message(engine_drive: Drive) -> None:
    """Each costs as much as several messages of one lease."""
    drive = engine_drive
    names = [f"L{n}" for n in range(60)]
    for name in names:
        leased(drive, name, own(name))
    done = reaped(drive, *names)
    assert (done.leases, done.suspects, done.left) == (50, 50, 10)


# -- who is to blame ------------------------------------------------------------------------------


def test_messages_in_company_return_to_the_head_in_order(engine_drive: Drive) -> None:
    """In company no message is blamed: each delivery is counted as shared, and all stand in front again, in order."""
    drive = engine_drive
    ids = [f"m{number:02d}" for number in range(1, 26)]
    leased(drive, "L", *map(own, ids))
    drive.send("later")
    drive.redis.delete(drive.keys.wake)
    assert reaped(drive, "L", at=OVER + 7) == Reaped(
        leases=1, messages=25, dead=0, suspects=0, set_aside=0, lateness_ms=7, left=0
    )
    assert drive.state() == {
        "ready": [
            *(
                own(message_id, receives=1, shared=1, first_ms=NOW, back_ms=OVER + 7)
                for message_id in ids
            ),
            own("later"),
        ],
        "wake": ["1"] * 8,
        "stats": {
            "sent": "1",
            "stored": "26",
            "received": "25",
            "unacked": "0",
            "timeouts": "25",
            "reaped_ms": str(OVER + 7),
        },
    }


def test_lone_message_is_blamed_and_suspected(drive: Drive) -> None:
    """A message that was delivered alone pays for its lost worker, and is delivered alone again."""
    leased(drive, "L", own("a"))
    assert reaped(drive, "L") == Reaped(1, 1, 0, 1, 0, 0, 0)
    assert drive.state("ready", "suspect", "wake", "lease:L", "unacked") == {
        "suspect": [own("a", receives=1, timeouts=1, first_ms=NOW, ready_ms=OVER)],
        "wake": ["1"],
    }


def test_second_loss_in_company_makes_suspects(drive: Drive) -> None:
    """From the second shared loss on, and after any lone one, a message goes to the suspects."""
    leased(drive, "L", own("a", shared=1), own("b"), own("c", timeouts=1), own("d", shared=5))
    assert reaped(drive, "L") == Reaped(1, 4, 0, 3, 0, 0, 0)
    assert drive.state("ready", "suspect") == {
        "ready": [own("b", receives=1, shared=1, first_ms=NOW, back_ms=OVER)],
        "suspect": [
            own("a", receives=1, shared=2, first_ms=NOW, ready_ms=OVER),
            own("c", receives=1, timeouts=1, shared=1, first_ms=NOW, ready_ms=OVER),
            own("d", receives=1, shared=6, first_ms=NOW, ready_ms=OVER),
        ],
    }


def test_company_never_kills(drive: Drive) -> None:
    """With max receives 1 a batch of a hundred whose worker died is not buried."""
    drive.redis.hset(drive.keys.meta, "max_receives", 1)
    leased(drive, "L", *(own(f"m{number}") for number in range(100)))
    assert reaped(drive, "L").dead == 0
    assert len(drive.state("ready")["ready"]) == 100


def test_poison_costs_its_company_two_deliveries(drive: Drive) -> None:
    """A message that kills every worker is alone from its third delivery on, and dead at max receives."""
    drive.redis.hset(drive.keys.meta, "max_receives", 2)
    drive.send("poison", "mate")
    for round_number, suspects in ((1, 0), (2, 2)):
        drive.receive(f"L{round_number}")
        assert reaped(drive, f"L{round_number}").suspects == suspects
    drive.receive("L3")
    assert reaped(drive, "L3").suspects == 1
    drive.receive("L4")
    mate = own("mate", receives=2, shared=2, first_ms=NOW, ready_ms=OVER)
    assert drive.state("lease:L4") == {"lease:L4": {"0": mate}}
    drive.receive("L5")
    assert reaped(drive, "L5").dead == 1
    assert drive.state("dead")["dead"] == [
        {
            "envelope": own(
                "poison", receives=4, timeouts=2, shared=2, first_ms=NOW, ready_ms=OVER
            ),
            "reason": "max_receives",
            "class": "",
            "error": "",
            "died_ms": str(OVER),
        }
    ]


@pytest.mark.parametrize(
    ("flag", "queue", "nacks", "dies"),
    [("2", "9", 1, True), ("3", "1", 1, False), (None, "2", 1, True), (None, "3", 1, False),
     (None, "", 4, True), (None, "", 3, False), (None, "nan", 4, True), (None, "-1", 3, False)],
)  # fmt: skip
def test_dead_at_max_receives(
    drive: Drive, flag: str | None, queue: str, nacks: int, *, dies: bool
) -> None:
    """Nacks and lone timeouts together are held against the message's limit, or the queue's, or 5."""
    drive.redis.hset(drive.keys.meta, "max_receives", queue)
    flags = f" m={flag} u=a%20b" if flag else " u=a%20b"
    drive.redis.hset(drive.keys.unique, "a b", "a 999999999")
    leased(drive, "L", own("a", receives=nacks, nacks=nacks, flags=flags))
    flags += f" f={NOW}" if dies else f" f={NOW} t={OVER}"
    after = own("a", receives=nacks + 1, nacks=nacks, timeouts=1, flags=flags)
    assert reaped(drive, "L").dead == int(dies)
    state = drive.state("suspect", "unique")
    if dies:
        assert state == {}
        assert drive.state("dead")["dead"][0]["envelope"] == after
        assert drive.stats("stored", "unacked", "dead", "dead:max_receives") == {
            "stored": 0, "unacked": 0, "dead": 1, "dead:max_receives": 1,
        }  # fmt: skip
    else:
        assert state == {"suspect": [after], "unique": {"a b": "a 999999999"}}
        assert drive.stats("stored", "unacked", "dead") == {"stored": 1, "unacked": 0}


def test_priorities_return_to_their_level(drive: Drive) -> None:
    """What comes back keeps its priority, where its level is in use."""
    drive.send("a", "b", priority=6, flags={"p": "6"})
    drive.receive("L")
    leased(drive, "M", own("c", flags=" p=3"), own("d"))
    reaped(drive, "L", "M")
    assert drive.state(*READY_PARTS) == {
        "ready": [
            own("c", receives=1, shared=1, flags=" p=3", first_ms=NOW, back_ms=OVER),
            own("d", receives=1, shared=1, first_ms=NOW, back_ms=OVER),
        ],
        "ready:6": [
            own(name, receives=1, shared=1, flags=" p=6", first_ms=NOW, back_ms=OVER)
            for name in "ab"
        ],
    }


# -- which leases ---------------------------------------------------------------------------------


def test_only_overdue_leases_are_reaped(drive: Drive) -> None:
    """A candidate that was extended, settled or never made is left alone; the deadline itself is over."""
    drive.send("a", "b", "c")
    for lease, at in (("L", NOW), ("M", NOW + 1), ("N", NOW)):
        drive.receive(lease, 1, at=at)
    drive.redis.zadd(drive.keys.unacked, {"N": OVER + 1})
    assert reaped(drive, "N", "M", "gone", "L").leases == 1
    assert drive.state("unacked", "suspect") == {
        "unacked": {"M": OVER + 1, "N": OVER + 1},
        "suspect": [own("a", receives=1, timeouts=1, first_ms=NOW, ready_ms=OVER)],
    }


def test_two_reapers_take_a_lease_back_once(drive: Drive) -> None:
    """The second one finds nothing."""
    leased(drive, "L", own("a"), own("b"))
    reaped(drive, "L")
    before = drive.state()
    assert reaped(drive, "L") == Reaped(0, 0, 0, 0, 0, 0, 0)
    assert drive.state() == before


def test_late_settle_of_a_reaped_lease_is_stale(drive: Drive) -> None:
    """A receipt is good until its lease is reaped, not until its deadline."""
    leased(drive, "L", own("a"), own("b"))
    assert drive.settle(Outcomes("L", acks=[1]), at=OVER + 5000).counted == (True,)
    reaped(drive, "L", at=OVER + 5000)
    assert drive.settle(Outcomes("L", acks=[2]), at=OVER + 5000).counted == (False,)
    assert drive.state("ready") == {
        "ready": [own("b", receives=1, shared=1, first_ms=NOW, back_ms=OVER + 5000)]
    }


def test_lease_without_messages_is_removed(drive: Drive) -> None:
    """A deadline whose messages are gone is cleared away and counts as reaped."""
    drive.redis.zadd(drive.keys.unacked, {"L": NOW})
    assert reaped(drive, "L") == Reaped(1, 0, 0, 0, 0, 30_000, 0)
    assert drive.state("unacked", "wake") == {}


@pytest.mark.bad_input("data found: key of another type")
def test_lease_of_another_type_is_set_aside(engine_drive: Drive) -> None:
    """A key that is not a lease is not touched and blocks no other lease: its deadline moves a minute on."""
    drive = engine_drive
    leased(drive, "L", own("a"))
    drive.redis.zadd(drive.keys.unacked, {"bad": NOW})
    drive.redis.set(drive.keys.lease("bad"), "other")
    assert reaped(drive, "bad", "L") == Reaped(1, 1, 0, 1, 1, 0, 0)
    assert drive.state("unacked", "lease:bad") == {
        "unacked": {"bad": OVER + 60_000},
        "lease:bad": "other",
    }
    assert drive.stats("set_aside", "unacked") == {"set_aside": 1, "unacked": 0}


def test_bytes_bound_a_call(drive: Drive) -> None:
    """After a mebibyte the remaining candidates are left to the next call, and counted."""
    for number in range(6):
        drive.send(f"m{number}", body=lambda _: b"x" * 400_000)
        drive.receive(f"L{number}")
    first = reaped(drive, *(f"L{number}" for number in range(6)))
    assert (first.leases, first.messages, first.left) == (3, 3, 3)
    assert sorted(drive.state("unacked")["unacked"]) == ["L3", "L4", "L5"]
    assert reaped(drive, *(f"L{number}" for number in range(6))).left == 0


def test_thousand_messages_of_a_lease(engine_drive: Drive) -> None:
    """The largest lease comes back whole and in order."""
    ids = [f"m{number:04d}" for number in range(1000)]
    engine_drive.send(*ids)
    engine_drive.receive("L", 1000)
    assert reaped(engine_drive, "L").messages == 1000
    assert engine_drive.state("ready")["ready"] == [
        own(message_id, receives=1, shared=1, first_ms=NOW, back_ms=OVER) for message_id in ids
    ]


def test_thousand_suspects_of_a_lease(drive: Drive) -> None:
    """So do as many suspects."""
    ids = [f"m{number:04d}" for number in range(1000)]
    leased(drive, "L", *(own(message_id, shared=1) for message_id in ids))
    assert reaped(drive, "L").suspects == 1000
    assert drive.state("suspect")["suspect"] == [
        own(message_id, receives=1, shared=2, first_ms=NOW, ready_ms=OVER) for message_id in ids
    ]


def test_a_single_suspect_of_a_later_lease_stays_behind_those_of_an_earlier_one(
    drive: Drive,
) -> None:
    """Leases of several messages are reaped latest first; suspects queue at the tail in the order of delivery."""
    leased(drive, "L1", own("a", shared=1), own("b", shared=1))
    leased(drive, "L2", own("c", shared=1), own("d"))
    drive.redis.hset(drive.keys.stats, "reaped_ms", OVER)
    done = drive.run(reap(drive.keys, ["L1", "L2"], TICK_MS, only="several", now_ms=OVER))
    assert (done.leases, done.suspects) == (2, 3)
    assert drive.state("suspect")["suspect"] == [
        own(message_id, receives=1, shared=2, first_ms=NOW, ready_ms=OVER) for message_id in "abc"
    ]


def test_suspects_of_earlier_calls_stay_in_front(drive: Drive) -> None:
    """The suspects of a call pass each other, but none that waited before it."""
    drive.redis.rpush(drive.keys.suspect, own("first", shared=2))
    leased(drive, "L", own("a", shared=1), own("b", shared=1))
    drive.redis.hset(drive.keys.stats, "reaped_ms", OVER)
    drive.run(reap(drive.keys, ["L"], TICK_MS, only="several", now_ms=OVER))
    ids = [item.split()[1] for item in drive.state("suspect")["suspect"]]
    assert ids == ["first", "a", "b"]


# -- content --------------------------------------------------------------------------------------


def test_expired_and_cancelled_messages_end(drive: Drive) -> None:
    """Expired messages do not come back, their key is freed, and only the others wake a receiver."""
    leased(drive, "L", own("a", flags=f" x={OVER} u=k"), own("b"), own("c", flags=f" x={OVER + 1}"))
    drive.redis.hset(drive.keys.unique, "k", "a 999999999")
    drive.redis.zadd(drive.keys.cancelled, {"b": NOW})
    assert reaped(drive, "L") == Reaped(1, 3, 0, 0, 0, 0, 0)
    assert drive.state("ready", "unique", "cancelled", "dead", "wake") == {
        "ready": [
            own("c", receives=1, shared=1, flags=f" x={OVER + 1}", first_ms=NOW, back_ms=OVER)
        ],
        "wake": ["1"],
    }
    assert drive.stats("expired", "cancelled", "stored", "unacked") == {
        "expired": 1,
        "cancelled": 1,
        "stored": 1,
        "unacked": 0,
    }


def test_wakes_no_receiver_if_nothing_came_back(drive: Drive) -> None:
    """Dead and expired messages ring nothing."""
    drive.redis.hset(drive.keys.meta, "max_receives", 1)
    leased(drive, "L", own("a"))
    leased(drive, "M", own("b", flags=f" x={NOW + 1}"))
    reaped(drive, "L", "M")
    assert drive.state("wake", "ready", "suspect") == {}


@pytest.mark.bad_input("data found: foreign push")
def test_foreign_items_in_a_lease_are_buried(drive: Drive) -> None:
    """One item that cannot be read does not stop the reaping of the queue: it is buried with its bytes."""
    foreign = ["q1 broken\n", "q1 a 1 1234567 0 0 0\n", "q1 a 1 0 0 0 0"]
    leased(drive, "L", *foreign, own("a"), '{"plain": 1}')
    drive.redis.hincrby(drive.keys.stats, "stored", -1)  # the plain one is counted by receive
    drive.redis.hset(drive.keys.lease("L"), mapping={"9": "hello", "x": "world"})
    drive.redis.hincrby(drive.keys.stats, "stored", 2)
    drive.redis.hincrby(drive.keys.stats, "unacked", 2)
    assert reaped(drive, "L").messages == 7
    assert drive.state("ready") == {
        "ready": [
            own("a", receives=1, shared=1, first_ms=NOW, back_ms=OVER),
            own(
                *("L.5", OVER, 1, 0, 0, 1),
                body='{"plain": 1}',
                first_ms=NOW,
                back_ms=OVER,
                since_ms=NOW,
            ),
        ]
    }
    dead = drive.state("dead")["dead"]
    assert {(dead_letter["envelope"], dead_letter["reason"]) for dead_letter in dead} == {
        (item, "foreign") for item in (*foreign, "hello", "world")
    }
    assert drive.stats("stored", "unacked", "dead") == {"stored": 2, "unacked": 0, "dead": 5}


def test_plain_messages_get_an_id_and_are_blamed(drive: Drive) -> None:
    """Equal plain messages come back as two, named by their delivery."""
    drive.redis.rpush(drive.keys.ready[0], "[1]")
    drive.receive("L")
    drive.redis.rpush(drive.keys.ready[0], "[1]")
    drive.receive("M")
    reaped(drive, "L", "M")
    assert drive.state("suspect") == {
        "suspect": [
            own(f"{lease}.0", OVER, 1, 0, 1, 0, body="[1]", first_ms=NOW, ready_ms=OVER)
            for lease in "LM"
        ]
    }
    assert drive.stats("stored", "unacked") == {"stored": 2, "unacked": 0}


# -- grace after a gap ----------------------------------------------------------------------------


@pytest.mark.bad_input("time or host: clock back an hour within a pass")
@pytest.mark.parametrize("away_ms", [3001, 60_000, -1, -600_000])
def test_after_a_gap_only_leases_overdue_before_are_reaped(drive: Drive, away_ms: int) -> None:
    """After a stall, or a clock that went back, live consumers extend first."""
    drive.send("a", "b")
    drive.receive("old", 1, at=NOW, visibility_ms=1000)
    last = NOW + 700_000
    drive.receive("new", 1, at=last, visibility_ms=1)
    drive.redis.hset(drive.keys.stats, "reaped_ms", last)
    now = last + away_ms
    if away_ms < 0:  # the younger lease was made before the clock went back
        drive.redis.zadd(drive.keys.unacked, {"new": now + 1})
    result = reaped(drive, "new", "old", at=now, visited=None)
    assert (result.leases, sorted(drive.state("unacked")["unacked"])) == (1, ["new"])
    assert drive.stats("reaped_ms", "gap_from_ms", "gap_until_ms", "gaps") == {
        "reaped_ms": now,
        "gap_from_ms": last,
        "gap_until_ms": now + 6000,
        "gaps": 1,
    }


def test_grace_lasts_one_heartbeat_and_a_second(drive: Drive) -> None:
    """In the six seconds after a gap visits are gentle, then everything overdue is reaped."""
    leased(drive, "L", own("a"))
    last = OVER - 1
    drive.redis.hset(drive.keys.stats, "reaped_ms", last)
    after = OVER + 20_000
    for offset in (0, 2500, 5000, 5999):
        assert reaped(drive, "L", at=after + offset, visited=None).leases == 0
    assert drive.stats("gaps") == {"gaps": 1}
    assert reaped(drive, "L", at=after + 6000, visited=None).leases == 1


@pytest.mark.bad_input("time or host: clock forward a day")
def test_consumer_that_extends_in_the_grace_keeps_its_lease(drive: Drive) -> None:
    """What is extended after a stall is not reaped when the grace is over."""
    leased(drive, "L", own("a"))
    after = OVER + 20_000
    assert reaped(drive, "L", at=after, visited=25_000).leases == 0
    drive.run(extend(drive.keys, ["L"], 30_000, now_ms=after + 4000))
    assert reaped(drive, "L", at=after + 7000).leases == 0


def test_slow_visits_reap_all_the_same(drive: Drive) -> None:
    """Where every visit is a gap, each reaps what was overdue at the one before."""
    leased(drive, "L", own("a"))
    drive.redis.hset(drive.keys.stats, "reaped_ms", NOW)
    assert reaped(drive, "L", at=OVER + 1000, visited=None).leases == 0
    assert reaped(drive, "L", at=OVER + 11_000, visited=None).leases == 1


def test_gap_is_measured_in_ticks_of_the_caller(drive: Drive) -> None:
    """Up to three ticks, and up to two seconds, are not a gap."""
    for tick_ms, away_ms, gaps in (
        (1000, 3000, 0),
        (1000, 3001, 1),
        (100, 2000, 1),
        (100, 2001, 2),
    ):
        drive.redis.hset(drive.keys.stats, "reaped_ms", OVER)
        drive.run(reap(drive.keys, [], tick_ms, now_ms=OVER + away_ms))
        assert drive.stats("gaps").get("gaps", 0) == gaps, (tick_ms, away_ms)


def test_first_visit_is_not_a_gap(drive: Drive) -> None:
    """A queue that no reaper ever saw is reaped at once."""
    leased(drive, "L", own("a"))
    drive.redis.hdel(drive.keys.stats, "reaped_ms")
    assert reaped(drive, "L", at=OVER + 99_999, visited=None).leases == 1
    assert drive.stats("gaps") == {}


@pytest.mark.bad_input("data found: nonsense in stats")
@pytest.mark.parametrize(
    "fields",
    [{"reaped_ms": "x"}, {"gaps": "x", "reaped_ms": "5"}, {"gap_from_ms": "x", "gap_until_ms": "x"},
     {"gap_until_ms": "99999999999", "reaped_ms": str(OVER)}],
)  # fmt: skip
def test_notes_of_another_kind_do_not_stop_reaping(drive: Drive, fields: dict[str, str]) -> None:
    """Whatever stands in the counters, no visit raises, and the queue is reaped within the grace."""
    leased(drive, "L", own("a"))
    drive.redis.hset(drive.keys.stats, mapping=fields)
    leases = sum(
        reaped(drive, "L", at=OVER + offset, visited=None).leases
        for offset in range(0, 10_000, 1000)
    )
    assert leases == 1


# -- bells, pauses, trouble -----------------------------------------------------------------------


def test_queue_paused_for_output_is_reaped_in_silence(drive: Drive) -> None:
    """A pause does not hold messages of lost workers back, and wakes no receiver."""
    leased(drive, "L", own("a"))
    drive.redis.hset(drive.keys.meta, "paused", "all")
    assert reaped(drive, "L").messages == 1
    assert drive.state("wake") == {}


def test_full_queue_and_full_server_are_reaped() -> None:
    """maxlen and maxmemory stop sending alone."""
    for engine, _ in servers.engines():
        with servers.start(engine) as server:
            drive = Drive(server.url, "n", "q")
            leased(drive, "L", own("a"), own("b"))
            drive.redis.hset(drive.keys.meta, "maxlen", 1)
            drive.redis.hset(drive.keys.stats, "reaped_ms", OVER)
            drive.redis.config_set("maxmemory", 1)
            assert reaped(drive, "L", visited=None).messages == 2
            drive.close()


def test_invalid_counter_does_not_stop_it(drive: Drive) -> None:
    """Leases are taken back whatever the counters hold."""
    leased(drive, "L", own("a"))
    drive.redis.hset(drive.keys.stats, mapping={"timeouts": "x", "unacked": "y"})
    assert reaped(drive, "L").leases == 1
    assert drive.state("unacked", "lease:L") == {}


@pytest.mark.parametrize(
    ("lease", "visibility", "first_ms"),
    [("r-1-5000", "", OVER - 5000), ("r-1", "20000", OVER - 20_000), ("r-1-x", "", NOW),
     ("r-1-5-6", "", NOW), ("r-1-43200001", "", NOW)],
)  # fmt: skip
def test_first_receive_is_remembered(
    drive: Drive, lease: str, visibility: str, first_ms: int
) -> None:
    """A lost delivery was made, or extended last, a visibility before its deadline: the queue's, or its lease id's."""
    leased(drive, lease, own("a"))
    drive.redis.hset(drive.keys.meta, "visibility_ms", visibility)
    reaped(drive, lease)
    first = own("a", receives=1, timeouts=1, first_ms=first_ms, ready_ms=OVER)
    assert drive.state("suspect") == {"suspect": [first]}
    drive.receive("M", at=OVER, visibility_ms=30_000)
    reaped(drive, "M", at=OVER + 30_000)
    again = own("a", receives=2, timeouts=2, first_ms=first_ms, ready_ms=OVER + 30_000)
    assert drive.state("suspect") == {"suspect": [again]}


def test_strict_pause_of_the_input_keeps_leases(engine_drive: Drive) -> None:
    """While input is paused strictly an overdue lease gets the queue's visibility once more; after it, it is reaped."""
    drive = engine_drive
    drive.send("a", "b")
    drive.receive("L", visibility_ms=10)
    lease = drive.state("lease:L")
    for paused in ("in", "all"):
        drive.redis.hset(
            drive.keys.meta,
            mapping={"paused": paused, "pause_strict": "1", "visibility_ms": "5000"},
        )
        drive.redis.zadd(drive.keys.unacked, {"L": NOW + 10})
        done = drive.run(reap(drive.keys, ["L"], 1000, now_ms=NOW + 20))
        assert (done.leases, done.messages, done.left) == (0, 0, 0)
        assert drive.state("unacked", "lease:L", "ready") == {
            **lease,
            "unacked": {"L": NOW + 5020},
        }
    for meta in ({"paused": "out"}, {"paused": "in", "pause_strict": "0"}):
        drive.redis.hset(drive.keys.meta, mapping=meta)
        drive.redis.zadd(drive.keys.unacked, {"L": NOW + 10})
        assert drive.run(reap(drive.keys, ["L"], 1000, now_ms=NOW + 20)).leases == 1
        drive.receive("L", at=NOW + 20, visibility_ms=10)


@pytest.mark.parametrize("others", [(), ("b", "c")])
def test_message_at_most_once_is_never_delivered_again(
    drive: Drive, others: tuple[str, ...]
) -> None:
    """What may have been run and may not be run twice is dead, alone or in company; its neighbours come back."""
    drive.send("a", flags={"v": "0"})
    if others:
        drive.send(*others)
    drive.receive("L", visibility_ms=10)
    done = drive.run(reap(drive.keys, ["L"], 1000, now_ms=NOW + 10))
    assert (done.messages, done.dead) == (1 + len(others), 1)
    [dead_letter] = drive.state("dead")["dead"]
    assert dead_letter["envelope"].startswith("q1 a ")
    assert dead_letter["reason"] == "max_receives"
    assert drive.stats("stored") == {"stored": len(others)}
