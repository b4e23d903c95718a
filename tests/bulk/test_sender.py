"""Sending a partition to Redis: repeated attempts, re-runs, back pressure and broken connections. No JVM."""

from __future__ import annotations

import threading
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from qworker import QWorker
from qworker.bulk.options import BulkOptions
from qworker.bulk.rows import RowGroup, RowReader
from qworker.bulk.sender import BulkSender, BulkSent, Identity
from qworker.bulk.totals import read_totals
from qworker.bulk.transport import RoomWait
from qworker.errors import (
    BodyTooLargeError,
    BulkChangedError,
    BulkGapError,
    InvalidOptionError,
    QueueFullError,
    QueuePausedError,
    ShardDrainingError,
    UnavailableError,
)
from qworker.store.connections import ConnectionFactory
from tests import servers
from tests.topologies.servers import client_of


class Bulk:
    """A bulk write to a separate queue."""

    def __init__(self, url: str, namespace: str, queue: str) -> None:
        self.url, self.namespace, self.queue = url, namespace, queue
        self.base = f"{namespace}:{{{queue}}}:"
        self.redis = client_of(url)
        self.connections = ConnectionFactory(url, name="qworker-bulk")

    def send(
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
        **options: Any,
    ) -> BulkSent | None:
        """Make one attempt; it stops without an error after `fail_after` rows."""
        given = BulkOptions(namespace=self.namespace, queue=self.queue, **options)
        reader = RowReader(given, partition)
        identity = Identity(write_id, run_id, partition, 60_000, ordered)
        everything = {"body": bodies, **(columns or {})}
        with BulkSender(self.connections, given, identity) as sender:
            for first in range(0, len(bodies), batch):
                if fail_after is not None and first >= fail_after:
                    return None
                rows = {name: values[first : first + batch] for name, values in everything.items()}
                for group in reader.read(pa.record_batch(rows)):
                    sender.add(group)
            return sender.finish()

    def bodies(self, part: str = "ready", queue: str | None = None) -> list[str]:
        """The bodies in ready, in their order."""
        base = self.base if queue is None else f"{self.namespace}:{{{queue}}}:"
        items = self.redis.lrange(base + part, 0, -1)
        return [item.partition(b"\n")[2].decode() for item in items]

    def totals(self, sent: BulkSent, run_id: str = "r", write_id: str = "w") -> dict[str, Any]:
        """What the write came to."""
        totals = read_totals(self.connections, self.namespace, write_id, run_id, [sent])
        return {name: totals[name] for name in ("rows", "sent", "already_there", "stored")}


@pytest.fixture
def bulk(store_url: str, namespace: str, queue_name: str) -> Iterator[Bulk]:
    """A bulk write on Valkey."""
    made = Bulk(store_url, namespace, queue_name)
    yield made
    made.redis.close()


ROWS = [f"row {number}" for number in range(5300)]


def test_every_row_becomes_a_message_in_order(bulk: Bulk) -> None:
    """Messages are in ready in the order of the rows, each with its own id, the queue registered."""
    sent = bulk.send(ROWS)
    assert sent == BulkSent(0, {bulk.queue: 5300})
    assert bulk.bodies() == ROWS
    ids = {item.split(b" ")[1] for item in bulk.redis.lrange(bulk.base + "ready", 0, -1)}
    assert len(ids) == 5300
    assert {len(message_id) for message_id in ids} == {20}
    assert bulk.redis.hexists(f"{bulk.namespace}:queues", bulk.queue)
    assert bulk.totals(sent) == {"rows": 5300, "sent": 5300, "already_there": 0, "stored": 5300}


def test_repeated_attempt_sends_only_the_rest(bulk: Bulk) -> None:
    """After attempts that died midway the last one completes the partition, and no row appears twice."""
    bulk.send(ROWS, fail_after=3000)
    assert 0 < len(bulk.bodies()) < 5300
    bulk.send(ROWS, fail_after=4500)
    sent = bulk.send(ROWS)
    assert sent is not None
    assert bulk.bodies() == ROWS
    # The attempts that failed belong to the run as well.
    assert bulk.totals(sent) == {"rows": 5300, "sent": 5300, "already_there": 0, "stored": 5300}


