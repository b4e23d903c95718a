"""Dead letters from the library: filters, tallies, redrives at a rate, edits; sync and async."""

from __future__ import annotations

import asyncio
import re
import time
from collections.abc import Iterator

import pytest

from qworker.client.dead.filter import DeadFilter
from qworker.client.dead.pages import DeadLetterScan, change, redrive
from qworker.client.dead.throttle import Throttle
from qworker.client.execute.aio import AsyncClient
from qworker.client.execute.sync import Client
from qworker.client.message import DeadLetter, Stored
from qworker.client.queue import AsyncQueue, Queue
from qworker.engine.raw import raw
from qworker.errors import InvalidBodyError, InvalidOptionError
from qworker.store.connections import ConnectionFactory
from qworker.wire.codec import encode_call
from qworker.wire.ids import EntryId
from tests.tables import each


@pytest.fixture
def queue(store_url: str, namespace: str) -> Iterator[Queue]:
    with Client(ConnectionFactory(store_url), give_up_s=5.0) as client:
        yield Queue(client, namespace, "emails")


def bury(queue: Queue, *errors: str, task: str = "send_email") -> list[str]:
    """Leave a dead letter for each error; their message ids."""
    ids = queue.send_many([encode_call(task, [1], {})] * len(errors))
    for message, error in zip(queue.receive(len(errors)), errors, strict=True):
        queue.bury(message, error=error)
    return ids


def dead_letter(**fields: object) -> DeadLetter:
    """A dead letter that died at 1,000 ms."""
    message = Stored.of("q", "dead", b"q1 m 1 1 0 0 0\n" + encode_call("render", [], {}))
    known = {"reason": "rejected", "error_class": "redis.TimeoutError", "error": "No Answer"}
    return DeadLetter(EntryId(5, 0), **{**known, "died_ms": 1000, "message": message, **fields})  # type: ignore[arg-type]


@each(
    "filters, fits",
    [
        ({}, True),
        ({"task": "render"}, True),
        ({"task": "rende"}, False),
        ({"reason": "rejected"}, True),
        ({"reason": "foreign"}, False),
        ({"error_class": "TimeoutError"}, True),
        ({"error_class": "Error"}, False),
        ({"error": "no answer"}, True),
        ({"error": "answers"}, False),
        ({"older_than": "1s"}, True),
        ({"older_than": 1.001}, False),
        ({"newer_than": "1s"}, True),
        ({"newer_than": 0.999}, False),
        ({"ids": {"5-0"}}, True),
        ({"ids": ["m", "n"]}, True),
        ({"ids": {"n"}}, False),
        ({"task": "render", "reason": "foreign"}, False),
    ],
)
def test_a_dead_letter_fits_if_every_field_fits(filters, fits):
    """At two seconds past 1970, a second after its death."""
    assert DeadFilter.of(None, filters).fits(dead_letter(), 2000) is fits


@pytest.mark.parametrize(
    ("filters", "said"),
    [
        ({"taks": "x"}, "taks: is unknown; did you mean task"),
        ({"task": 5}, "task: is not a str"),
        ({"ids": "5-0"}, "ids: is not a set of str"),
        ({"older_than": "soon"}, "older_than"),
    ],
)
def test_an_invalid_filter_is_refused(queue, filters, said):
    """Under its name, before anything is read."""
    with pytest.raises(InvalidOptionError, match=said):
        queue.dead(**filters)


@pytest.mark.slow
def test_listing_filters_and_continues(queue):
    """By filter from either end, and from an entry id on."""
    bury(queue, *["odd", "even"] * 75)
    bury(queue, "last", task="render_pdf")
    assert [dead_letter.error for dead_letter in queue.dead(2, error="EVEN")] == ["even", "even"]
    assert [dead_letter.error for dead_letter in queue.dead(2, newest=True)] == ["last", "even"]
    (last,) = queue.dead(5, task="render_pdf")
    assert (last.error, last.message.task) == ("last", "render_pdf")
    every = queue.dead(1000)
    assert queue.dead(1000, after=every[99].entry_id) == every[100:]
    assert queue.dead(1000, after=every[99].entry_id, newest=True) == every[98::-1]
    assert queue.dead(1000, error="odd", newest=True)[0] == every[148]
    tally = queue.tally_dead(older_than=0)
    assert (tally.total, dict(tally.tasks)) == (151, {"send_email": 150, "render_pdf": 1})
    assert queue.tally_dead(newer_than="1h", error="odd").total == 75


