"""Every verb of a queue covers its shards: what is sent is spread, and a receipt leads back to where it came from."""

from __future__ import annotations

import asyncio
import json
from collections import Counter

import pytest
from click.testing import CliRunner
from structlog.testing import capture_logs

from qworker import QueueAttributes, QWorker, SyncRun
from qworker.cli.main import cli
from qworker.client.cancel_message import Cancellation
from qworker.client.dead.pages import DeadLetterScan
from qworker.client.execute.aio import AsyncClient
from qworker.client.inspect.pages import END
from qworker.client.message import DeadLetter, Receipt, Stored
from qworker.client.plan import Plan
from qworker.client.queue import AsyncQueue, Queue
from qworker.engine.raw import raw
from qworker.errors import (
    InvalidNameError,
    InvalidOptionError,
    QueueFullError,
    ServerError,
    ShardDrainingError,
    StaleReceiptError,
)
from qworker.testing import drain
from qworker.wire.shards import UNMARKED, WHOLE, ReshardMark, Shards
from tests.consumer.driving import redis_of


@pytest.fixture
def queue(app: QWorker) -> Queue:
    """A queue of three shards; the client that divided it is another one."""
    queue = app.queue("orders")
    queue.divide(3, wait=0)
    return Queue(app.client, app.namespace, "orders")


def shards_of(queue: Queue) -> list[Queue]:
    """Each shard alone."""
    return [Queue(queue.client, queue.ref.namespace, f"orders/{n}") for n in range(3)]


def test_sends_are_spread_and_receives_take_from_all(queue: Queue) -> None:
    """Single sends take turns; what one call brings stays together; a receive goes through all shards."""
    ids = [queue.send({"n": n}) for n in range(6)]
    assert [shard.inspect().ready for shard in shards_of(queue)] == [2, 2, 2]
    ids += queue.send_many({"n": n} for n in range(6, 16))
    assert sorted(shard.inspect().ready for shard in shards_of(queue)) == [2, 2, 12]
    got = queue.receive(100)
    assert sorted(each.id for each in got) == sorted(ids)
    assert {each.queue for each in got} == {"orders"}
    assert {message.receipt.shard for message in got} == {0, 1, 2}
    assert len(queue.ack(*got)) == 16
    seen = queue.inspect()
    assert (seen.ready, seen.unacked, seen.stats["acked"]) == (0, 0, 16)


def test_what_one_call_sends_is_more_than_a_script_takes(queue: Queue) -> None:
    """Beyond 1,000 a call continues in the next shard; ids come back in the order of the bodies."""
    ids = queue.send_many({"n": n} for n in range(2500))
    assert sorted(shard.inspect().ready for shard in shards_of(queue)) == [500, 1000, 1000]
    numbers = {message.id: json.loads(message.body)["n"] for message in queue.scan("ready")}
    assert [numbers[message_id] for message_id in ids] == list(range(2500))


def test_receives_begin_with_another_shard_each_time(queue: Queue) -> None:
    """No shard waits until the others are empty."""
    for shard in shards_of(queue):
        shard.send_many({"n": n} for n in range(10))
    assert {queue.receive(1)[0].receipt.shard for _ in range(3)} == {0, 1, 2}


def test_a_receive_waits_for_all_shards(queue: Queue) -> None:
    """Whichever shard the message comes to, the doorbell of that one rings."""
    assert queue.receive(1, wait=0.05) == []
    shards_of(queue)[2].send({"n": 1})
    (got,) = queue.receive(1, wait=5)
    assert got.receipt.shard == 2


def test_each_settlement_goes_to_the_shard_of_the_receipt(queue: Queue) -> None:
    """ack, nack, release, bury, extend and working; and the receipt may be kept as text meanwhile."""
    shard = shards_of(queue)[2]
    shard.send_many({"n": n} for n in range(6))
    first, second, third, fourth, fifth, sixth = queue.receive(6)
    assert str(first.receipt).endswith("/2")
    assert len(queue.ack(queue.received(str(first.receipt)))) == 1
    queue.nack(second, error="no")
    queue.release(third)
    queue.bury(fourth, error="never")
    fifth = queue.extend(fifth, "2m")
    assert fifth.receipt.shard == 2
    sixth = queue.working(sixth)
    assert sixth.receipt.shard == 2
    seen = shard.inspect()
    assert (seen.ready, seen.unacked, seen.dead) == (2, 2, 1)
    assert (seen.stats["acked"], seen.stats["nacked"]) == (1, 1)
    with pytest.raises(StaleReceiptError):
        queue.nack(first)
    assert len(queue.ack(fifth, sixth)) == 2


