"""What the journal has of runs and groups of calls: each step once, each beginning once, each decision once."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from typing import Any

import pytest

from qworker.engine.calls import WaitingRun, abandon
from qworker.engine.receive import settle_receive
from qworker.engine.remove import purge
from qworker.engine.repair import repair_join
from qworker.engine.run import StepRecord, record_step
from qworker.engine.send import NewMessage, send
from qworker.engine.settle import Outcomes
from qworker.errors import LeaseLostError
from qworker.wire.envelope import tail
from qworker.wire.keys import QueueKeys
from tests import servers
from tests.lua.drive import NOW, Drive
from tests.lua.instructions import Counter
from tests.lua.test_calls import DEAD, OK, count, spec_of, start
from tests.lua.test_journal import header, lines_of
from tests.lua.test_run import HEADER, received, recorded

#: The header of an event that is of no message.
NO_ONE = f"- {NOW} 0 0 0 0"


@pytest.fixture(params=["all", "outcomes"])
def journal(drive: Drive, request: pytest.FixtureRequest) -> Drive:
    """A queue whose journal has outcomes, and perhaps all."""
    drive.redis.hset(drive.keys.meta, "journal", request.param)
    return drive


def told(drive: Drive, *events: str) -> list[str]:
    """The new lines of the journal with these events: `<event> <reason> <header>`."""
    parted = [line.split(" ", 7) for line in lines_of(drive)]
    return [f"{parts[0]} {parts[5]} {parts[7]}" for parts in parted if parts[0] in events]


def digest(value: bytes) -> str:
    return hashlib.sha1(value).hexdigest()[:16]


# -- steps ----------------------------------------------------------------------------------------


def test_a_step_is_told_with_the_attempt_and_a_digest(journal: Drive) -> None:
    """Once, with the header of its message before it: a value that does not count is not told."""
    received(journal, "a")
    recorded(journal, value=b" l=4\n1")
    recorded(journal, value=b"\n2", at=NOW + 5)
    assert told(journal, "step") == [
        f"step charge={digest(b' l=4' + bytes([10]) + b'1')} {header('a', flags=HEADER)}"
    ]
    outcomes = Outcomes("L")
    outcomes.nack(0, 0)
    journal.settle(outcomes)
    journal.receive("M")
    recorded(journal, "ship", b"\n3", lease_id="M", progress=True)
    [line] = told(journal, "step")
    assert line.startswith(f"step ship={digest(bytes([10]) + b'3')} a {NOW} 1 1 0 0")


def test_steps_of_one_call_are_told_one_by_one(journal: Drive) -> None:
    """In their order; of two of a name the first one."""
    received(journal, "a")
    command = record_step(journal.keys, StepRecord("a", "L", "0", "one", b"\n1"), now_ms=NOW)
    more = type(command)(
        command.script,
        command.keys,
        (*command.args, "one", b"\n2", "two", b"\n2"),
        lambda reply: reply,
    )
    journal.run(more)
    assert [line.split()[1] for line in told(journal, "step")] == [
        f"one={digest(bytes([10]) + b'1')}",
        f"two={digest(bytes([10]) + b'2')}",
    ]


@pytest.mark.parametrize(
    ("name", "written"),
    [
        ("rows[3].mail#2", "rows[3].mail#2"),
        ("a=b", "a%3Db"),
        ("a%3Db", "a%253Db"),
        ("größe", "gr%C3%B6%C3%9Fe"),
        ("x\x01y\x00", "x%01y%00"),
        ("!go", "!go"),
        ("n" * 128, "n" * 128),
    ],
)
def test_no_two_names_of_steps_are_written_alike(drive: Drive, name: str, written: str) -> None:
    """Whatever they are made of."""
    drive.redis.hset(drive.keys.meta, "journal", "all")
    received(drive, "a")
    recorded(drive, name)
    [line] = told(drive, "step")
    assert line.split()[1] == f"{written}={digest(bytes([10]) + b'1')}"


def test_a_refused_step_is_not_told(journal: Drive) -> None:
    """Neither is one of a delivery that has lost its lease."""
    received(journal, "a")
    with pytest.raises(LeaseLostError):
        recorded(journal, lease_id="M")
    assert told(journal, "step") == []


def test_a_journal_that_is_off_costs_a_step_one_command(namespace: str) -> None:
    """The read of its mode: nothing is written, and no digest computed."""
    with servers.start("valkey", far=False) as server, Counter(server) as counter:
        keys = QueueKeys(namespace, "q")
        counter.run(
            send(keys, [NewMessage("a", tail(b"{}", {"c": "1", "r": "9"}))], lane="a", sequence=1)
        )
        counter.run(settle_receive(keys, "L", 1))
        counter.run(record_step(keys, StepRecord("a", "L", "0", "one", b"\n1")))
        counter.run(record_step(keys, StepRecord("a", "L", "0", "two", b"\n1")))
        # TIME, HEXISTS, HMGET of the run, HMGET of the mode, HSET
        assert counter.calls == 5


def test_a_broken_journal_refuses_a_step_before_it_is_recorded(journal: Drive) -> None:
    """As every other script does."""
    received(journal, "a")
    journal.redis.delete(journal.keys.journal)
    journal.redis.set(journal.keys.journal, "x")
    with pytest.raises(Exception, match="journal"):
        recorded(journal)
    assert not journal.redis.exists(journal.keys.run("a"))


@pytest.mark.parametrize(
    ("name", "signal", "reason"),
    [("~sleep", "", "sleep"), ("~wait:go", "!go", "signal"), ("~gather#1", "!gather#1", "gather")],
)
def test_a_parked_run_says_what_it_waits_for(
    journal: Drive, name: str, signal: str, reason: str
) -> None:
    """As the reason of its release."""
    outcomes = received(journal, "a")
    outcomes.park(0, 1000, name, signal)
    journal.settle(outcomes)
    [line] = [line for line in lines_of(journal) if line.startswith("released")]
    assert line.split()[5] == reason


# -- groups of calls ------------------------------------------------------------------------------


def test_a_group_is_told_once_when_it_begins(journal: Drive) -> None:
    """However often its start is repeated, and in however many parts."""
    members = spec_of(3).members
    start(journal, spec_of(3, policy="successes", members=members[:2]))
    start(journal, spec_of(3, policy="successes", members=members[:2]))
    start(journal, spec_of(3, policy="successes", first=2, members=members[2:]), 2)
    assert told(journal, "group_begun") == [f"group_begun g:{NOW}:3:successes:g {NO_ONE}"]


@pytest.mark.parametrize(
    ("policy", "ends", "outcome"),
    [
        ("all", [(0, OK), (1, DEAD)], "ok:g"),
        ("successes", [(0, OK), (1, OK)], "ok:g"),
        ("successes", [(0, OK), (1, b"discarded b t g.1")], "failed:-"),
        ("first", [(1, OK)], "ok:g"),
        ("first", [(1, b"expired b t g.1"), (0, b"purged b t g.0")], "failed:-"),
    ],
)
def test_a_group_is_told_once_when_it_is_decided(
    journal: Drive, policy: Any, ends: list[tuple[int, bytes]], outcome: str
) -> None:
    """By the end that decides it; later ones, and ends told again, add nothing."""
    start(journal, spec_of(2, policy=policy))
    told(journal)
    if ends[:-1]:
        count(journal, *ends[:-1])
    assert told(journal, "group_decided") == []
    count(journal, ends[-1], first=5)
    count(journal, ends[-1], first=5)
    count(journal, (0, OK), (1, OK), first=9)
    assert told(journal, "group_decided") == [f"group_decided g:{NOW}:{outcome} {NO_ONE}"]


def _abandoned(drive: Drive) -> None:
    drive.run(abandon(drive.keys, ["g"], "purged", now_ms=NOW))


def _cancelled(drive: Drive) -> None:
    drive.run(abandon(drive.keys, ["g"], "cancelled", now_ms=NOW))


def _lost(drive: Drive) -> None:
    drive.redis.delete(drive.keys.join("g"))
    drive.run(repair_join(drive.keys, [b"g"], [], repair=False))
    drive.run(repair_join(drive.keys, [b"g"], [], repair=True))


@pytest.mark.parametrize(
    ("end", "outcome"),
    [(_abandoned, "abandoned:-"), (_cancelled, "cancelled:-"), (_lost, "lost:-")],
)
def test_a_group_that_ends_otherwise_is_told_as_well(
    journal: Drive, end: Callable[[Drive], None], outcome: str
) -> None:
    """By operators and repairs, so that no audit waits for its decision; a second time it is not told."""
    start(journal, spec_of(2))
    end(journal)
    end(journal)
    [line] = told(journal, "group_decided")
    assert line.split()[1] == f"g:{NOW}:{outcome}"


@pytest.mark.parametrize(
    ("end", "outcome"),
    [
        (lambda drive: count(drive, (0, OK)), "ok:r"),
        (_cancelled, "cancelled:r"),
        (_abandoned, "abandoned:-"),
        (lambda drive: drive.run(purge(drive.keys, "delayed", now_ms=NOW)), "ended:-"),
    ],
)
def test_a_gather_names_the_run_that_continues(
    journal: Drive, end: Callable[[Drive], Any], outcome: str
) -> None:
    """A run that ends before its gather is decided ends it, too."""
    outcomes = received(journal, "r")
    run = {"then": None, "run": ("r", "!gather#1")}
    start(journal, spec_of(1, **run), run=WaitingRun("r", "L", "0"))
    outcomes.park(0, None, "~gather#1", "!gather#1")
    journal.settle(outcomes)
    end(journal)
    end(journal)
    assert [line.split()[1] for line in told(journal, "group_begun", "group_decided")] == [
        f"g:{NOW}:1:all:r",
        f"g:{NOW}:{outcome}",
    ]


def test_a_journal_that_is_off_is_told_nothing_of_groups(drive: Drive) -> None:
    """And counts nothing."""
    start(drive, spec_of(1))
    count(drive, (0, OK))
    assert drive.state("journal") == {}
    assert drive.stats("journal_entries", "journal_events") == {}