def test_entries_that_are_named_are_read_by_themselves(queue, monkeypatch):
    """To show or redrive one of a million costs no read of the others; an id that is no entry's may be a message's."""
    message_ids = bury(queue, *["same"] * 150)
    every = queue.dead(1000)
    reads, execute = list[object](), Client._execute

    def traced(self, step, patience):
        reads.extend(word for word in step.args[:1] if word in ("XRANGE", "XREVRANGE"))
        return execute(self, step, patience)

    monkeypatch.setattr(Client, "_execute", traced)

    def read(**filters: object) -> list[DeadLetter]:
        reads.clear()
        return queue.dead(200, **filters)

    named = {every[7].entry_id, every[140].entry_id}
    assert read(ids=named) == [every[7], every[140]]
    assert len(reads) == 2
    assert read(ids=named, newest=True) == [every[140], every[7]]
    assert read(ids=named, reason="foreign") == []
    assert len(reads) == 2
    assert read(ids={every[7].entry_id, message_ids[9]}) == [every[7], every[9]]
    assert read(ids={every[7].entry_id, "17-3"}) == [every[7]]
    assert queue.redrive(ids={every[7].entry_id}) == [every[7].entry_id]
    assert read(ids={every[7].entry_id}) == []
    assert len(reads) > 1
    assert queue.drop_dead(ids={every[8].entry_id, every[9].entry_id}) == 2
    assert queue.tally_dead().total == 147


@pytest.mark.parametrize(
    ("call", "said"),
    [
        (lambda queue: queue.dead(0), "count: 0 is out of range"),
        (lambda queue: queue.dead("5"), "count: '5' is not an integer"),
        (lambda queue: queue.dead(5, after="now"), "entry id: 'now' is not an entry id"),
        (lambda queue: queue.redrive("1-1", "x"), "entry id: 'x' is not an entry id"),
        (lambda queue: queue.drop_dead("1-"), "entry id: '1-' is not an entry id"),
        (lambda queue: queue.redrive(everything=True, limit=-1), "limit: -1 is out of range"),
        (lambda queue: queue.drop_dead(everything=True, limit=1.5), "limit: 1.5 is not an integer"),
        (lambda queue: queue.redrive("1-1", rate="x"), "rate: 'x' is not a rate"),
    ],
)
def test_invalid_choices_are_refused(queue, call, said):
    """Numbers have ranges, entry ids their form; all are checked before anything is changed."""
    bury(queue, "a")
    with pytest.raises(InvalidOptionError, match=re.escape(said)):
        call(queue)
    assert len(queue.dead()) == 1


def test_a_limit_ends_a_redrive(queue):
    """It redrives the oldest first, up to the limit; 0 redrives none."""
    ids = bury(queue, "a", "b", "c")
    assert queue.redrive(everything=True, limit=0) == []
    assert len(queue.redrive(everything=True, limit=2)) == 2
    assert [dead_letter.message.id for dead_letter in queue.dead()] == ids[2:]


def test_filters_choose_the_dead_letters_to_redrive_or_drop(queue):
    """Filters choose some, `everything` chooses all; one of them is required."""
    bury(queue, "a", "b", "c", "a")
    bury(queue, "d", task="render_pdf")
    assert len(queue.redrive(error="a", limit=1)) == 1
    assert queue.drop_dead(task="render_pdf") == 1
    entries = [dead_letter.entry_id for dead_letter in queue.dead()]
    assert queue.redrive(entries[0], entries[0]) == [entries[0]]
    assert queue.redrive() == []
    assert queue.redrive(everything=True) == entries[1:]
    assert queue.dead() == []
    with pytest.raises(InvalidOptionError, match="fits every dead letter; pass everything=True"):
        queue.redrive(task="")
    with pytest.raises(InvalidOptionError, match="are given together with a filter"):
        queue.drop_dead("1-1", everything=True)


def test_later_dead_letters_are_left_alone(queue):
    """A redrive ends at the dead letter that was newest at its start, however soon the same messages fail again."""
    ids = bury(queue, *"abc")
    reading = queue.client.run(DeadLetterScan.begin(queue.ref, DeadFilter()))
    late = bury(queue, "d")
    changed = queue.client.run(change(queue.keys, reading, redrive, throttle=Throttle(None)))
    assert (changed.done, changed.gone, changed.foreign) == (3, 0, 0)
    assert [message.id for message in queue.peek()] == ids
    assert [dead_letter.message.id for dead_letter in queue.dead()] == late


