"""The reaper's pass: what it moves, what it reports, and that no queue stops another."""

from __future__ import annotations

from collections.abc import Callable
from itertools import count
from typing import Any

import pytest

from qworker.client.execute.sync import Client
from qworker.daemon.moving import PROMOTED_AT_ONCE
from qworker.daemon.reaper import Reaper
from qworker.daemon.sweeping import MAX_TICK_MS
from qworker.engine.settle import Outcomes
from qworker.errors import InvalidOptionError, ServerError
from qworker.wire.keys import queues_key
from tests import servers
from tests.daemon.conftest import events
from tests.lua.drive import NOW, Drive, deny, guarded, own
from tests.timing import Clock

OpenQueue = Callable[..., Drive]


def counted(tick: object) -> dict[str, Any]:
    """The fields of a tick that are set, without durations and presence."""
    fields = {name: getattr(tick, name) for name in tick.__slots__}  # type: ignore[attr-defined]
    return {
        name: value
        for name, value in fields.items()
        if value and name not in ("sweep_s", "elapsed_s", "reapers")
    }


@pytest.fixture
def reaper(client: Client, namespace: str) -> Reaper:
    """A reaper with the defaults."""
    return Reaper(client, namespace)


def test_quiet_queue_costs_a_look(reaper: Reaper, open_queue: OpenQueue) -> None:
    """If nothing is due, a pass reports the time and does not change the queue."""
    queue = open_queue("a")
    queue.send("m")
    before = queue.state()
    assert counted(reaper.tick(NOW)) == {"now_ms": NOW, "queues": 1}
    assert queue.state() == before


def test_moves_due_messages(reaper: Reaper, open_queue: OpenQueue) -> None:
    """A delayed message becomes ready at its due time, and the pass reports how late that was."""
    queue = open_queue("a")
    queue.send("m", delay_ms=70)
    queue.send("n", delay_ms=90)
    assert counted(reaper.tick(NOW + 69)) == {
        "now_ms": NOW + 69,
        "queues": 1,
        "next_wake_ms": NOW + 70,
    }
    assert counted(reaper.tick(NOW + 75)) == {
        "now_ms": NOW + 75,
        "queues": 1,
        "promoted": 1,
        "lateness_ms": 5,
        "next_wake_ms": NOW + 90,
    }
    assert queue.state("ready", "delayed") == {
        "ready": [own("m", ready_ms=NOW + 70)],
        "delayed": {own("n", ready_ms=NOW + 90): NOW + 90},
    }


def test_takes_back_leases_that_ran_out(reaper: Reaper, open_queue: OpenQueue) -> None:
    """Messages of an overdue lease are ready again, shared blame counted; one alone becomes a suspect."""
    queue = open_queue("a")
    queue.send("m", "n", "o")
    queue.receive("L", 2, visibility_ms=1000)
    queue.receive("M", 1, visibility_ms=1500)
    assert counted(reaper.tick(NOW + 999)) == {
        "now_ms": NOW + 999,
        "queues": 1,
        "next_wake_ms": NOW + 1000,
    }
    assert counted(reaper.tick(NOW + 1600)) == {
        "now_ms": NOW + 1600,
        "queues": 1,
        "leases": 2,
        "messages": 3,
        "suspects": 1,
        "lateness_ms": 600,
    }
    # A lease that does not tell its visibility is taken for one of the queue's, which is 30 s.
    first = {"m": NOW - 29_000, "n": NOW - 29_000, "o": NOW - 28_500}
    assert queue.state("ready", "suspect", "unacked") == {
        "ready": [
            own(name, receives=1, shared=1, first_ms=first[name], back_ms=NOW + 1600)
            for name in "mn"
        ],
        "suspect": [own("o", receives=1, timeouts=1, first_ms=first["o"], ready_ms=NOW + 1600)],
    }


def test_buries_at_max_receives(reaper: Reaper, open_queue: OpenQueue) -> None:
    """The last timeout of a message is counted as a dead letter."""
    queue = open_queue("a")
    queue.redis.hset(queue.keys.meta, "max_receives", 1)
    queue.send("m")
    queue.receive("L", 1, visibility_ms=1000)
    tick = reaper.tick(NOW + 1000)
    assert (tick.messages, tick.dead, tick.suspects) == (1, 1, 0)


def test_trims_expired_heads(reaper: Reaper, open_queue: OpenQueue) -> None:
    """Expired messages at the head of ready are removed, and an expired delayed one ends unmoved."""
    queue = open_queue("a")
    queue.send("m", "n", ttl_ms=10)
    queue.send("o", ttl_ms=10, delay_ms=5)
    tick = reaper.tick(NOW + 10)
    assert (tick.trimmed, tick.ended, tick.promoted, tick.moved) == (2, 1, 0, 3)
    assert queue.state("ready", "delayed") == {}