def test_a_message_is_found_wherever_it_is(queue: Queue) -> None:
    """By id: show, details, hold, enqueue, delete, cancel; unknown ones nowhere."""
    shard = shards_of(queue)[1]
    one, two = shard.send_many([{"n": 1}, {"n": 2}])
    shown = queue.show(one)
    assert shown is not None
    assert shown.queue == "orders/1"
    details = queue.details(two)
    assert details is not None
    assert details.message.id == two
    assert queue.hold(one) == [one]
    assert queue.enqueue(one) == [one]
    deleted = queue.delete(one)
    assert deleted is not None
    assert queue.show(one) is None
    queue.cancel(two)
    assert queue.receive(5) == []
    assert queue.details("nowhere") is None


@pytest.mark.parametrize("verb", ["show", "details", "delete"])
def test_a_message_is_found_in_a_shard_that_the_client_does_not_know(
    queue: Queue, verb: str
) -> None:
    """Another client has divided the queue since this one read its shards; what is nowhere is not found."""
    message_id = shards_of(queue)[2].send({"n": 1})
    queue.ref.learn(WHOLE)
    assert getattr(queue, verb)("nowhere") is None
    queue.ref.learn(WHOLE)
    assert getattr(queue, verb)(message_id) is not None


@pytest.mark.parametrize("runs", [False, True])
def test_a_message_is_cancelled_in_a_shard_that_the_client_does_not_know(
    queue: Queue, runs: bool
) -> None:
    """Another client has divided the queue since this one read its shards."""
    shard = shards_of(queue)[2]
    message_id = shard.send({"n": 1})
    (message,) = shard.receive(1) if runs else (None,)
    queue.ref.learn(WHOLE)
    state = Cancellation.CANCELLING if runs else Cancellation.CANCELLED
    assert queue.cancel(message_id) is state
    if message is not None:
        shard.release(message)
    assert shard.receive(1) == []


def test_a_signal_reaches_a_run_in_a_shard_that_the_client_does_not_know(app: QWorker) -> None:
    """Whether or not the run has recorded anything."""

    @app.workflow(queue="orders")
    def order(run: SyncRun) -> int:
        return run.wait(int, name="paid")

    app.queue("orders").divide(2, wait=0)
    handles = [order.start() for _ in range(2)]
    drain(app, include_delayed=False)
    handles += [order.start() for _ in range(2)]
    for handle in handles:
        app.queue("orders").ref.learn(WHOLE)
        handle.signal(7, name="paid")
    drain(app)
    assert [handle.result(0) for handle in handles] == [7] * 4


def test_a_dead_letter_is_deleted_by_the_id_of_its_message(queue: Queue) -> None:
    """In any shard, and no other dead letter of that shard."""
    for shard in shards_of(queue):
        shard.send_many([{"n": 1}, {"n": 2}])
        one, two = shard.receive(2)
        queue.bury(one)
        queue.bury(two)
        deleted = queue.delete(one.id)
        assert deleted is not None
        assert deleted.state == "dead"
        assert [dead_letter.message.id for dead_letter in shard.dead(10)] == [two.id]
        assert queue.delete(one.id) is None


def test_async_deletes_a_dead_letter_of_any_shard(queue: Queue) -> None:
    """By the id of its message."""
    for shard in shards_of(queue):
        shard.send({"n": 1})
        queue.bury(*shard.receive(1))

    async def delete() -> list[Stored | None]:
        async with AsyncClient(queue.client.factory) as client:
            aqueue = AsyncQueue(client, queue.ref.namespace, "orders")
            ids = [dead_letter.message.id for dead_letter in await aqueue.dead()]
            return [await aqueue.delete(message_id) for message_id in ids]

    assert [stored.queue for stored in asyncio.run(delete()) if stored] == [
        "orders",
        "orders/1",
        "orders/2",
    ]
    assert queue.dead() == []


def bury_as(shard: Queue, entry_id: str, message_id: str = "m") -> None:
    """Store a dead letter under this id in the stream."""
    envelope = f"q1 {message_id} 1 1 0 0 0\n{{}}"
    words = ("XADD", shard.keys.dead, entry_id, "envelope", envelope)
    shard.client.execute(raw(*words, decode=bytes))


