"""Pushing a partition into Redis: repeated attempts, re-runs, back pressure and broken connections. No JVM."""

from __future__ import annotations

import threading
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from qworker.errors import (
    BodyTooLargeError,
    BulkChangedError,
    BulkGapError,
    InvalidOptionError,
    QueueFullError,
    QueuePausedError,
    UnavailableError,
)
from qworker.pipeline.writing.options import WriteOptions
from qworker.pipeline.writing.pipe import Patience
from qworker.pipeline.writing.pushing import Identity, Pushed, Pusher
from qworker.pipeline.writing.rows import Group, RowReader
from qworker.pipeline.writing.totals import read_totals
from qworker.store.connection import ConnectionFactory
from qworker.store.url import ServerURL
from tests import servers
from tests.topologies.servers import client_of


class Bulk:
    """A bulk write to a queue of its own."""

    def __init__(self, url: str, namespace: str, queue: str) -> None:
        self.url, self.namespace, self.queue = url, namespace, queue
        self.base = f"{namespace}:{{{queue}}}:"
        self.redis = client_of(url)

    def push(
        self,
        bodies: list[str],
        *,
        write_id: str = "w",
        partition: int = 0,
        fail_after: int | None = None,
        batch: int = 500,
        columns: dict[str, list[Any]] | None = None,
        ordered: bool = True,
        run_id: str = "r",
        **options: str,
    ) -> Pushed | None:
        """Make one attempt; it ends without a word after `fail_after` rows."""
        given = {"url": self.url, "namespace": self.namespace, "queue": self.queue, **options}
        checked = WriteOptions.of(given)
        reader = RowReader(checked, partition)
        identity = Identity(write_id, run_id, partition, 60_000, ordered)
        everything = {"body": bodies, **(columns or {})}
        with Pusher(ServerURL.parse(self.url), checked, identity) as pusher:
            for first in range(0, len(bodies), batch):
                if fail_after is not None and first >= fail_after:
                    return None
                rows = {name: values[first : first + batch] for name, values in everything.items()}
                for group in reader.read(pa.record_batch(rows)):
                    pusher.add(group)
            return pusher.finish()

    def bodies(self, part: str = "ready", queue: str | None = None) -> list[str]:
        """The bodies in ready, in their order."""
        base = self.base if queue is None else f"{self.namespace}:{{{queue}}}:"
        items = self.redis.lrange(base + part, 0, -1)
        return [item.partition(b"\n")[2].decode() for item in items]

    def totals(self, pushed: Pushed, run_id: str = "r", write_id: str = "w") -> dict[str, Any]:
        """What the write came to."""
        server = ServerURL.parse(self.url)
        found = read_totals(server, self.namespace, write_id, run_id, [pushed])
        return {name: found[name] for name in ("rows", "sent", "already_there", "stored")}


@pytest.fixture
def bulk(store_url: str, namespace: str, queue_name: str) -> Iterator[Bulk]:
    """A bulk write on Valkey."""
    made = Bulk(store_url, namespace, queue_name)
    yield made
    made.redis.close()


ROWS = [f"row {number}" for number in range(5300)]


def test_every_row_becomes_a_message_in_order(bulk: Bulk) -> None:
    """What was pushed stands in ready in the order of the rows, each with an id of its own, the queue registered."""
    pushed = bulk.push(ROWS)
    assert pushed == Pushed(0, {bulk.queue: 5300})
    assert bulk.bodies() == ROWS
    ids = {item.split(b" ")[1] for item in bulk.redis.lrange(bulk.base + "ready", 0, -1)}
    assert len(ids) == 5300
    assert {len(each) for each in ids} == {20}
    assert bulk.redis.hexists(f"{bulk.namespace}:queues", bulk.queue)
    assert bulk.totals(pushed) == {"rows": 5300, "sent": 5300, "already_there": 0, "stored": 5300}