def test_a_redrive_keeps_to_its_rate(queue):
    """Thirty at 100 per second take three tenths of a second."""
    bury(queue, *["x"] * 30)
    began = time.monotonic()
    assert len(queue.redrive(everything=True, rate="100/s")) == 30
    assert time.monotonic() - began >= 0.3
    with pytest.raises(InvalidOptionError, match="rate: 'fast' is not a rate"):
        queue.redrive(everything=True, rate="fast")


def test_a_dead_letter_is_edited(queue):
    """To any JSON value; a call of a task stays a call; a missing entry is named."""
    (message_id,) = bury(queue, "a")
    (entry,) = [dead_letter.entry_id for dead_letter in queue.dead()]
    made = queue.edit_dead(entry, {"task": "render_pdf", "args": []})
    (edited,) = queue.dead()
    assert (edited.entry_id, edited.message.id, edited.error) == (made, message_id, "a")
    assert edited.message.task == "render_pdf"
    queue.redrive(made)
    with pytest.raises(InvalidOptionError, match=f"has no dead letter '{made}'"):
        queue.edit_dead(made, {"task": "x"})
    bury(queue, "b")
    (entry,) = [dead_letter.entry_id for dead_letter in queue.dead()]
    for body in (b"{", [1], {"task": "x", "args": 1}):
        with pytest.raises(InvalidBodyError):
            queue.edit_dead(entry, body)
    with pytest.raises(InvalidOptionError, match="entry id: '1' is not an entry id"):
        queue.edit_dead("1", {})
    queue.client.execute(raw("XADD", queue.keys.dead, "*", "envelope", b"hello", decode=bytes))
    with pytest.raises(InvalidOptionError, match="is foreign"):
        queue.edit_dead(queue.dead(1, newest=True)[0].entry_id, {})


def test_a_foreign_message_has_no_id(queue):
    """An empty id, as of an unset variable, names no message that is not ours; entry ids name dead letters."""
    queue.client.execute(raw("XADD", queue.keys.dead, "5-1", "envelope", b"hello", decode=bytes))
    queue.client.execute(raw("RPUSH", queue.keys.ready[0], b"{}", b"hello", decode=int))
    queue.client.execute(raw("ZADD", queue.keys.delayed, 2**52, b"hello", decode=int))
    assert queue.show("") is None
    assert queue.delete("") is None
    assert queue.hold("") == queue.enqueue("") == []
    assert queue.dead(ids={""}) == []
    assert queue.drop_dead(ids={""}) == 0
    assert queue.drop_dead(ids={"5-1"}) == 1


def test_async_does_the_same(queue, store_url, namespace):
    """List, count, edit, redrive at a rate and drop; other coroutines run while it waits."""
    bury(queue, *"abcd")

    async def work() -> None:
        async with AsyncClient(ConnectionFactory(store_url), give_up_s=5.0) as client:
            aqueue = AsyncQueue(client, namespace, "emails")
            (first,) = await aqueue.dead(error="a")
            assert (await aqueue.tally_dead(error="a")).total == 1
            await aqueue.edit_dead(first.entry_id, {"task": "t"})
            steps = 0

            async def count() -> None:
                nonlocal steps
                while True:
                    await asyncio.sleep(0.01)
                    steps += 1

            counting = asyncio.create_task(count())
            assert len(await aqueue.redrive(limit=3, everything=True, rate=20)) == 3
            counting.cancel()
            assert steps >= 5
            assert await aqueue.drop_dead(newer_than="1h") == 1

    asyncio.run(work())
    assert queue.inspect().ready == 3


def test_a_throttle_keeps_its_rate_in_small_batches_and_makes_up_for_a_second_at_most():
    """Batches of a tenth of a second; after a stall of a minute it makes up for a second, not for the minute."""
    now = 0.0
    throttle = Throttle(100, clock=lambda: now)
    assert (throttle.batch(100), throttle.batch(5)) == (10, 5)
    assert throttle.done(10) == pytest.approx(0.1)
    assert throttle.done(10) == pytest.approx(0.2)
    now = 0.2
    assert throttle.done(10) == pytest.approx(0.1)
    now = 60.0
    waits = [throttle.done(10) for _ in range(11)]
    assert waits[:10] == pytest.approx([0] * 10)
    assert waits[10] == pytest.approx(0.1)
    assert (Throttle(0.5).batch(100), Throttle(None).batch(100), Throttle(None).done(100)) == (
        1,
        100,
        0,
    )
