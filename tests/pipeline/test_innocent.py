"""What looks like a loss or a second end and is none: the audit accuses no message of these queues.

Each case has its own queue. All are archived, changed, archived again, and audited together with the live journal.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass

import pytest

from qworker.client.queue import Queue
from qworker.engine.attributes import configure
from qworker.engine.options import SendOptions
from qworker.engine.run import start_run
from qworker.engine.send import NewMessage
from qworker.engine.settle import Outcomes
from qworker.pipeline.jobs import audit_counts
from qworker.pipeline.jobs.archive import archive
from qworker.pipeline.jobs.audit import AuditResult, Window
from qworker.pipeline.jobs.lake import Lake
from qworker.pipeline.jobs.reading import server_options
from qworker.pipeline.jobs.run_audit import audit_all, audit_increment
from qworker.wire.envelope import tail
from qworker.wire.keys import queues_key
from tests.journals import groups_of
from tests.lua.drive import Drive

pytestmark = [pytest.mark.slow, pytest.mark.wrongs, pytest.mark.timeout(600)]

#: An audit of all, which has nothing to carry, at night.
FULL = pytest.param(
    "full",
    marks=pytest.mark.nightly("test_acks_of_a_call_that_does_not_know_which_counted_are_unsure"),
)
KINDS = (FULL, "increment")


@dataclass
class Innocent:
    """Queues with a journal of everything."""

    url: str
    namespace: str
    drives: dict[str, Drive]
    #: Audits by kind, made when a test asks for them.
    audits: dict[str, Callable[[], AuditResult]]
    results: dict[str, AuditResult]

    def journalled(self, name: str, mode: str = "all") -> Drive:
        """Open a queue; create it if it is new."""
        if name not in self.drives:
            drive = self.drives[name] = Drive(self.url, self.namespace, name)
            drive.redis.hset(queues_key(self.namespace), name, 1)
        drive = self.drives[name]
        drive.run(configure(drive.keys, {"journal": mode}))
        drive.redis.hdel(drive.keys.meta, "test")  # the server's clock
        return drive

    def start(self, name: str, run: str) -> None:
        """Start a run under an id of the caller."""
        drive = self.journalled(name)
        message = NewMessage(run, tail(b"{}", {"c": "1"}))
        drive.run(start_run(drive.keys, message, b"call", SendOptions()))

    def forget(self, name: str, run: str) -> None:
        """Let the state of a run expire."""
        drive = self.drives[name]
        drive.redis.delete(drive.keys.run(run))

    def result(self, kind: str) -> AuditResult:
        """What an audit found."""
        if kind not in self.results:
            self.results[kind] = self.audits[kind]()
        return self.results[kind]

    def accused(self, kind: str, name: str) -> dict[str, set[str]]:
        """Ids of a queue that the audit names, by finding; open ones are not a finding."""
        found: dict[str, set[str]] = {}
        for finding, rows in self.result(kind).samples.items():
            ids = {row["message_id"] for row in rows if row["queue"] == name}
            if ids and finding != "open":
                found[finding] = ids
        return found

    def holes(self, kind: str, name: str) -> list[str]:
        return [hole["why"] for hole in self.result(kind).holes if hole["queue"] == name]


#: The ids of a group's call and of a callback: one that the caller chose, and one that qworker drew.
CALL, CALLBACK = "nightly.0", "jrrhutyfa40000000001"


def receive(drive: Drive, lease: str, *outcomes: Outcomes) -> None:
    drive.receive(lease, 100, *outcomes, at=None)


def settle(drive: Drive, *outcomes: Outcomes) -> None:
    drive.settle(*outcomes, at=None)


def early(world: Innocent) -> None:
    stale = world.journalled("stale")
    stale.send("a", "b", "c", at=None)
    receive(stale, "L")
    for name, run in (("again", "invoice-17"), ("again-lost", "invoice-18")):
        world.start(name, run)
        drive = world.drives[name]
        receive(drive, "L")
        settle(drive, Outcomes("L", ack_all=True))
    world.start("first-lost", "invoice-19")
    first = world.drives["first-lost"]
    first.redis.delete(first.keys.ready[0])
    for name, message_id in (("calls", CALL), ("calls-lost", CALL), ("fired", CALLBACK)):
        calls = world.journalled(name)
        calls.send(message_id, at=None)
        receive(calls, "L")
        settle(calls, Outcomes("L", ack_all=True))
    removed = world.journalled("removed")
    removed.send("a", "b", at=None)
    shard = world.journalled("divided/1")
    shard.redis.hset(shard.keys.meta, "shard", f"open 2 {int(time.time() * 1000)}")
    shard.send("a", "b", at=None)
    mode = world.journalled("mode")
    mode.send("a", at=None)
    receive(mode, "L")
    settle(mode, Outcomes("L", ack_all=True))
    plain = world.journalled("plain")
    plain.redis.rpush(plain.keys.ready[0], "{}", "[1]")
    receive(plain, "L")


def late(world: Innocent) -> None:
    stale = world.drives["stale"]
    settle(stale, Outcomes("L", acks=[2]))
    now = int(time.time() * 1000)
    told = groups_of([f"acked {now} - - - - - {each} {now} 0 0 0 0" for each in "abc"])
    receive(stale, "M", Outcomes("L", acks=[1, 2, 3], groups=told))
    for name, run in (("again", "invoice-17"), ("again-lost", "invoice-18")):
        world.forget(name, run)
        world.start(name, run)
    again = world.drives["again"]
    receive(again, "M")
    settle(again, Outcomes("M", ack_all=True))
    world.forget("first-lost", "invoice-19")
    world.start("first-lost", "invoice-19")
    calls = world.drives["calls-lost"]
    calls.send(CALL, at=None)
    calls.redis.delete(calls.keys.ready[0])
    for name, message_id in (("calls", CALL), ("fired", CALLBACK)):
        calls = world.drives[name]
        calls.send(message_id, at=None)
        receive(calls, "M")
        settle(calls, Outcomes("M", ack_all=True))
    lost = world.drives["again-lost"]
    lost.redis.delete(lost.keys.ready[0])
    Queue(world.drives["removed"].client, world.namespace, "removed").remove()
    shard = world.drives["divided/1"]
    receive(shard, "L")
    settle(shard, Outcomes("L", ack_all=True))
    for key in shard.redis.keys(shard.base + "*"):
        shard.redis.delete(key)  # as `give_up_empty` does with an empty shard
    shard.redis.hdel(queues_key(world.namespace), "divided/1")
    mode = world.journalled("mode", "outcomes")
    mode.send("b", at=None)
    receive(mode, "M")
    settle(mode, Outcomes("M", ack_all=True))
    plain = world.drives["plain"]
    outcomes = Outcomes("L", acks=[1])
    outcomes.nack(2, 0)
    settle(plain, outcomes)
    receive(plain, "M")
    settle(plain, Outcomes("M", ack_all=True))


@pytest.fixture(scope="module")
def innocent(spark, store_url, tmp_path_factory) -> Iterator[Innocent]:
    world = Innocent(store_url, f"innocent{time.time():.0f}", {}, {}, {})
    lake = Lake(tmp_path_factory.mktemp("innocent") / "lake")
    source = server_options(store_url, world.namespace)
    with pytest.MonkeyPatch.context() as patch, ExitStack() as stack:
        stack.callback(lambda: [drive.close() for drive in world.drives.values()])
        patch.setattr(audit_counts, "SAMPLES", 1000)
        early(world)
        archive(spark, lake, source, once=True)
        audit_increment(spark, lake=lake)
        late(world)
        archive(spark, lake, {**source, "failOnDataLoss": "false"}, once=True)
        time.sleep(0.01)
        world.audits["full"] = lambda: audit_all(spark, window=Window(), lake=lake, source=source)
        world.results["increment"], _ = audit_increment(spark, lake=lake, source=source)
        yield world


@pytest.mark.parametrize("kind", KINDS)
def test_acks_of_a_call_that_does_not_know_which_counted_are_unsure(innocent, kind):
    assert innocent.accused(kind, "stale") == {"unsure": {"a", "c"}}


@pytest.mark.parametrize("kind", KINDS)
def test_a_run_that_is_started_again_under_its_id_ends_again(innocent, kind):
    assert innocent.accused(kind, "again") == {}


@pytest.mark.parametrize("kind", KINDS)
def test_a_run_that_is_lost_is_not_covered_by_an_earlier_one_of_its_id(innocent, kind):
    assert innocent.accused(kind, "again-lost") == {"lost": {"invoice-18"}}


@pytest.mark.parametrize("kind", KINDS)
def test_calls_of_a_group_that_is_started_again_under_its_id_end_again(innocent, kind):
    assert innocent.accused(kind, "calls") == {}


@pytest.mark.parametrize("kind", KINDS)
def test_a_call_that_is_lost_is_not_covered_by_an_earlier_one_of_its_id(innocent, kind):
    assert innocent.accused(kind, "calls-lost") == {"lost": {CALL}}


@pytest.mark.parametrize("kind", KINDS)
def test_a_run_that_was_lost_is_not_covered_by_a_later_one_of_its_id(innocent, kind):
    assert innocent.accused(kind, "first-lost") == {"lost": {"invoice-19"}}


@pytest.mark.parametrize("kind", KINDS)
def test_a_callback_that_is_sent_twice_is_named(innocent, kind):
    """Its id was drawn, and is never used again."""
    assert innocent.accused(kind, "fired") == {
        finding: {CALLBACK} for finding in ("acked_twice", "started_after_ack")
    }


@pytest.mark.parametrize("kind", KINDS)
def test_messages_of_a_queue_that_was_removed_are_unsure(innocent, kind):
    assert innocent.accused(kind, "removed") == {"unsure": {"a", "b"}}
    assert innocent.holes(kind, "removed") == ["queue gone"]


@pytest.mark.parametrize("kind", KINDS)
def test_messages_of_a_shard_that_was_given_up_are_unsure(innocent, kind):
    assert innocent.accused(kind, "divided") == {"unsure": {"a", "b"}}
    assert innocent.holes(kind, "divided") == ["queue gone"]


@pytest.mark.parametrize("kind", KINDS)
def test_a_queue_whose_sends_are_no_longer_journalled_is_named(innocent, kind):
    """As are plain messages, which other programs push: nothing tells when."""
    assert innocent.result(kind).unheard == ("mode", "plain")


@pytest.mark.parametrize("kind", KINDS)
def test_a_plain_message_has_one_life(innocent, kind):
    assert innocent.accused(kind, "plain") == {}