def test_run_again_sends_nothing(bulk: Bulk) -> None:
    """A second run under the same write id finds everything there, and says so."""
    bulk.send(ROWS)
    sent = bulk.send(ROWS, run_id="second", batch=77)
    assert sent is not None
    assert len(bulk.bodies()) == 5300
    totals = bulk.totals(sent, "second")
    assert totals == {"rows": 5300, "sent": 0, "already_there": 5300, "stored": 5300}


def test_another_write_id_sends_again(bulk: Bulk) -> None:
    """The same rows under another id are another write."""
    bulk.send(ROWS[:10])
    bulk.send(ROWS[:10], write_id="other")
    assert bulk.bodies() == ROWS[:10] * 2


def test_two_attempts_at_once_do_not_double_rows(bulk: Bulk) -> None:
    """Speculative attempts of one partition, side by side, store every row once."""
    threads = [threading.Thread(target=bulk.send, args=(ROWS,)) for _ in range(4)]
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
    bulk.send(ROWS[:3000])
    with pytest.raises(BulkChangedError, match="differ or are in another order"):
        bulk.send(other)
    assert bulk.bodies() == ROWS[:3000]


def test_lost_ledger_is_a_gap(bulk: Bulk) -> None:
    """Where the ledger goes while a partition is being written, the write ends rather than starts again."""
    options = BulkOptions(namespace=bulk.namespace, queue=bulk.queue)
    reader = RowReader(options, 0)
    with BulkSender(bulk.connections, options, Identity("w", "r", 0, 60_000, True)) as sender:
        for group in reader.read(pa.record_batch({"body": ROWS[:1000]})):
            sender.add(group)
        sender._transport.flush()
        bulk.redis.delete(bulk.base + "bulk:w")
        for group in reader.read(pa.record_batch({"body": ROWS[1000:2000]})):
            sender.add(group)
        with pytest.raises(BulkGapError, match="the ledger was lost or has expired"):
            sender.finish()
    assert len(bulk.bodies()) == 1000


def test_input_cut_otherwise_is_refused(bulk: Bulk) -> None:
    """A re-run whose input has another number of partitions is refused before it stores anything."""
    bulk.send(ROWS[:10], partitions=2)
    with pytest.raises(InvalidOptionError, match="belongs to an input of 2 partitions, not 3"):
        bulk.send(ROWS[:10], partitions=3, partition=2)
    assert len(bulk.bodies()) == 10


@pytest.mark.slow
def test_named_rows_are_stored_once_in_any_order(bulk: Bulk) -> None:
    """With ids neither order nor write id matters: a row is stored once."""
    ids = [f"id{number}" for number in range(2500)]
    bulk.send(ROWS[:2500], columns={"id": ids}, ordered=False, fail_after=1500)
    sent = bulk.send(
        ROWS[:2500][::-1], columns={"id": ids[::-1]}, ordered=False, write_id="x", run_id="s"
    )
    assert sent is not None
    assert sorted(bulk.bodies()) == sorted(ROWS[:2500])
    totals = bulk.totals(sent, "s", "x")
    assert (totals["rows"], totals["sent"] + totals["already_there"]) == (2500, 2500)
    assert totals["already_there"] >= 1000


@pytest.mark.slow
def test_rows_go_to_their_queues_and_priorities(bulk: Bulk) -> None:
    """Queue and priority of each row are kept, with their own ledger; a repetition adds nothing."""
    other = f"{bulk.queue}-b"
    columns = {
        "queue": [bulk.queue if number % 3 else other for number in range(5300)],
        "priority": [number % 2 * 5 for number in range(5300)],
    }
    for _ in range(2):
        sent = bulk.send(ROWS, columns=columns)
        assert sent is not None
        assert sent.rows == {bulk.queue: 3533, other: 1767}
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


def test_rows_have_their_own_delays(bulk: Bulk) -> None:
    """A delayed row waits in delayed; the option holds for rows that say nothing."""
    bulk.send(
        ["a", "b", "c"], columns={"delay": ["1h", None, "0s"]}, delay_ms=1_800_000, ttl_ms=7_200_000
    )
    due = {
        member.partition(b"\n")[2]: score
        for member, score in bulk.redis.zrange(bulk.base + "delayed", 0, -1, withscores=True)
    }
    assert due[b"a"] - due[b"b"] == 1_800_000
    assert bulk.bodies() == ["c"]


# -- refusals -------------------------------------------------------------------------------------


