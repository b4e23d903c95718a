"""The reaper with more queues than it sweeps together: it asks first which of them hold anything that has a time."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest

from qworker.daemon.pruning import ROUND_S
from qworker.daemon.reaper import Reaper
from qworker.daemon.sweeping import SWEPT_AT_ONCE
from qworker.wire.keys import QueueKeys, queues_key, reapers_key
from tests import servers
from tests.lua.drive import NOW, Drive, own
from tests.timing import Clock

MANY = 2 * SWEPT_AT_ONCE + 7


@pytest.fixture
def crowd() -> Iterator[Callable[[str], Drive]]:
    """Opens queues on a separate server that has many others, all idle."""
    with servers.start("valkey") as server, server.redis() as redis:
        names = [f"q{number:04}" for number in range(MANY)]
        with redis.pipeline(transaction=False) as trip:
            trip.hset(queues_key("t"), mapping=dict.fromkeys(names, 1))
            for name in names:
                trip.hset(QueueKeys("t", name).meta, "test", "1")
            trip.execute()
        opened: list[Drive] = []

        def opening(name: str) -> Drive:
            opened.append(Drive(server.url, "t", name))
            return opened[-1]

        yield opening
        for drive in opened:
            drive.close()


@pytest.mark.slow
def test_whatever_is_due_in_any_of_them_is_moved_at_once(crowd: Callable[[str], Drive]) -> None:
    """Delayed messages and leases are found in the first pass, wherever they are; so is a key of another type."""
    late, lost, wrong = crowd("q0003"), crowd("q0251"), crowd(f"q{MANY - 1:04}")
    late.send("a", delay_ms=5)
    lost.send("b", "c")
    lost.receive("L", visibility_ms=1000)
    wrong.redis.set(wrong.keys.delayed, "other")
    tick = Reaper(late.client, "t").tick(NOW + 1000)
    assert (tick.queues, tick.promoted, tick.leases, tick.messages) == (MANY, 1, 1, 2)
    assert tick.broken == {wrong.keys.queue}


@pytest.mark.slow
def test_neighbours_that_have_several_things_due_are_found_at_once(
    crowd: Callable[[str], Drive],
) -> None:
    """One question covers ten queues; its answer is how many sets of messages with a time they have."""
    neighbours = [crowd(f"q{number:04}") for number in (13, 14, 15)]
    for drive in neighbours:
        drive.send("a", delay_ms=5)
        drive.send("b")
        drive.receive("L", visibility_ms=1000)
    # It stands: on a busy machine the time for moves would be over before the last one.
    reaper = Reaper(neighbours[0].client, "t", clock=Clock())
    tick = reaper.tick(NOW + 1000)
    assert (tick.promoted, tick.leases) == (3, 3)


@pytest.mark.slow
def test_what_expired_at_a_head_is_found_within_ten_passes(crowd: Callable[[str], Drive]) -> None:
    """Every queue has its turn, wherever it is in the list."""
    drives = [crowd(f"q{number:04}") for number in (0, 13, 257, MANY - 1)]
    for drive in drives:
        drive.redis.rpush(drive.keys.ready[0], own("a", flags=f" x={NOW + 1}"))
    reaper = Reaper(drives[0].client, "t")
    assert sum(reaper.tick(NOW + 1000 * index).trimmed for index in range(1, 11)) == len(drives)


@pytest.mark.slow
def test_quiet_queues_cost_a_tenth_of_a_command_each(crowd: Callable[[str], Drive]) -> None:
    """One question asks about ten queues; each pass sweeps a tenth of them."""
    drive = crowd("q0001")
    # It stands: on a busy machine other duties would be due by the second pass.
    reaper = Reaper(drive.client, "t", clock=Clock())
    reaper.tick(NOW)
    drive.redis.config_resetstat()
    reaper.tick(NOW + 1000)
    calls = drive.redis.info("commandstats")
    assert calls["cmdstat_exists"]["calls"] <= MANY / 10 + 2 * 10
    assert calls["cmdstat_evalsha"]["calls"] <= 1


@pytest.mark.slow
def test_slow_upkeep_of_many_queues_takes_a_trip_per_ten(crowd: Callable[[str], Drive]) -> None:
    """Three calls of fifty queues, one after the other, made each pass as late as a distant server's 150 answers."""
    drive, clock = crowd("q0001"), Clock()
    reaper = Reaper(drive.client, "t", clock=clock)
    reaper.tick(NOW)
    drive.redis.config_resetstat()
    clock.now_s += 50 * ROUND_S / MANY + 1
    reaper.tick(NOW + 1000)
    calls = drive.redis.info("commandstats")
    assert calls["cmdstat_evalsha"]["calls"] >= 3 * 50
    assert drive.redis.info("stats")["total_reads_processed"] <= 40


@pytest.mark.slow
def test_a_pass_after_a_long_pause_does_not_prune_all_queues(crowd: Callable[[str], Drive]) -> None:
    """Their turns are over due since, and messages that are due have waited as well."""
    drive, clock = crowd("q0001"), Clock()
    reaper = Reaper(drive.client, "t", clock=clock)
    reaper.tick(NOW)
    drive.redis.config_resetstat()
    clock.now_s += 10 * ROUND_S
    reaper.tick(NOW + 1000)
    assert 3 * 50 <= drive.redis.info("commandstats")["cmdstat_evalsha"]["calls"] < 4 * 50


@pytest.fixture
def pausing(crowd: Callable[[str], Drive]) -> tuple[Drive, Reaper, Clock]:
    """A reaper among a thousand, which checks idle queues every five seconds, after its first passes."""
    drive, clock = crowd("q0100"), Clock()
    reaper = Reaper(drive.client, "t", clock=clock)
    drive.redis.zadd(reapers_key("t"), {f"r{number}": NOW for number in range(1000)})
    for passed in range(8):
        clock.now_s += 1
        reaper.tick(NOW + 1000 * passed)
    return drive, reaper, clock


@pytest.mark.slow
def test_delayed_message_of_an_idle_queue_is_found_within_the_pause(
    pausing: tuple[Drive, Reaper, Clock],
) -> None:
    """The first one within five seconds and a tick; the next ones, while the queue is active, in the next pass."""
    drive, reaper, clock = pausing
    at, promoted = NOW + 8000, []
    drive.send("a", delay_ms=1, at=at)
    for _ in range(6):
        at, clock.now_s = at + 1000, clock.now_s + 1
        promoted.append(reaper.tick(at).promoted)
    assert sum(promoted) == 1
    for name in "bcdefgh":
        drive.send(name, delay_ms=1, at=at)
        at, clock.now_s = at + 1000, clock.now_s + 1
        assert reaper.tick(at).promoted == 1


@pytest.mark.parametrize("stands", [False, True])
@pytest.mark.slow
def test_pause_is_not_a_gap_but_a_frozen_reaper_has_one(
    pausing: tuple[Drive, Reaper, Clock], stands: bool
) -> None:
    """A lease of an idle queue is reaped when it runs out, without grace, unless no reaper ran meanwhile."""
    drive, reaper, clock = pausing
    at = NOW + 8000
    drive.send("a", "b", at=at)
    drive.receive("L", at=at, visibility_ms=5_500)
    reaped = []
    for _ in range(7):
        pause = 20 if stands and not reaped else 1
        at, clock.now_s = at + 1000 * pause, clock.now_s + pause
        reaped.append(reaper.tick(at).messages)
    assert reaped == ([0] * 6 + [2] if stands else [0] * 5 + [2, 0])
    assert drive.stats("gaps") == ({"gaps": 1} if stands else {})
