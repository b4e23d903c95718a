"""What a message costs in commands and round trips, which no other load on the machine can change."""

from __future__ import annotations

from collections import Counter

import pytest

from benchmarks.apps import app
from benchmarks.contenders import of_ours
from benchmarks.stand import PAD, Stand, wait_until

_BATCH = 100
_TURNS = 20
_ALONE = 1000


def _calls(stand: Stand) -> Counter[str]:
    stats = stand.redis.info("commandstats")
    calls = {name.removeprefix("cmdstat_"): stat["calls"] for name, stat in stats.items()}
    calls.pop("info", None)
    return Counter(calls)


def test_a_batch_takes_three_calls_and_no_more_commands_than_it_did() -> None:
    with Stand() as stand:
        queue = stand.queue()

        def turn() -> None:
            queue.send_many({"number": number, "pad": PAD} for number in range(_BATCH))
            assert len(queue.ack(*queue.receive(_BATCH))) == _BATCH

        turn()
        before, spent = _calls(stand), stand.spent()
        for _ in range(_TURNS):
            turn()
        each = (_calls(stand) - before).total() / _TURNS
        calls = (_calls(stand) - before)["evalsha"] / _TURNS
        reads = (stand.spent() - spent).reads / _TURNS
    assert calls == 3  # send, receive, ack
    assert each <= 170, "a batch runs more commands than it did: one per ack, the rest per call"
    # A request of 14 kB may come in two reads; what measures this costs one or two in all.
    assert reads <= 5


def test_looks_of_a_benchmark_do_not_count_as_what_it_measures() -> None:
    with Stand() as stand:
        queue = stand.queue()
        queue.send("one")
        before = stand.spent()
        for _ in range(50):
            assert stand.stored(queue) == 1
        spent = stand.spent() - before
    assert spent.commands == 0
    assert spent.reads <= 2  # of what measures this


@pytest.mark.slow
def test_a_message_alone_takes_two_round_trips() -> None:
    """A worker of one at a time acks each with the receive of the next, by the short ways of the scripts."""
    spent = of_ours(_ALONE, 1)
    # A few are the worker's own: beats, ticks of its reaper, its wait for the first message.
    assert spent["round_trips"] <= 2.2
    assert spent["commands"] <= 19


@pytest.mark.slow
def test_a_message_for_an_idle_worker_takes_three_calls_and_trips() -> None:
    """It is sent, received as its bell rings, and acked by the next receive; a wait and its receive are one write."""
    turns, looks = 3 * _TURNS, 0
    with Stand() as stand:
        app.connect_with(stand.factory)
        queue = app.queue("drain")

        def is_waiting() -> bool:
            nonlocal looks
            looks += 1
            return bool(stand.redis.info("clients")["blocked_clients"] == 1)

        with stand.qworker("run", "benchmarks.apps:app", "--procs", "1", "--no-reaper"):

            def turn() -> None:
                app.tasks["noop"].send(0, PAD)
                wait_until(lambda: not stand.stored(queue))
                wait_until(is_waiting)

            turn()
            looks = 0
            before, spent = _calls(stand), stand.spent()
            for _ in range(turns):
                turn()
            calls = _calls(stand) - before
            reads = (stand.spent() - spent).reads - looks
        app.close()
    # The worker beats meanwhile, and a wait that ends without a bell is followed by a receive, too.
    assert calls["lindex"] == turns
    assert calls["evalsha"] <= 3 * turns + turns // 3
    assert reads <= 3 * turns + turns // 2