def test_full_queue_fails_at_once(bulk: Bulk) -> None:
    """Without waiting a limit ends the write, what fits before stays, and a re-run continues."""
    with pytest.raises(QueueFullError) as caught:
        bulk.send(ROWS, max_queue_length=2500)
    assert caught.value.maxlen == 2500
    assert bulk.bodies() == ROWS[:2000]
    bulk.send(ROWS)
    assert bulk.bodies() == ROWS


@pytest.mark.slow
def test_full_queue_is_waited_for(bulk: Bulk) -> None:
    """A write that waits never lets the queue grow beyond the limit, and loses no row."""
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
            # These are plain LPOPs, which do not count: the test does.
            client.hincrby(bulk.base + "stats", "stored", -len(items or []))

    consumer = threading.Thread(target=consume)
    consumer.start()
    bulk.send(ROWS, max_queue_length=1500, full_wait_s=600)
    consumer.join()
    assert [item.partition(b"\n")[2].decode() for item in taken] == ROWS
    assert longest <= 1500


@pytest.mark.slow
def test_waiting_ends(bulk: Bulk) -> None:
    """A queue in which nothing moves is waited for as long as the option says."""
    with pytest.raises(QueueFullError):
        bulk.send(ROWS[:1001], max_queue_length=1000, full_wait_s=1)
    bulk.redis.hset(bulk.base + "meta", "paused", "in")
    with pytest.raises(QueuePausedError):
        bulk.send(ROWS[:1001])


def test_a_wait_for_room_logs_its_reason(logs: list[dict[str, object]]) -> None:
    """While it waits, a line every ten seconds says for what; progress restarts the time."""
    now = [0.0]
    room = RoomWait(30, clock=lambda: now[0], sleep=lambda s: now.__setitem__(0, now[0] + s))
    error = QueueFullError("q", 5, 5)

    def wait_for_ever() -> None:
        while True:
            room.wait(error)

    with pytest.raises(QueueFullError):
        wait_for_ever()
    assert now[0] == pytest.approx(30)
    assert [line["waited_s"] for line in logs] == pytest.approx([10, 20], abs=1)
    room.progressed()
    room.wait(error)


def test_too_large_body_is_named(bulk: Bulk) -> None:
    """The queue's maxsize is held against every body before it is sent, or else the default."""
    rows = [*ROWS[:700], "x" * 5000, *ROWS]
    bulk.redis.hset(bulk.base + "meta", "maxsize", 4096)
    with pytest.raises(BodyTooLargeError, match="partition 0, row 701, body: is 5000 bytes"):
        bulk.send(rows)
    bulk.redis.hdel(bulk.base + "meta", "maxsize")
    with pytest.raises(BodyTooLargeError, match="row 2, body: is 262145 bytes"):
        bulk.send(["a", "x" * 262_145], write_id="x")


# -- connections ----------------------------------------------------------------------------------


@pytest.mark.slow
def test_lost_connections_lose_and_double_nothing(bulk: Bulk) -> None:
    """Connections that break in the middle of a pipeline are made again, and what was in doubt is sent again."""
    done = threading.Event()
    killed, pause_s = 0, 0.03

    def kill() -> None:
        nonlocal killed, pause_s
        client = ConnectionFactory(bulk.url).redis(bulk.base + "ready")
        while not done.wait(pause_s):
            pause_s *= 1.05  # on a busy machine a pipeline may take longer than the first pauses
            for connection in client.client_list():
                if connection["name"] == "qworker-bulk":
                    killed += client.client_kill_filter(_id=connection["id"])

    killer = threading.Thread(target=kill)
    killer.start()
    rows = [f"{number} {'x' * 200}" for number in range(40_000)]
    try:
        bulk.send(rows)
    finally:
        done.set()
        killer.join()
    assert killed
    assert bulk.bodies() == rows


def test_forgotten_script_is_loaded_again(bulk: Bulk) -> None:
    """A server that has lost the script midway gets it again."""
    options = BulkOptions(namespace=bulk.namespace, queue=bulk.queue)
    reader = RowReader(options, 0)
    with BulkSender(bulk.connections, options, Identity("w", "r", 0, 60_000, True)) as sender:
        for first in range(0, 5000, 1000):
            bulk.redis.script_flush()
            for group in reader.read(pa.record_batch({"body": ROWS[first : first + 1000]})):
                sender.add(group)
        sender.finish()
    assert bulk.bodies() == ROWS[:5000]