def test_repeated_attempt_sends_only_the_rest(bulk: Bulk) -> None:
    """After attempts that died midway the last one completes the partition, and no row is there twice."""
    bulk.push(ROWS, fail_after=3000)
    assert 0 < len(bulk.bodies()) < 5300
    bulk.push(ROWS, fail_after=4500)
    pushed = bulk.push(ROWS)
    assert pushed is not None
    assert bulk.bodies() == ROWS
    # The attempts that failed belong to the run as well.
    assert bulk.totals(pushed) == {"rows": 5300, "sent": 5300, "already_there": 0, "stored": 5300}


def test_run_again_sends_nothing(bulk: Bulk) -> None:
    """A second run under the same write id finds everything there, and says so."""
    bulk.push(ROWS)
    pushed = bulk.push(ROWS, run_id="second", batch=77)
    assert pushed is not None
    assert len(bulk.bodies()) == 5300
    totals = bulk.totals(pushed, "second")
    assert totals == {"rows": 5300, "sent": 0, "already_there": 5300, "stored": 5300}


def test_another_write_id_sends_again(bulk: Bulk) -> None:
    """The same rows under another id are another write."""
    bulk.push(ROWS[:10])
    bulk.push(ROWS[:10], write_id="other")
    assert bulk.bodies() == ROWS[:10] * 2


