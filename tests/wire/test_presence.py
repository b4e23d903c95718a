"""What workers write about themselves, read back whole, in part and damaged."""

from __future__ import annotations

import msgspec

from qworker.wire.presence import (
    AHEAD_MS,
    ChildDocument,
    RunningDocument,
    WorkerDocument,
    is_gone,
    list_reapers,
)
from tests.tables import each

WHOLE = WorkerDocument(
    name="web-1-a",
    host="web",
    pid=7,
    app="shop.tasks",
    started_ms=1,
    seen_ms=2,
    queues=("emails",),
    shards=("emails", "emails/1"),
    leaving=True,
    tasks=("mail",),
    concurrency=4,
    handled_per_s=12.5,
    children=(
        ChildDocument(
            pid=77,
            state="running",
            handled=5,
            failed=1,
            rss_bytes=9,
            in_hand=2,
            running=(RunningDocument(task="mail", id="lease-1:0", seconds=3.2),),
        ),
    ),
)


def test_a_document_is_read_as_it_was_written() -> None:
    """Every field of it."""
    assert WorkerDocument.parse(msgspec.json.encode(WHOLE)) == WHOLE


@each(
    "data, expected",
    [
        (b"", WorkerDocument()),
        (b"not JSON", WorkerDocument()),
        (b"[1]", WorkerDocument()),
        (b"[" * 2000, WorkerDocument()),
        (b'{"seen_ms": 1e400}', WorkerDocument()),
        (b'{"seen_ms": 5, "of a later version": [1]}', WorkerDocument(seen_ms=5)),
        (b'{"queues": 5, "children": "x", "seen_ms": "y", "tasks": 5}', WorkerDocument()),
        (b'{"host": null, "pid": true, "leaving": 1}', WorkerDocument()),
        (b'{"queues": ["a", 5, null], "tasks": []}', WorkerDocument(queues=("a",), tasks=())),
        (
            b'{"children": [1, null, {}, {"running": [5, {"task": 5, "seconds": "x"}]}]}',
            WorkerDocument(
                children=(ChildDocument(), ChildDocument(running=(RunningDocument(task="5"),)))
            ),
        ),
    ],
)
def test_a_document_of_another_version_or_a_damaged_one_is_read_field_by_field(
    data: bytes, expected: WorkerDocument
) -> None:
    """What cannot be read has its default, and costs no other field."""
    assert WorkerDocument.parse(data) == expected


def test_a_worker_that_has_been_silent_for_more_than_15_seconds_is_gone() -> None:
    """It receives from none of its queues then; a reaper is gone after as long."""
    worker = WorkerDocument(seen_ms=100_000, queues=("emails",))

    assert [is_gone(15_000), is_gone(15_001)] == [False, True]
    assert worker.serves("emails", 115_000)
    assert not worker.serves("emails", 115_001)
    assert not worker.serves("orders", 100_000)
    assert worker.age_ms(99_000) == 0  # written just after the clock was read
    assert [reaper.is_gone for reaper in list_reapers([b"r", b"100000"], 115_001)] == [True]


def test_what_was_seen_far_ahead_is_from_before_the_clock_was_set_back() -> None:
    """A killed worker or reaper of that time is gone at once; the living ones have written their time again."""
    now_ms, ahead_ms = 10_000_000, 10_000_000 + AHEAD_MS
    assert [WorkerDocument(seen_ms=at).age_ms(now_ms) for at in (ahead_ms, ahead_ms + 1)] == [
        0,
        AHEAD_MS + 1,
    ]
    flat = [b"killed", str(ahead_ms + 1).encode(), b"alive", str(now_ms).encode()]
    reapers = list_reapers(flat, now_ms)
    assert [(reaper.name, reaper.is_gone) for reaper in reapers] == [
        ("alive", False),
        ("killed", True),
    ]