def test_server_out_of_memory_is_waited_for() -> None:
    """A server over maxmemory counts as a full queue."""
    with servers.start("valkey") as server:
        bulk = Bulk(server.url, "n", f"q{uuid.uuid4().hex[:6]}")
        bulk.send(ROWS[:1000])
        bulk.redis.config_set("maxmemory", 1)
        freed = threading.Timer(0.5, bulk.redis.config_set, ("maxmemory", 0))
        freed.start()
        bulk.send(ROWS, full_wait_s=30)
        freed.join()
        assert bulk.bodies() == ROWS
        bulk.redis.close()


def test_a_server_that_is_not_there_is_named(tmp_path: Path) -> None:
    """Without a server the write gives up with an error that names the address."""
    options = BulkOptions(queue="q")
    server = ConnectionFactory(f"unix://{tmp_path}/none")
    identity = Identity("w", "r", 0, 60_000, True)
    group = RowGroup("q", 0, [b"a"], [], range(1, 2), 1)
    with (
        BulkSender(server, options, identity, give_up_s=0.2) as sender,
        pytest.raises(UnavailableError, match=str(tmp_path)),
    ):
        sender.add(group)


# -- divided queues -----------------------------------------------------------------------------


class Divided(Bulk):
    """A bulk write to a queue of several shards."""

    def __init__(self, url: str, namespace: str, queue: str) -> None:
        super().__init__(url, namespace, queue)
        self.app = QWorker(namespace, url=url)

    def divide(self, shards: int) -> None:
        """Divide the queue, or make it whole."""
        self.app.queue(self.queue).divide(shards)

    def by_shard(self) -> list[list[str]]:
        """The bodies in ready of each shard that the queue ever had."""
        names = [self.queue, *(f"{self.queue}/{number}" for number in range(1, 4))]
        return [self.bodies(queue=name) for name in names]

    def begin(self, *, ordered: bool = True) -> Attempt:
        """Begin an attempt of the first partition."""
        return Attempt(self, ordered=ordered)

    def all_rows(self) -> list[str]:
        """The bodies of all shards, sorted."""
        return sorted(body for bodies in self.by_shard() for body in bodies)


class Attempt:
    """One attempt, in steps: `add` brings the rows up to a number."""

    def __init__(self, bulk: Bulk, *, ordered: bool) -> None:
        given = BulkOptions(namespace=bulk.namespace, queue=bulk.queue)
        self._reader = RowReader(given, 0)
        identity = Identity("w", "r", 0, 60_000, ordered)
        self._sender = BulkSender(bulk.connections, given, identity)
        self._done = 0

    def add(self, up_to: int) -> None:
        for group in self._reader.read(pa.record_batch({"body": ROWS[self._done : up_to]})):
            self._sender.add(group)
        self._done = up_to

    def finish(self) -> None:
        with self._sender:
            self._sender.finish()


@pytest.fixture
def divided(store_url: str, namespace: str, queue_name: str) -> Iterator[Divided]:
    """A bulk write to a queue with three shards."""
    made = Divided(store_url, namespace, queue_name)
    made.divide(3)
    yield made
    made.app.close()
    made.redis.close()


WHOLE_WRITE = {"rows": 5300, "sent": 5300, "already_there": 0, "stored": 5300}


def test_rows_take_turns_over_the_shards_in_blocks(divided: Divided) -> None:
    """A shard has its blocks in their order; partitions begin with different shards."""
    sent = divided.send(ROWS, batch=700)
    assert divided.by_shard() == [
        ROWS[0:1000] + ROWS[3000:4000],
        ROWS[1000:2000] + ROWS[4000:5000],
        ROWS[2000:3000] + ROWS[5000:],
        [],
    ]
    assert sent == BulkSent(0, {divided.queue: 5300})
    assert divided.totals(sent) == WHOLE_WRITE
    divided.send(["second"], partition=1)
    assert divided.by_shard()[1][-1] == "second"


@pytest.mark.parametrize("shards", [1, 2, 4])
def test_a_write_that_is_repeated_after_a_division_stores_no_row_twice(
    divided: Divided, shards: int
) -> None:
    """Its ledger says over how many shards it began to spread its rows."""
    divided.send(ROWS, fail_after=3500)
    divided.divide(shards)
    sent = divided.send(ROWS)
    assert sent is not None
    assert divided.all_rows() == sorted(ROWS)
    assert divided.totals(sent) == WHOLE_WRITE
    again = divided.send(ROWS, run_id="second")
    assert again is not None
    assert divided.totals(again, "second")["sent"] == 0