def test_moves_messages_of_a_paused_queue_without_ringing(
    reaper: Reaper, open_queue: OpenQueue
) -> None:
    """A pause stops send or receive, not the reaper; no consumer is woken while receives pause."""
    queue = open_queue("a")
    queue.send("m", delay_ms=10)
    queue.send("n")
    queue.receive("L", 1, visibility_ms=1000)
    queue.redis.delete(queue.keys.wake)
    queue.redis.hset(queue.keys.meta, "paused", "all")
    tick = reaper.tick(NOW + 1000)
    assert (tick.promoted, tick.messages) == (1, 1)
    assert "wake" not in queue.state()


def test_grace_after_a_gap_neither_reaps_nor_spins(reaper: Reaper, open_queue: OpenQueue) -> None:
    """After a gap overdue leases wait for their consumers, and the loop is not woken for them at once."""
    queue = open_queue("a")
    queue.send("m")
    queue.receive("L", 1, visibility_ms=1000)
    gap = reaper.tick(NOW + 10_000)
    assert (gap.leases, gap.next_wake_ms, gap.more) == (0, None, False)
    for at in (NOW + 12_000, NOW + 14_000, NOW + 15_999):
        assert reaper.tick(at).leases == 0
    assert reaper.tick(NOW + 16_001).leases == 1


def test_large_backlog_is_moved_in_slices_within_the_budget(
    client: Client, namespace: str, open_queue: OpenQueue
) -> None:
    """With a budget of one call a pass moves one slice and says that there is more."""
    queue = open_queue("a")
    at_once = PROMOTED_AT_ONCE * 5 // 6
    for number in range(3):
        queue.send(*(f"m{number}.{index:03}" for index in range(at_once)), delay_ms=1 + number)
    reaper = Reaper(client, namespace, budget_ms=0)
    ticks = [reaper.tick(NOW + 5) for _ in range(4)]
    rest = 3 * at_once - 2 * PROMOTED_AT_ONCE
    assert [tick.promoted for tick in ticks] == [PROMOTED_AT_ONCE, PROMOTED_AT_ONCE, rest, 0]
    assert [tick.more for tick in ticks] == [True, True, False, False]
    assert [item.split()[1] for item in queue.state("ready")["ready"]] == [
        f"m{number}.{index:03}" for number in range(3) for index in range(at_once)
    ]


def test_looking_does_not_use_up_the_time_for_moving(
    client: Client, namespace: str, open_queue: OpenQueue, clock: Clock
) -> None:
    """However long the sweep of all queues takes, a pass has its whole budget for moving."""
    queue = open_queue("a")
    queue.send(*(f"m{number}" for number in range(1000)), delay_ms=1)
    queue.send(*(f"n{number}" for number in range(1000)), delay_ms=1)

    def slow_clock() -> float:
        clock.now_s += 0.03
        return clock.now_s

    reaper = Reaper(client, namespace, budget_ms=100, clock=slow_clock)
    tick = reaper.tick(NOW + 5)
    assert tick.sweep_s > 0.05
    assert tick.promoted > PROMOTED_AT_ONCE


def test_queues_take_turns(
    client: Client, namespace: str, open_queue: OpenQueue, clock: Clock
) -> None:
    """A queue with a long backlog gets a slice per round: the others are served within the first rounds."""
    big, first, last = open_queue("m"), open_queue("a"), open_queue("z")
    for index in range(3):
        big.send(*(f"m{index}.{number}" for number in range(1000)), delay_ms=1)
    for queue in (first, last):
        queue.send("m", delay_ms=1)
    reaper = Reaper(client, namespace, budget_ms=0, clock=clock)
    for _ in range(4):
        tick = reaper.tick(NOW + 5)
        assert tick.more
    assert first.state("delayed") == last.state("delayed") == {}
    assert len(big.state("delayed")["delayed"]) == 3000 - 2 * PROMOTED_AT_ONCE


@pytest.mark.slow
def test_more_overdue_leases_than_a_sweep_names(
    client: Client, namespace: str, open_queue: OpenQueue
) -> None:
    """All overdue leases of a queue are taken back in one pass, however many, in order of their deadlines."""
    reaper = Reaper(
        client, namespace, budget_ms=60_000
    )  # not what a busy machine leaves of half a second
    queue = open_queue("a")
    queue.send(*(f"m{number:03}" for number in range(350)))
    for number in range(175):
        queue.receive(f"L{number}", 2, visibility_ms=1000, at=NOW + number)
    tick = reaper.tick(NOW + 1500)
    assert (tick.leases, tick.messages, tick.lateness_ms, tick.more) == (175, 350, 500, False)
    assert len(queue.state("ready")["ready"]) == 350
    assert queue.stats("unacked", "stored") == {"unacked": 0, "stored": 350}