def test_dead_letters_of_the_same_id_are_distinguished_by_their_shard(queue: Queue) -> None:
    """What one shard is asked for leaves its neighbours alone."""
    for shard in shards_of(queue):
        bury_as(shard, "5-1")
    for shard, entry_id in zip(shards_of(queue), ("5-1", "5-1/1", "5-1/2"), strict=True):
        assert [dead_letter.entry_id for dead_letter in shard.dead()] == [entry_id]
    one = shards_of(queue)[1]
    for change in (one.drop_dead, one.redrive, lambda entry: one.edit_dead(entry, {})):
        with pytest.raises(InvalidOptionError, match="'5-1/2' is not in shard 'orders/1'"):
            change("5-1/2")
    assert queue.edit_dead("5-1/1", {"n": 2}).endswith("/1")
    assert queue.drop_dead("5-1/2") == 1
    assert queue.redrive("5-1") == ["5-1"]
    assert [len(shard.dead()) for shard in shards_of(queue)] == [0, 1, 0]


def test_a_dead_letter_named_by_its_entry_costs_no_walk(
    queue: Queue, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whichever shard it is in, and for each verb; only an id that is no entry's is searched for in all of them."""
    for shard in shards_of(queue):
        for number in range(1, 7):
            bury_as(shard, f"5-{number}", f"{queue.ref.keys.shard}-{number}")
    bury_as(shards_of(queue)[0], "9-9", "5-2")
    walked: list[str] = []
    walk = DeadLetterScan._next

    def noted(self: DeadLetterScan) -> Plan[list[DeadLetter]]:
        walked.append(self.keys.queue)
        return walk(self)

    monkeypatch.setattr(DeadLetterScan, "_next", noted)

    def found(*ids: str, newest: bool = False) -> list[str]:
        return [one.entry_id for one in queue.dead(ids={*ids}, newest=newest)]

    def run(*words: str) -> str:
        result = CliRunner().invoke(
            cli,
            ["--url", str(queue.client.factory.url), "--namespace", queue.ref.namespace, *words],
        )
        assert result.exit_code == 0, result.output
        return result.stdout

    assert found("5-1/2") == ["5-1/2"]
    assert found("5-1/2", "5-1", "5-3/1") == ["5-1", "5-1/2", "5-3/1"]
    assert found("5-1/2", "5-1/1", newest=True) == ["5-1/2", "5-1/1"]
    assert queue.tally_dead(ids={"5-1/2"}).total == 1
    assert "5-1/2" in run("dead", "show", "orders", "5-1/2")
    assert "5-1/2" in run("dead", "ls", "orders", "--id", "5-1/2")
    assert queue.redrive(ids={"5-1/2", "5-1/1"}) == ["5-1/1", "5-1/2"]
    assert queue.drop_dead(ids={"5-2/2", "5-2"}) == 2
    assert "redriven 1" in run("dead", "redrive", "orders", "--id", "5-4/2", "--yes")
    assert "dropped 2" in run("dead", "drop", "orders", "--id", "5-5/2", "--id", "5-5/1", "--yes")
    assert walked == []
    assert found("5-2") == ["9-9"], "the entry is gone: the message has its id"
    assert {*walked} == {"orders", "orders/1", "orders/2"}
    assert found("5-6/2", "5-2") == ["5-6/2", "9-9"]
    assert len(queue.dead(100)) == 12


def test_a_dead_letter_named_by_its_entry_needs_no_other_shard(queue: Queue) -> None:
    """A key of another type in one shard does not keep an operator from what is in the others."""
    first, second, third = shards_of(queue)
    for number in range(1, 5):
        bury_as(second, f"5-{number}")
    for shard in (first, third):
        queue.client.execute(raw("SET", shard.keys.dead, "of another program"))
    words = ["--url", str(queue.client.factory.url), "--namespace", queue.ref.namespace, "dead"]
    for verb in (["show", "orders"], ["redrive", "orders", "--yes", "--id"]):
        with capture_logs() as logged:
            result = CliRunner().invoke(cli, [*words, *verb, "5-1/1"])
        assert (result.exit_code, logged) == (0, []), result.output
    assert queue.redrive(ids={"5-2/1"}) == ["5-2/1"]
    assert queue.drop_dead(ids={"5-3/1"}) == 1
    with pytest.raises(ServerError, match="another type"):
        queue.drop_dead(ids={"5-3/1"})
    assert [one.entry_id for one in second.dead()] == ["5-4/1"]


def test_listing_continues_after_the_first_and_the_last_id(queue: Queue) -> None:
    """The ends of the range of entry ids are ids like others."""
    last = f"{2**64 - 1}-{2**64 - 1}"
    every = []
    for n, shard in enumerate(shards_of(queue)):
        for entry_id in ("0-1", last):
            bury_as(shard, entry_id)
            every.append(f"{entry_id}/{n}" if n else entry_id)
    every = every[::2] + every[1::2]
    assert [dead_letter.entry_id for dead_letter in queue.dead()] == every
    for after in ("0-0", "0-0/2"):
        assert [dead_letter.entry_id for dead_letter in queue.dead(after=after)] == every
    for position, after in enumerate(every, 1):
        assert [dead_letter.entry_id for dead_letter in queue.dead(after=after)] == every[position:]
        before = [dead_letter.entry_id for dead_letter in queue.dead(after=after, newest=True)]
        assert before == every[: position - 1][::-1]


def test_looks_put_the_shards_in_one_order(queue: Queue) -> None:
    """Peeking sorts by time over all shards, from either end; a scan sees each message once."""
    shards = shards_of(queue)
    for n, delay in enumerate((30, 10, 20)):
        shards[n].send({"n": delay}, delay=delay)
    assert [message.body for message in queue.peek(2, state="delayed")] == [
        b'{"n":10}',
        b'{"n":20}',
    ]
    assert [message.body for message in queue.peek(1, state="delayed", newest=True)] == [
        b'{"n":30}'
    ]
    assert [message.body for message in queue.peek(5, state="delayed", skip=2)] == [b'{"n":30}']
    for shard in shards:
        shard.send_many({"n": n} for n in range(300))
    seen = Counter(message.id for message in queue.scan(count=100))
    assert len(seen) == 903
    assert set(seen.values()) == {1}
    page = queue.scan_page(END, "ready", count=100)
    assert page.cursor != END
    with pytest.raises(InvalidOptionError, match="cursor"):
        queue.scan_page("7@ready-0/3", "ready")


def test_unacked_messages_are_listed_and_claimed_over_all_shards(queue: Queue) -> None:
    """`pending` from the earliest deadline on; `claim` takes from one shard after the other."""
    for n, shard in enumerate(shards_of(queue)):
        shard.send({"n": n})
    held = [queue.receive(1, visibility=v)[0] for v in (30, 10, 20)]
    assert [message.receipt for message in queue.pending(3)] == [held[n].receipt for n in (1, 2, 0)]
    assert len(queue.pending(2, newest=True)) == 2
    claimed = queue.claim(3, elapsed=0)
    assert sorted(each.receipt.shard for each in claimed) == [0, 1, 2]
    assert queue.ack(*held) == []
    assert len(queue.ack(*claimed)) == 3


def test_dead_letters_of_all_shards_are_one_list(queue: Queue) -> None:
    """Their entry ids name the shard: listing continues after any, and what is changed by id or filter is found."""
    for n in range(9):
        shards_of(queue)[n % 3].send({"n": n})
        (got,) = queue.receive(1)
        queue.bury(got, error=f"reason {n % 2}")
    dead_letters = queue.dead(100)
    assert len(dead_letters) == 9
    assert {letter.entry_id.partition("/")[2] for letter in dead_letters} == {"", "1", "2"}
    assert [letter.died_ms for letter in dead_letters] == sorted(
        letter.died_ms for letter in dead_letters
    )
    paged, after = [], "-"
    while page := queue.dead(2, after=after):
        paged += page
        after = page[-1].entry_id
    assert [dead_letter.entry_id for dead_letter in paged] == [
        letter.entry_id for letter in dead_letters
    ]
    paged, after = [], "-"
    while page := queue.dead(2, after=after, newest=True):
        paged += page
        after = page[-1].entry_id
    assert [dead_letter.entry_id for dead_letter in paged] == [
        letter.entry_id for letter in reversed(dead_letters)
    ]
    assert queue.tally_dead().total == 9
    chosen = dead_letters[-1].entry_id
    edited = queue.edit_dead(chosen, {"n": "edited"})
    assert queue.redrive(edited) == [edited]
    assert len(queue.redrive(error="reason 1", limit=3)) == 3
    assert queue.drop_dead(dead_letters[0].entry_id) == 1
    assert queue.drop_dead(everything=True) == 4
    assert len(queue.receive(10)) == 4


def test_attributes_and_pauses_hold_for_every_shard(queue: Queue) -> None:
    """A shard that continued while its queue is paused would be a pause that leaks."""
    queue.change(visibility="90s")
    assert {shard.attributes().visibility_ms for shard in shards_of(queue)} == {90_000}
    assert queue.pause("all") == "all"
    assert {shard.inspect().paused for shard in shards_of(queue)} == {"all"}
    assert queue.pause("state") == "all"
    queue.resume()
    assert {shard.inspect().paused for shard in shards_of(queue)} == {""}
    queue.configure(QueueAttributes(maxlen=1))
    for shard in shards_of(queue):
        shard.send({"n": 1})
    with pytest.raises(QueueFullError):
        queue.send({"n": 2})
    assert queue.purge() == 3


def test_a_unique_key_is_held_in_one_shard(queue: Queue) -> None:
    """For every sender and every option."""
    first = queue.send({"n": 1}, unique="invoice-7")
    assert {queue.send({"n": n}, unique="invoice-7") for n in range(5)} == {first}
    keys = [f"k{n}" for n in range(30)]
    ids = [queue.send({"n": n}, unique=key) for n, key in enumerate(keys)]
    again = [queue.send({"n": n}, unique=key) for n, key in enumerate(keys)]
    assert again == ids
    assert all(shard.inspect().ready > 3 for shard in shards_of(queue))
    got = queue.receive(100)
    queue.ack(*got)
    assert queue.send({"n": 1}, unique="invoice-7") != first


def test_figures_are_sums(queue: Queue) -> None:
    """`stat` and `inspect` count the queue, not a shard."""
    for shard in shards_of(queue):
        shard.send({"n": 1})
    stat = queue.stat()
    assert (stat.queue, stat.ready, stat.messages_in) == ("orders", 3, 3)
    assert queue.inspect().queue == "orders"


def test_a_queue_is_removed_with_its_shards(queue: Queue, app: QWorker) -> None:
    """No key is left, and the registry knows none of them."""
    for shard in shards_of(queue):
        shard.send({"n": 1})
    queue.receive(3)
    queue.remove()
    with redis_of(app) as raw:
        assert raw.keys(f"{app.namespace}:*") == []


def test_names_of_shards(app: QWorker) -> None:
    """A shard may be looked at by its name; no task can be put on one, and none has a number beyond the last."""
    with pytest.raises(InvalidNameError, match="not a valid name"):
        app.task(queue="orders/1")(lambda: None)
    for name in ("orders/64", "orders/01", "orders/", "orders/x", "/1", "a/b/1"):
        with pytest.raises(InvalidNameError):
            app.queue(name)


@pytest.mark.parametrize("given", [0, 65, -1, 1.5, "many", True, None])
def test_a_number_of_shards_is_checked(queue: Queue, given: object) -> None:
    """Before anything is written."""
    with pytest.raises(InvalidOptionError, match="shards"):
        queue.divide(given)  # type: ignore[arg-type]
    assert queue.division().active == 3


def test_a_shard_is_not_divided(queue: Queue) -> None:
    """Its queue is."""
    with pytest.raises(InvalidOptionError, match="divide 'orders'"):
        shards_of(queue)[1].divide(2)
    assert queue.division().active == 3


def test_receipts_are_written_and_read() -> None:
    """The shard is part of the text, where there is one."""
    for text in ("lease:1", "lease:12/3"):
        assert str(Receipt.parse(text)) == text
    for text in ("lease:1/", "lease:1/100", "lease:1/x"):
        with pytest.raises(InvalidOptionError):
            Receipt.parse(text)


def test_what_a_queue_says_of_its_shards() -> None:
    """How many are sent to, how many may hold messages, and since when; anything else says nothing."""
    assert Shards.parse(b"2 4 7") == Shards(2, 4, 7)
    for written in (
        b"",
        b"1",
        b"0 1 1",
        b"65 65 1",
        b"3 2 1",
        b"x",
        b"1 2",
        b"1 1 99999999999999999",
        None,
    ):
        assert Shards.parse(written) is None


def test_what_a_shard_says_of_itself() -> None:
    """Whether it takes messages, and which division says so; anything else takes none."""
    assert ReshardMark.parse(b"open 4 7") == ReshardMark(True, 4, 7)
    assert ReshardMark.parse(b"draining 1 8") == ReshardMark(False, 1, 8)
    for written in (b"", b"1", b"open", b"open 65 1", b"shut 1 1", b"open 1 -1", None):
        assert ReshardMark.parse(written) == UNMARKED


def test_a_shard_that_runs_empty_refuses(queue: Queue) -> None:
    """A send to it by its name is refused; a send to the queue goes to another shard."""
    knowing = Queue(queue.client, queue.ref.namespace, "orders")
    knowing.send({"n": 0})
    shards_of(queue)[2].send({"n": 1})
    queue.divide(2, wait=0)
    with pytest.raises(ShardDrainingError, match="orders/2"):
        shards_of(queue)[2].send({"n": 2})
    before = shards_of(queue)[2].inspect().ready
    for n in range(6):
        knowing.send({"n": n})
    assert shards_of(queue)[2].inspect().ready == before