def test_two_attempts_at_once_do_not_double_rows(bulk: Bulk) -> None:
    """Speculative attempts of one partition, side by side, store every row once."""
    threads = [threading.Thread(target=bulk.push, args=(ROWS,)) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert bulk.bodies() == ROWS


@pytest.mark.parametrize(
    "other",
    [ROWS[::-1], ROWS[:1000], ["x", *ROWS[1:]], [*ROWS[:2999], "x", *ROWS[3000:]]],
    ids=["order", "fewer", "first", "last taken"],
)
def test_other_rows_fail_loudly(bulk: Bulk, other: list[str]) -> None:
    """A repetition with other rows, or in another order, ends with an error and stores nothing."""
    bulk.push(ROWS[:3000])
    with pytest.raises(BulkChangedError, match="others or in another order"):
        bulk.push(other)
    assert bulk.bodies() == ROWS[:3000]


def test_lost_ledger_is_a_gap(bulk: Bulk) -> None:
    """Where the ledger goes while a partition is being written, the write ends rather than begins anew."""
    options = WriteOptions.of({"namespace": bulk.namespace, "queue": bulk.queue})
    reader = RowReader(options, 0)
    with Pusher(ServerURL.parse(bulk.url), options, Identity("w", "r", 0, 60_000, True)) as pusher:
        for group in reader.read(pa.record_batch({"body": ROWS[:1000]})):
            pusher.add(group)
        pusher._pipe.flush()
        bulk.redis.delete(bulk.base + "bulk:w")
        for group in reader.read(pa.record_batch({"body": ROWS[1000:2000]})):
            pusher.add(group)
        with pytest.raises(BulkGapError, match="the ledger was lost or has expired"):
            pusher.finish()
    assert len(bulk.bodies()) == 1000


def test_input_cut_otherwise_is_refused(bulk: Bulk) -> None:
    """A re-run whose input has another number of partitions is refused before it stores anything."""
    bulk.push(ROWS[:10], partitions="2")
    with pytest.raises(InvalidOptionError, match="belongs to an input of 2 partitions, not 3"):
        bulk.push(ROWS[:10], partitions="3", partition=2)
    assert len(bulk.bodies()) == 10


def test_named_rows_are_stored_once_in_any_order(bulk: Bulk) -> None:
    """With ids neither order nor write id matters: a row is stored once."""
    ids = [f"id{number}" for number in range(2500)]
    bulk.push(ROWS[:2500], columns={"id": ids}, ordered=False, fail_after=1500)
    pushed = bulk.push(
        ROWS[:2500][::-1], columns={"id": ids[::-1]}, ordered=False, write_id="x", run_id="s"
    )
    assert pushed is not None
    assert sorted(bulk.bodies()) == sorted(ROWS[:2500])
    totals = bulk.totals(pushed, "s", "x")
    assert (totals["rows"], totals["sent"] + totals["already_there"]) == (2500, 2500)
    assert totals["already_there"] >= 1000


def test_rows_go_to_their_queues_and_priorities(bulk: Bulk) -> None:
    """Queue and priority of each row are kept, with a ledger of their own; a repetition adds nothing."""
    other = f"{bulk.queue}-b"
    columns = {
        "queue": [bulk.queue if number % 3 else other for number in range(5300)],
        "priority": [number % 2 * 5 for number in range(5300)],
    }
    for _ in range(2):
        pushed = bulk.push(ROWS, columns=columns)
        assert pushed is not None
        assert pushed.rows == {bulk.queue: 3533, other: 1767}
        for queue, part, number in (
            (bulk.queue, "ready", 1),
            (bulk.queue, "ready:5", 0),
            (other, "ready", 1),
            (other, "ready:5", 0),
        ):
            wanted = [
                ROWS[at]
                for at in range(5300)
                if columns["queue"][at] == queue and at % 2 == 1 - number
            ]
            assert bulk.bodies(part, queue) == wanted


def test_rows_have_delays_of_their_own(bulk: Bulk) -> None:
    """A delayed row waits in delayed; the option holds for rows that say nothing."""
    bulk.push(["a", "b", "c"], columns={"delay": ["1h", None, "0s"]}, delay="30m", ttl="2h")
    due = {
        member.partition(b"\n")[2]: score
        for member, score in bulk.redis.zrange(bulk.base + "delayed", 0, -1, withscores=True)
    }
    assert due[b"a"] - due[b"b"] == 1_800_000
    assert bulk.bodies() == ["c"]


# -- refusals -------------------------------------------------------------------------------------


def test_full_queue_fails_at_once(bulk: Bulk) -> None:
    """Without waiting a limit ends the write, what fits before stays, and a re-run goes on."""
    with pytest.raises(QueueFullError) as caught:
        bulk.push(ROWS, maxQueueLength="2500")
    assert caught.value.maxlen == 2500
    assert bulk.bodies() == ROWS[:2000]
    bulk.push(ROWS)
    assert bulk.bodies() == ROWS


def test_full_queue_is_waited_for(bulk: Bulk) -> None:
    """A write that waits never lets the queue grow over the limit, and loses no row."""
    taken: list[bytes] = []
    longest = 0

    def consume() -> None:
        nonlocal longest
        client = client_of(bulk.url)
        while len(taken) < 5300:
            pipe = client.pipeline()
            pipe.llen(bulk.base + "ready")
            pipe.lpop(bulk.base + "ready", 250)
            length, items = pipe.execute()
            longest = max(longest, length)
            taken.extend(items or [])
            # Nobody receives by the rules here: what is taken is counted as gone by hand.
            client.hincrby(bulk.base + "stats", "stored", -len(items or []))

    consumer = threading.Thread(target=consume)
    consumer.start()
    bulk.push(ROWS, maxQueueLength="1500", onFull="wait")
    consumer.join()
    assert [item.partition(b"\n")[2].decode() for item in taken] == ROWS
    assert longest <= 1500


def test_waiting_ends(bulk: Bulk) -> None:
    """A queue where nothing moves is waited for as long as was said."""
    with pytest.raises(QueueFullError):
        bulk.push(ROWS[:1001], maxQueueLength="1000", onFull="wait", fullWait="1s")
    bulk.redis.hset(bulk.base + "meta", "paused", "in")
    with pytest.raises(QueuePausedError):
        bulk.push(ROWS[:1001])


def test_patience_tells_what_it_waits_for(logs: list[dict[str, object]]) -> None:
    """While it waits, a line every ten seconds says for what; progress begins the time anew."""
    now = [0.0]
    patience = Patience(30, clock=lambda: now[0], sleep=lambda s: now.__setitem__(0, now[0] + s))
    error = QueueFullError("q", 5, 5)

    def wait_for_ever() -> None:
        while True:
            patience.wait(error)

    with pytest.raises(QueueFullError):
        wait_for_ever()
    assert now[0] == pytest.approx(30)
    assert [line["waited_s"] for line in logs] == pytest.approx([10, 20], abs=1)
    patience.moved()
    patience.wait(error)


def test_too_large_body_is_named(bulk: Bulk) -> None:
    """The queue's maxsize is held against every body before it is sent, or else the default."""
    rows = [*ROWS[:700], "x" * 5000, *ROWS]
    bulk.redis.hset(bulk.base + "meta", "maxsize", 4096)
    with pytest.raises(BodyTooLargeError, match="partition 0, row 701, body: is 5000 bytes"):
        bulk.push(rows)
    bulk.redis.hdel(bulk.base + "meta", "maxsize")
    with pytest.raises(BodyTooLargeError, match="row 2, body: is 262145 bytes"):
        bulk.push(["a", "x" * 262_145], write_id="x")


# -- connections ----------------------------------------------------------------------------------


def test_lost_connections_lose_and_double_nothing(bulk: Bulk) -> None:
    """Connections that break in the middle of a pipeline are made anew, and what was in doubt is sent again."""
    done = threading.Event()
    killed = 0

    def kill() -> None:
        nonlocal killed
        client = ConnectionFactory(bulk.url).redis(bulk.base + "ready")
        while not done.wait(0.03):
            for each in client.client_list():
                if each["name"] == "qworker-spark":
                    killed += client.client_kill_filter(_id=each["id"])

    killer = threading.Thread(target=kill)
    killer.start()
    rows = [f"{number} {'x' * 200}" for number in range(40_000)]
    try:
        bulk.push(rows)
    finally:
        done.set()
        killer.join()
    assert killed
    assert bulk.bodies() == rows


def test_forgotten_script_is_loaded_again(bulk: Bulk) -> None:
    """A server that has lost the script midway gets it again."""
    options = WriteOptions.of({"namespace": bulk.namespace, "queue": bulk.queue})
    reader = RowReader(options, 0)
    with Pusher(ServerURL.parse(bulk.url), options, Identity("w", "r", 0, 60_000, True)) as pusher:
        for first in range(0, 5000, 1000):
            bulk.redis.script_flush()
            for group in reader.read(pa.record_batch({"body": ROWS[first : first + 1000]})):
                pusher.add(group)
        pusher.finish()
    assert bulk.bodies() == ROWS[:5000]


def test_server_out_of_memory_is_waited_for() -> None:
    """A server over maxmemory counts as a full queue."""
    with servers.start("valkey") as server:
        bulk = Bulk(server.url, "n", f"q{uuid.uuid4().hex[:6]}")
        bulk.push(ROWS[:1000])
        bulk.redis.config_set("maxmemory", 1)
        freed = threading.Timer(0.5, bulk.redis.config_set, ("maxmemory", 0))
        freed.start()
        bulk.push(ROWS, onFull="wait", fullWait="30s")
        freed.join()
        assert bulk.bodies() == ROWS
        bulk.redis.close()


def test_server_that_is_not_there_is_told(tmp_path: Path) -> None:
    """Without a server the write gives up with an error that says where it looked."""
    options = WriteOptions.of({"queue": "q"})
    server = ServerURL.parse(f"unix://{tmp_path}/none")
    identity = Identity("w", "r", 0, 60_000, True)
    group = Group("q", 0, [b"a"], [], range(1, 2), 1)
    with (
        Pusher(server, options, identity, give_up_s=0.2) as pusher,
        pytest.raises(UnavailableError, match=str(tmp_path)),
    ):
        pusher.add(group)