def test_reaps_few_large_leases_at_once(
    client: Client, namespace: str, open_queue: OpenQueue
) -> None:
    """Leases of 1,000 are taken back one per call: a call stays short whatever the leases hold."""
    queue = open_queue("a")
    for lease in ("L", "M", "N"):
        queue.send(*(f"{lease}{number}" for number in range(1000)))
        queue.receive(lease, 1000, visibility_ms=1000)
    reaper = Reaper(client, namespace, budget_ms=0)
    assert [reaper.tick(NOW + 1000 + index).messages for index in range(4)] == [1000, 1000, 1000, 0]


@pytest.mark.bad_input("data found: body that is very large")
@pytest.mark.slow
def test_large_bodies_end_a_call_and_the_pass_continues(
    client: Client, namespace: str, open_queue: OpenQueue
) -> None:
    """Leases of large messages, more than one call takes, are all taken back."""
    queue = open_queue("a")
    reaper = Reaper(client, namespace, budget_ms=60_000)  # however slow the machine is
    queue.send(*(f"s{number}" for number in range(10)))
    for number in range(5):
        queue.receive(f"S{number}", 2, visibility_ms=900)
    for number in range(8):
        queue.send(f"m{number}", body=lambda _: b"x" * 600_000)
        queue.receive(f"L{number}", 1, visibility_ms=1000)
    tick = reaper.tick(NOW + 1000)
    assert (tick.leases, tick.messages, tick.more) == (13, 18, False)
    assert queue.state("unacked") == {}


@pytest.mark.bad_input("data found: key of another type")
@pytest.mark.parametrize("part", ["unacked", "delayed", "ready", "stats", "wake", "dead"])
def test_broken_queue_does_not_stop_the_others(
    client: Client,
    namespace: str,
    open_queue: OpenQueue,
    clock: Clock,
    logs: list[dict[str, object]],
    part: str,
) -> None:
    """A key of another type marks its queue broken and leaves it as it is; it is logged once a minute."""
    broken, whole = open_queue("a"), open_queue("b")
    for queue in (broken, whole):
        queue.send("m", delay_ms=5)
    broken.redis.delete(broken.base + part)
    broken.redis.set(broken.base + part, "x")
    if part == "delayed":
        broken.redis.zadd(broken.keys.unacked, {"L": NOW})
    before = broken.state()
    reaper = Reaper(client, namespace, clock=clock)
    tick = reaper.tick(NOW + 5)
    assert (tick.broken, tick.promoted, tick.more) == ({"a"}, 1, False)
    assert broken.state() == before
    reaper.tick(NOW + 6)
    clock.now_s += 60
    reaper.tick(NOW + 7)
    lines = events(logs, "queue_broken")
    assert [(line["queue"], line["held_back"] != 0) for line in lines] == [
        ("a", False),
        ("a", True),
    ]
    assert f"{broken.base}{part}" in str(lines[0]["problem"])
    assert lines[0]["fix"] == "qworker fsck a --repair renames the key"


def test_a_broken_priority_that_is_not_in_use_is_reported(
    open_queue: OpenQueue, client: Client, namespace: str, clock: Clock
) -> None:
    """Only the count of stored messages looks there, once in five minutes."""
    broken = open_queue("a")
    broken.send("m")
    broken.redis.set(broken.keys.ready[7], "x")
    reaper = Reaper(client, namespace, clock=clock)
    ticks = [reaper.tick(NOW)]
    clock.now_s += 301
    ticks.append(reaper.tick(NOW))
    assert set().union(*(tick.broken for tick in ticks)) == {"a"}


@pytest.mark.bad_input("data found: dead letters that take no entry")
def test_lease_that_the_script_fails_on_is_set_aside(logs: list[dict[str, object]]) -> None:
    """If a reap of several leases fails, they are tried one by one, and only the failing one is set aside."""
    with guarded() as queue:
        queue.redis.hset(queues_key(queue.namespace), queue.keys.queue, 1)
        reaper = Reaper(queue.client, queue.namespace)
        queue.send("m", "n", "o")
        for lease_id in "KLM":
            queue.receive(lease_id, 1, visibility_ms=1000)
        queue.redis.hset(queue.keys.lease("L"), "0", "foreign")
        deny(queue, "xadd")  # burying raises in the middle of the script
        tick = reaper.tick(NOW + 1000)
        assert (tick.leases, tick.messages, tick.set_aside, tick.errors) == (2, 2, 1, 1)
        assert queue.state("unacked") == {"unacked": {"L": NOW + 61_000}}
        assert [line["lease_id"] for line in events(logs, "queue_failed")] == ["L"]
        assert reaper.tick(NOW + 1001).set_aside == 0


