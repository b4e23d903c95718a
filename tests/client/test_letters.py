"""Dead letters from the library: filters, tallies, redrives at a rate, edits; sync and async."""

from __future__ import annotations

import asyncio
import re
import time
from collections.abc import Iterator

import pytest

from qworker.client.aio import AsyncClient
from qworker.client.aqueue import AsyncQueue
from qworker.client.commands.command import Command
from qworker.client.dead_filter import DeadFilter
from qworker.client.letter_pages import Reading, change, redrive
from qworker.client.message import DeadLetter, Stored
from qworker.client.queue import Queue
from qworker.client.rate import Pace
from qworker.client.sync import Client
from qworker.errors import InvalidBodyError, InvalidOptionError
from qworker.store.connection import ConnectionFactory
from qworker.wire.codec import encode_call


@pytest.fixture
def queue(store_url: str, namespace: str) -> Iterator[Queue]:
    with Client(ConnectionFactory(store_url), give_up_s=5.0) as client:
        yield Queue(client, namespace, "emails")


def bury(queue: Queue, *errors: str, task: str = "send_email") -> list[str]:
    """Leave a dead letter for each error; their message ids."""
    ids = queue.send_all([encode_call(task, [1], {})] * len(errors))
    for message, error in zip(queue.receive(len(errors)), errors, strict=True):
        queue.bury(message, error=error)
    return ids


def letter(**fields: object) -> DeadLetter:
    """A dead letter that died at 1,000 ms."""
    message = Stored.of("q", "dead", b"q1 m 1 1 0 0 0\n" + encode_call("render", [], {}))
    known = {"reason": "rejected", "error_class": "redis.TimeoutError", "error": "No Answer"}
    return DeadLetter("5-0", **{**known, "died_ms": 1000, "message": message, **fields})  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("filters", "fits"),
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
def test_a_letter_is_meant_if_it_fits_everything(filters, fits):
    """Two seconds past 1970, a second after its death."""
    assert DeadFilter.of(None, filters).fits(letter(), 2000) is fits


@pytest.mark.parametrize(
    ("filters", "said"),
    [
        ({"taks": "x"}, "taks: is unknown; did you mean task"),
        ({"task": 5}, "task: is not a str"),
        ({"ids": "5-0"}, "ids: is no set of str"),
        ({"older_than": "soon"}, "older_than"),
    ],
)
def test_a_filter_that_is_none_is_refused(queue, filters, said):
    """By its name, before anything is read."""
    with pytest.raises(InvalidOptionError, match=said):
        queue.dead(**filters)


def test_listing_filters_and_goes_on(queue):
    """By filter from either end, and behind an entry id."""
    bury(queue, *["odd", "even"] * 75)
    bury(queue, "last", task="render_pdf")
    assert [each.error for each in queue.dead(2, error="EVEN")] == ["even", "even"]
    assert [each.error for each in queue.dead(2, newest=True)] == ["last", "even"]
    (last,) = queue.dead(5, task="render_pdf")
    assert (last.error, last.message.task) == ("last", "render_pdf")
    every = queue.dead(1000)
    assert queue.dead(1000, after=every[99].entry_id) == every[100:]
    assert queue.dead(1000, after=every[99].entry_id, newest=True) == every[98::-1]
    assert queue.dead(1000, error="odd", newest=True)[0] == every[148]
    tally = queue.tally_dead(older_than=0)
    assert (tally.total, dict(tally.tasks)) == (151, {"send_email": 150, "render_pdf": 1})
    assert queue.tally_dead(newer_than="1h", error="odd").total == 75


@pytest.mark.parametrize(
    ("call", "said"),
    [
        (lambda queue: queue.dead(0), "count: 0 is out of range"),
        (lambda queue: queue.dead("5"), "count: '5' is not an integer"),
        (lambda queue: queue.dead(5, after="now"), "entry id: 'now' is none"),
        (lambda queue: queue.redrive("1-1", "x"), "entry id: 'x' is none"),
        (lambda queue: queue.drop_dead("1-"), "entry id: '1-' is none"),
        (lambda queue: queue.redrive(everything=True, limit=-1), "limit: -1 is out of range"),
        (lambda queue: queue.drop_dead(everything=True, limit=1.5), "limit: 1.5 is not an integer"),
        (lambda queue: queue.redrive("1-1", rate="x"), "rate: 'x' is no rate"),
    ],
)
def test_what_names_no_letters_is_refused(queue, call, said):
    """Numbers have ranges, entry ids their form; nothing is changed before all of it is looked at."""
    bury(queue, "a")
    with pytest.raises(InvalidOptionError, match=re.escape(said)):
        call(queue)
    assert len(queue.dead()) == 1