def test_a_write_that_began_in_a_whole_queue_stays_in_its_first_shard(bulk: Bulk) -> None:
    """Also one of a version that did not note the number of shards."""
    bulk.send(ROWS, fail_after=3500)
    bulk.redis.hdel(f"{bulk.base}bulk:w", "shards")
    app = QWorker(bulk.namespace, url=bulk.url)
    app.queue(bulk.queue).divide(3)
    app.close()
    bulk.send(ROWS)
    assert bulk.bodies() == ROWS


@pytest.mark.parametrize("ordered", [True, False])
def test_the_rest_of_a_draining_shard_goes_to_the_first_one(
    divided: Divided, ordered: bool
) -> None:
    """In the same attempt, with a ledger and without."""
    attempt = divided.begin(ordered=ordered)
    attempt.add(2500)
    divided.divide(1)
    attempt.add(5300)
    attempt.finish()
    assert divided.all_rows() == sorted(ROWS)


def test_a_late_attempt_stores_nothing_of_what_was_moved(divided: Divided) -> None:
    """Whether it begins before or after the rest of a draining shard went to the first one."""
    early = divided.begin()
    early.add(2500)
    divided.divide(1)
    sent = divided.send(ROWS)
    late = divided.begin()
    late.add(5300)
    late.finish()
    early.add(5300)
    early.finish()
    assert divided.all_rows() == sorted(ROWS)
    assert sent is not None
    assert divided.totals(sent) == WHOLE_WRITE


@pytest.mark.slow
def test_attempts_that_meet_a_draining_shard_together_store_every_row_once(
    divided: Divided,
) -> None:
    """Each stores a part, as speculative tasks do; the shard opens and drains again meanwhile."""
    attempts = [divided.begin(), divided.begin()]
    for up_to, shards in ((1700, 1), (3100, 3), (4400, 2), (5300, 1)):
        for attempt in attempts:
            attempt.add(up_to)
        divided.divide(shards)
    for attempt in attempts:
        attempt.finish()
    assert divided.all_rows() == sorted(ROWS)
    assert divided.totals(BulkSent(0, {divided.queue: 5300})) == WHOLE_WRITE


@pytest.mark.slow
def test_an_attempt_in_a_shard_that_opens_again_goes_on_in_the_first_one(divided: Divided) -> None:
    """Its rows are there by then."""
    old = divided.begin()
    old.add(2500)
    divided.divide(1)
    sent = divided.send(ROWS)
    divided.divide(3)
    old.add(5300)
    old.finish()
    assert divided.all_rows() == sorted(ROWS)
    assert sent is not None
    assert divided.totals(sent) == WHOLE_WRITE


def test_a_shard_that_refuses_for_ever_fails_the_attempt(divided: Divided) -> None:
    """Its ledger says that the rest is in the first shard, whose ledger has gone."""
    attempt = divided.begin()
    attempt.add(2500)
    for shard in (1, 2):
        ledger = f"{divided.namespace}:{{{divided.queue}/{shard}}}:bulk:w"
        divided.redis.hset(ledger, "0.0", "moved")
    attempt.add(5300)
    with pytest.raises(ShardDrainingError, match="takes no messages"):
        attempt.finish()


def test_rows_with_ids_go_to_the_first_shard_which_remembers_them(divided: Divided) -> None:
    """However the queue is divided between two writes."""
    ids = {"id": [str(number) for number in range(1500)]}
    divided.send(ROWS[:1500], ordered=False, columns=ids)
    divided.divide(2)
    divided.send(ROWS[:1500], ordered=False, columns=ids, write_id="other", run_id="second")
    assert divided.by_shard() == [ROWS[:1500], [], [], []]


def test_rows_without_a_ledger_take_turns_as_well(divided: Divided) -> None:
    """Also when one of the shards is draining by the time that the write begins."""
    divided.send(ROWS, ordered=False)
    assert [len(bodies) for bodies in divided.by_shard()] == [2000, 2000, 1300, 0]
    divided.divide(1)
    divided.send(ROWS, ordered=False)
    assert divided.all_rows() == sorted(ROWS * 2)


def test_the_longest_queue_is_that_of_all_shards(divided: Divided) -> None:
    """A third of it in each of three shards."""
    with pytest.raises(QueueFullError):
        divided.send(ROWS, max_queue_length=3600)
    assert max(len(bodies) for bodies in divided.by_shard()) <= 1200