@pytest.mark.slow
def test_forgets_idle_lanes_and_tombstones_a_few_queues_at_a_time(
    client: Client, namespace: str, open_queue: OpenQueue, clock: Clock
) -> None:
    """Each queue has its turn at slow upkeep within five minutes, and is pruned to its end then."""
    queues = [open_queue(name) for name in "abc"]
    for queue in queues:
        lanes = {f"lane{number}": f"1 {NOW}" for number in range(1000)}
        queue.redis.hset(queue.keys.producers, mapping=lanes)
        queue.redis.zadd(queue.keys.cancelled, {"id": NOW})
        queue.send("m", ttl_ms=5, priority=3)
    reaper = Reaper(client, namespace, clock=clock)
    later = NOW + 900_000
    pruned = reaper.tick(later).pruned
    assert pruned == 1001
    for _ in range(40):
        clock.now_s += 10
        pruned += reaper.tick(later).pruned
    assert pruned == 3 * 1001
    for queue in queues:
        assert queue.state("producers", "cancelled", "ready:3") == {}


def test_pruning_takes_its_share_of_a_pass_and_continues_in_the_next(
    client: Client, namespace: str, open_queue: OpenQueue
) -> None:
    """However much is over, a pass prunes a slice of each queue in turn, as long as its share of time lasts."""
    queue = open_queue("a")
    queue.send("m")
    queue.redis.hset(queue.keys.unique, mapping={f"k{number}": "m 1" for number in range(4200)})
    looks = count()
    # Each look at the clock takes 10 ms, against a share of 50 ms.
    reaper = Reaper(client, namespace, clock=lambda: next(looks) / 100)
    passes = []
    while queue.redis.exists(queue.keys.unique):
        passes.append(reaper.tick(NOW).pruned)
    assert sum(passes) == 4200
    assert 2 <= len(passes) <= 17
    assert all(250 <= pruned <= 3000 for pruned in passes[:-1])


def test_full_server_is_drained(client: Client) -> None:
    """Over maxmemory promote and reap continue, and the reaper stays on the list of reapers."""
    with servers.start("valkey") as server:
        queue = Drive(server.url, "n", "q")
        queue.redis.hset("n:queues", "q", 1)
        queue.send("m", delay_ms=5)
        queue.redis.config_set("maxmemory", 1)
        reaper = Reaper(queue.client, "n")
        assert reaper.tick(NOW + 5).promoted == 1
        assert queue.redis.zcard("n:reapers") == 1
        queue.close()


def test_server_that_is_gone_fails_the_pass(namespace: str) -> None:
    """A server that does not serve is an error of the whole pass: the loop decides about it."""
    with servers.start("valkey") as server:
        drive = Drive(server.url, namespace, "q")
        reaper = Reaper(drive.client, namespace)
        reaper.tick()
        drive.redis.close()
    with pytest.raises(ServerError):
        reaper.tick()
    reaper.close()


def test_settled_lease_named_by_the_sweep_is_not_an_error(
    reaper: Reaper, open_queue: OpenQueue
) -> None:
    """A lease that its consumer settles just before the reap is left alone."""
    queue = open_queue("a")
    queue.send("m")
    queue.receive("L", 1, visibility_ms=1000)
    queue.settle(Outcomes("L", ack_all=True), at=NOW + 1000)
    assert counted(reaper.tick(NOW + 1000)) == {"now_ms": NOW + 1000, "queues": 1}


def test_no_queue_at_all(reaper: Reaper) -> None:
    """Without a queue a pass still reports the server's time."""
    tick = reaper.tick()
    assert tick.queues == 0
    assert tick.now_ms > 1_500_000_000_000


@pytest.mark.parametrize("tick_ms", [0, -1, MAX_TICK_MS + 1])
def test_tick_out_of_range_is_refused(client: Client, namespace: str, tick_ms: int) -> None:
    """A tick that the scripts would refuse is refused at once."""
    with pytest.raises(InvalidOptionError) as caught:
        Reaper(client, namespace, tick_ms=tick_ms)
    assert str(caught.value) == f"tick: is {tick_ms} ms; it must be from 1 ms to 60 s"
