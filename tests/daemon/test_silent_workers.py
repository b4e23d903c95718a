"""What is left of killed workers: it is shown for a while, and ends."""

from __future__ import annotations

from collections.abc import Iterator

import msgspec
import pytest

from qworker.daemon.reaper import Reaper
from qworker.daemon.silent_workers import FORGOTTEN_MS, MAX_SILENT, SilentWorkers
from qworker.wire.keys import leaving_key, queues_key, workers_key
from qworker.wire.presence import WorkerDocument
from tests.daemon.conftest import events
from tests.lua.drive import Drive, deny, guarded
from tests.timing import Clock

NOW = 1_700_000_000_000
MINUTE_S = 60


def document(name: str, seen_ms: int) -> bytes:
    """The document of a worker, as it was written at a time."""
    return msgspec.json.encode(WorkerDocument(name=name, seen_ms=seen_ms, queues=("q",)))


@pytest.fixture
def drive() -> Iterator[Drive]:
    """A queue on its own server, and a user who may do anything until `deny`."""
    with guarded() as opened:
        yield opened


@pytest.fixture
def silent(drive: Drive, clock: Clock) -> SilentWorkers:
    """One whose first walk is due."""
    made = SilentWorkers(drive.client.execute, "t", clock=clock)
    clock.now_s += MINUTE_S
    return made


def test_a_worker_is_forgotten_after_an_hour(
    drive: Drive, silent: SilentWorkers, logs: list[dict[str, object]]
) -> None:
    """Until then it is listed as gone. One that cannot be read, or is of a later time, was written by no worker."""
    seen = {"alive": NOW, "gone": NOW - FORGOTTEN_MS, "old": NOW - FORGOTTEN_MS - 1}
    documents = {name: document(name, at) for name, at in seen.items()}
    documents |= {"strange": b"\xff", "later": document("later", NOW + FORGOTTEN_MS + 1)}
    drive.redis.hset(workers_key("t"), mapping=documents)
    assert silent.forget(NOW, 1) == 3
    assert {*drive.redis.hkeys(workers_key("t"))} == {b"alive", b"gone"}
    [line] = events(logs, "workers_forgotten")
    assert (line["number"], {*line["workers"]}) == (3, {"old", "strange", "later"})  # type: ignore[misc]


def test_of_a_thousand_killed_workers_a_hundred_are_kept(
    drive: Drive, silent: SilentWorkers, clock: Clock
) -> None:
    """The latest ones. A walk reads a bounded number at a time, and the living ones are kept, however many they are."""
    killed = {f"k{n}": document(f"k{n}", NOW - 20_000 - n) for n in range(1000)}
    living = {f"w{n}": document(f"w{n}", NOW - 1000) for n in range(200)}
    drive.redis.hset(workers_key("t"), mapping=killed | living)
    drive.redis.config_resetstat()
    passes = [silent.forget(NOW, 1)]
    assert drive.redis.info("commandstats")["cmdstat_hscan"]["calls"] <= 10
    while not any(passes):
        passes.append(silent.forget(NOW, 1))
    assert sum(passes) == 1000 - MAX_SILENT
    kept = {f"k{n}".encode() for n in range(MAX_SILENT)} | {name.encode() for name in living}
    assert {*drive.redis.hkeys(workers_key("t"))} == kept
    # The next walk is a minute later.
    drive.redis.hset(workers_key("t"), "old", document("old", 0))
    clock.now_s += MINUTE_S - 1
    assert silent.forget(NOW, 1) == 0
    clock.now_s += 1
    assert [silent.forget(NOW, 1) for _ in range(2)] == [1, 0]


def test_requests_to_killed_workers_are_forgotten(drive: Drive, silent: SilentWorkers) -> None:
    """A living worker reads its request to leave within two seconds, not an hour later."""
    requests = {"old": NOW - FORGOTTEN_MS - 1, "strange": "x", "new": NOW - FORGOTTEN_MS}
    drive.redis.hset(leaving_key("t"), mapping=requests)
    silent.forget(NOW, 1)
    assert drive.redis.hkeys(leaving_key("t")) == [b"new"]


def test_a_thousand_reapers_share_the_walks(drive: Drive, clock: Clock) -> None:
    """In a minute about one of them reads the documents, and not all at the same time."""
    reapers = [SilentWorkers(drive.client.execute, "t", clock=clock) for _ in range(1000)]
    drive.redis.config_resetstat()
    for _ in range(2 * MINUTE_S):
        clock.now_s += 1
        for each in reapers:
            each.forget(NOW, len(reapers))
    walks = drive.redis.info("commandstats").get("cmdstat_hscan", {"calls": 0})["calls"]
    # Two on average; more than 20 comes once in 10^13 times.
    assert walks <= 20


def test_a_right_that_is_missing_stops_nothing(
    drive: Drive, silent: SilentWorkers, clock: Clock, logs: list[dict[str, object]]
) -> None:
    """An ACL of an older version, or a key of another type, is logged once a minute."""
    deny(drive, "hscan")
    assert silent.forget(NOW, 1) == 0
    drive.redis.execute_command("ACL", "SETUSER", "u", "+@all")
    drive.redis.set(workers_key("t"), "x")
    clock.now_s += MINUTE_S
    assert silent.forget(NOW, 1) == 0
    problems = [str(line["problem"]) for line in events(logs, "silent_workers_kept")]
    assert ["hscan" in problems[0].lower(), "WRONGTYPE" in problems[1]] == [True, True]


def test_a_pass_of_the_reaper_forgets_workers(drive: Drive, clock: Clock) -> None:
    """By the server's clock."""
    drive.redis.hset(queues_key("t"), "q", 1)
    reaper = Reaper(drive.client, "t", clock=clock)
    drive.redis.hset(workers_key("t"), "old", document("old", 0))
    clock.now_s += MINUTE_S
    reaper.tick()
    assert not drive.redis.exists(workers_key("t"))
