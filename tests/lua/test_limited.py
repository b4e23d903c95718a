"""Outcome `l`: a handler says that it is rate limited; its message goes back, and the queue waits."""

from __future__ import annotations

import pytest

from qworker.engine.attributes import configure
from qworker.engine.poll import poll
from qworker.engine.receive import PAUSED
from qworker.engine.settle import Outcomes
from tests.lua.drive import NOW, Drive, own


def limit(*indexes: str, lease: str = "L", ms: int = 500) -> Outcomes:
    """Rate-limit the messages of a lease."""
    outcomes = Outcomes(lease)
    for index in indexes:
        outcomes.limit(index, ms)
    return outcomes


def test_message_comes_first_again_when_the_queue_has_waited(engine_drive: Drive) -> None:
    """Uncounted, at its old place; the call that says so, and others, receive nothing and are told for how long."""
    drive = engine_drive
    drive.send("a", "b", "c")
    drive.receive("L", 1)
    batch = drive.receive("M", 1, limit("0"))
    assert (batch.items, batch.hint_ms, batch.settled) == ([], 500, (1,))
    for count in (1, 10):
        batch = drive.receive("N", count, at=NOW + 499)
        assert (batch.items, batch.hint_ms) == ([], 1)
    assert drive.state("ready", "unacked", "meta") == {
        "ready": [own("a", receives=1, back_ms=NOW), own("b"), own("c")],
        "meta": {"paused": f"until {NOW + 500}", "limited_ms": f"{NOW}"},
    }
    assert drive.stats("released", "nacked") == {"released": 1}
    batch = drive.receive("O", 1, at=NOW + 500)
    assert [item.split()[1] for item in batch.items] == [b"a"]
    assert drive.state("meta") == {}  # plain again
    assert [item.split()[1] for item in drive.receive("P", 1, at=NOW + 500).items] == [b"b"]


def test_several_wait_for_the_latest(drive: Drive) -> None:
    """In their order, whichever says so last; a shorter time does not end a longer one."""
    for number, name in enumerate("abc"):
        drive.send(name, at=NOW - 3 + number)
    drive.receive("L", 3)
    drive.settle(limit("3", "1", ms=500))
    drive.settle(limit("2", ms=100), at=NOW + 1)
    state = drive.state("ready", "meta")
    assert [item.split()[1] for item in state["ready"]] == ["a", "b", "c"]
    assert state["meta"] == {"paused": f"until {NOW + 500}", "limited_ms": f"{NOW + 1}"}


def test_pauses_of_operators_go_before(drive: Drive) -> None:
    """A pause stays as it is, and a resume ends the wait and wakes workers; with sends paused it is delayed."""
    drive.send("a", "b")
    for mode, ready in (("out", 2), ("in", 1)):
        drive.receive(mode, 1)
        drive.run(configure(drive.keys, {"paused": mode}, now_ms=NOW))
        drive.settle(limit("0", lease=mode))
        state = drive.state("meta", "ready", "delayed")
        assert (state["meta"]["paused"], len(state["ready"])) == (mode, ready)
        assert len(state.get("delayed", ())) == 2 - ready
        drive.run(configure(drive.keys, {"paused": ""}, now_ms=NOW))
    drive.receive("L", 1)
    drive.settle(limit("0"))
    drive.redis.delete(drive.keys.wake)
    drive.send("c")
    assert drive.state("wake") == {}  # nobody is woken for what cannot be received
    drive.run(configure(drive.keys, {"paused": ""}, now_ms=NOW))
    assert drive.state("wake")
    assert drive.receive("M", 1).items


def test_queue_waits_no_longer_after_its_clock_was_set_back(drive: Drive) -> None:
    """By minutes: as long as it was asked to, whether a receive notices that or another limit."""
    drive.send("a", "b")
    drive.receive("L", 2)
    drive.settle(limit("1"))
    back = NOW - 300_000
    assert drive.receive("M", 1, at=back).hint_ms == 500
    assert drive.receive("M", 1, at=back + 400).hint_ms == 100
    drive.settle(limit("2", ms=200), at=back - 300_000)
    assert drive.receive("N", 2, at=back - 300_000).hint_ms == 500
    assert len(drive.receive("O", 2, at=back - 299_500).items) == 2
    assert drive.state("meta") == {}


def test_worker_that_polls_lets_a_receive_notice_that_the_clock_was_set_back(drive: Drive) -> None:
    """It sees messages, so that it comes to receive."""
    drive.send("a")
    drive.redis.hset(drive.keys.meta, mapping={"paused": f"until {2**51}", "limited_ms": 2**50})
    assert len(drive.run(poll([drive.keys])).available) == 1
    assert drive.receive("L", 1).hint_ms == 2**50


def test_worker_that_polls_sees_no_messages(drive: Drive) -> None:
    """As of a paused queue, until the server's clock has reached the time."""
    drive.send("a")
    for until_ms, messages in ((2**52, 0), (1, 1)):
        drive.redis.hset(drive.keys.meta, "paused", f"until {until_ms}")
        polled = drive.run(poll([drive.keys]))
        assert len(polled.available) == messages


@pytest.mark.bad_input("data found: nonsense in other tables")
def test_nonsense_in_its_place_pauses_nothing(drive: Drive) -> None:
    """Only our own form makes receives wait."""
    drive.send("a", "b", "c")
    for number, mode in enumerate(("until", "until x", "until -1", "until 1e99")):
        drive.redis.hset(drive.keys.meta, "paused", mode)
        batch = drive.receive(f"L{number}", 1)
        assert batch.hint_ms != PAUSED
        assert len(batch.items) == (1 if number < 3 else 0)