def test_a_limit_ends_a_redrive(queue):
    """No more than so many go, the oldest first; 0 are none."""
    ids = bury(queue, "a", "b", "c")
    assert queue.redrive(everything=True, limit=0) == []
    assert len(queue.redrive(everything=True, limit=2)) == 2
    assert [each.message.id for each in queue.dead()] == ids[2:]


def test_what_fits_is_redriven_or_dropped(queue):
    """Filters choose, `everything` all; neither needs to be guessed."""
    bury(queue, "a", "b", "c", "a")
    bury(queue, "d", task="render_pdf")
    assert len(queue.redrive(error="a", limit=1)) == 1
    assert queue.drop_dead(task="render_pdf") == 1
    entries = [each.entry_id for each in queue.dead()]
    assert queue.redrive(entries[0], entries[0]) == [entries[0]]
    assert queue.redrive() == []
    assert queue.redrive(everything=True) == entries[1:]
    assert queue.dead() == []
    with pytest.raises(InvalidOptionError, match="fits every dead letter; say everything=True"):
        queue.redrive(task="")
    with pytest.raises(InvalidOptionError, match="are given beside a filter"):
        queue.drop_dead("1-1", everything=True)


def test_letters_that_die_meanwhile_are_left_alone(queue):
    """A redrive ends at what was the newest letter when it began, however soon the same ones fail again."""
    ids = bury(queue, *"abc")
    reading = queue.client.run(Reading.begin(queue.ref, DeadFilter()))
    late = bury(queue, "d")
    changed = queue.client.run(change(queue.keys, reading, redrive, pace=Pace(None)))
    assert (changed.done, changed.gone, changed.foreign) == (3, 0, 0)
    assert [each.id for each in queue.peek()] == ids
    assert [each.message.id for each in queue.dead()] == late


def test_a_redrive_keeps_to_its_rate(queue):
    """Thirty at 100 per second take three tenths of a second."""
    bury(queue, *["x"] * 30)
    began = time.monotonic()
    assert len(queue.redrive(everything=True, rate="100/s")) == 30
    assert time.monotonic() - began >= 0.3
    with pytest.raises(InvalidOptionError, match="rate: 'fast' is no rate"):
        queue.redrive(everything=True, rate="fast")


def test_a_letter_is_edited(queue):
    """Any JSON value; what called a task calls one afterwards; what is not there is named."""
    (message_id,) = bury(queue, "a")
    (entry,) = [each.entry_id for each in queue.dead()]
    made = queue.edit_dead(entry, {"task": "render_pdf", "args": []})
    (edited,) = queue.dead()
    assert (edited.entry_id, edited.message.id, edited.error) == (made, message_id, "a")
    assert edited.message.task == "render_pdf"
    queue.redrive(made)
    with pytest.raises(InvalidOptionError, match=f"has no dead letter '{made}'"):
        queue.edit_dead(made, {"task": "x"})
    bury(queue, "b")
    (entry,) = [each.entry_id for each in queue.dead()]
    for body in (b"{", [1], {"task": "x", "args": 1}):
        with pytest.raises(InvalidBodyError):
            queue.edit_dead(entry, body)
    with pytest.raises(InvalidOptionError, match="entry id: '1' is none"):
        queue.edit_dead("1", {})
    queue.client.execute(
        Command(None, (), ("XADD", queue.keys.dead, "*", "envelope", b"hello"), bytes)
    )
    with pytest.raises(InvalidOptionError, match="is foreign"):
        queue.edit_dead(queue.dead(1, newest=True)[0].entry_id, {})


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


def test_a_pace_is_kept_in_small_steps_and_never_made_up_at_once():
    """Goes of a tenth of a second; after a stall of a minute a second's worth is made up, not a minute's."""
    now = 0.0
    pace = Pace(100, clock=lambda: now)
    assert (pace.go(100), pace.go(5)) == (10, 5)
    assert pace.done(10) == pytest.approx(0.1)
    assert pace.done(10) == pytest.approx(0.2)
    now = 0.2
    assert pace.done(10) == pytest.approx(0.1)
    now = 60.0
    waits = [pace.done(10) for _ in range(11)]
    assert waits[:10] == pytest.approx([0] * 10)
    assert waits[10] == pytest.approx(0.1)
    assert (Pace(0.5).go(100), Pace(None).go(100), Pace(None).done(100)) == (1, 100, 0)
