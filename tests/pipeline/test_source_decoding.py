"""Entries become rows: every column of every event, whatever flags its header has."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest

from qworker.errors import PipelineError
from qworker.pipeline.source.decoding import EntryPage, decode, gap_batch
from qworker.pipeline.source.schemas import arrow_of
from tests.pipeline.redis_journals import T0_MS, groups, line
from tests.tables import each

T0 = datetime.fromtimestamp(T0_MS / 1000, UTC)


def reply(*entries: tuple[bytes, ...], number: int = 0, event: int = 0, w: bytes = b"web-1:7"):
    """What XRANGE answers to entries of these events."""
    return raw(
        *((len(lines), groups(*lines)) for lines in entries), number=number, event=event, w=w
    )


def raw(*entries: tuple[int, bytes], number: int = 0, event: int = 0, w: bytes = b"web-1:7"):
    """What XRANGE returns for entries of these numbers of events and these groups."""
    reply = []
    for events, text in entries:
        fields = [
            b"n",
            b"%d" % event,
            b"k",
            b"%d" % events,
            b"b",
            b"0",
            b"t",
            b"%d" % (T0_MS + 50),
        ]
        reply.append((b"%d-%d" % (T0_MS, number), [*fields, b"w", w, b"e1", text]))
        number, event = number + 1, event + events
    return reply


def rows(*entries: tuple[bytes, ...], **about):
    return decoded(reply(*entries, **about))


def decoded(entries):
    batch = decode("emails", T0_MS, EntryPage.of("emails", entries))
    assert batch.schema.equals(arrow_of("journal"))
    batch.validate(full=True)
    return batch.to_pylist()


def ms(number: float) -> timedelta:
    return timedelta(milliseconds=number)


def test_an_ack_with_all_its_times():
    acked = line(
        "acked",
        "m1",
        sent=T0_MS,
        delivered=T0_MS + 20,
        started=T0_MS + 30,
        run_us=1500,
        task="send_email",
        receives=2,
    )
    (row,) = rows((acked,), number=7, event=70)
    assert row == {
        "queue": "emails",
        "shard": 0,
        "epoch": T0_MS,
        "entry": 7,
        "number": 70,
        "event": "acked",
        "message_id": "m1",
        "attempt": 3,
        "ts": T0 + ms(50),
        "sent_ts": T0,
        "ready_ts": T0,
        "delivered_ts": T0 + ms(20),
        "started_ts": T0 + ms(30),
        "wait_ms": 30.0,
        "run_ms": 1.5,
        "age_ms": 50,
        "task": "send_email",
        "reason": None,
        "error_class": None,
        "worker": "web-1:7",
        "trace_id": None,
    }


def test_a_dash_is_null_and_events_outside_of_a_delivery_have_no_attempt():
    (row,) = rows((line("expired", "m1", receives=4),), w=b"")
    assert row["attempt"] == 0
    nulls = [name for name, value in row.items() if value is None]
    assert nulls == [
        "delivered_ts", "started_ts", "wait_ms", "run_ms", "task", "reason", "error_class", "worker", "trace_id",
    ]  # fmt: skip


def test_the_flag_t_says_when_a_message_became_ready():
    (row,) = rows(
        (line("acked", sent=T0_MS, delivered=T0_MS + 20, flags=f"m=5 t={T0_MS + 15} u=k"),)
    )
    assert row["ready_ts"] == T0 + ms(15)
    assert row["wait_ms"] == 5.0


def test_a_wait_is_never_negative():
    (row,) = rows((line("acked", sent=T0_MS, delivered=T0_MS + 20, flags=f"t={T0_MS + 25}"),))
    assert row["wait_ms"] == 0.0


def test_the_trace_id_is_the_second_part_of_the_trace_context():
    trace = "0af7651916cd43dd8448eb211c80319c"
    (row,) = rows((line("acked", flags=f"p=3 w=00-{trace}-b7ad6b7169203331-01"),))
    assert row["trace_id"] == trace


def test_lines_with_different_flags_keep_their_order_and_their_values():
    trace = "0af7651916cd43dd8448eb211c80319c"
    lines = []
    for number in range(300):
        flags = [
            "",
            f"t={T0_MS + number}",
            f"m=5 w=00-{trace}-b7ad6b7169203331-01",
            f"f=1 m=2 p=3 t={T0_MS + number}",
        ]
        lines.append(line("nacked", f"m{number}", flags=flags[number % 7 % 4], receives=number))
    events = rows(tuple(lines[:100]), tuple(lines[100:101]), tuple(lines[101:]), event=1000)
    assert [row["message_id"] for row in events] == [f"m{number}" for number in range(300)]
    assert [row["number"] for row in events] == list(range(1000, 1300))
    assert [row["entry"] for row in events] == [0] * 100 + [1] + [2] * 199
    assert [row["attempt"] for row in events] == list(range(1, 301))
    for number, row in enumerate(events):
        kind = number % 7 % 4
        assert row["ready_ts"] == (T0 + ms(number) if kind in (1, 3) else T0)
        assert row["trace_id"] == (trace if kind == 2 else None)


def test_a_foreign_dead_letter_has_no_id_and_no_attempt():
    (row,) = rows((line("dead", "-", reason="foreign"),))
    assert (row["message_id"], row["attempt"], row["wait_ms"], row["reason"]) == (
        None,
        0,
        None,
        "foreign",
    )


@pytest.mark.parametrize(
    "bad",
    [
        b"q1 ",
        b"acked",
        b"q1 m1 x 0 0 0 0",
        b"q1 m1 5 soon 0 0 0",
        b"q1 m1 99999999999999999999 0 0 0 0",
    ],
)
def test_a_header_that_is_none_is_unreadable_and_keeps_its_number(bad):
    text = b"acked 5 - mail - -\nq1 m1 5 0 0 0 0\n" + bad + b"\nq1 m2 5 0 0 0 0 m=1 t=7"
    events = decoded(raw((3, text), (1, groups(line("acked", "m3")))))
    assert [(row["event"], row["message_id"], row["number"]) for row in events] == [
        ("acked", "m1", 0),
        ("unreadable", None, 1),
        ("acked", "m2", 2),
        ("acked", "m3", 3),
    ]
    assert events[2]["ready_ts"] == datetime.fromtimestamp(0.007, UTC)


@each("bad", [b"", b"acked", b"acked soon - mail - -", b"acked 5 - mail - - -"])
def test_a_group_of_which_nothing_is_known_is_unreadable(bad):
    text = bad + b"\nq1 m1 5 0 0 0 0\nq1 m2 5 0 0 0 0"
    events = decoded(raw((2, text), (1, groups(line("acked", "m3")))))
    assert [(row["event"], row["message_id"], row["number"]) for row in events] == [
        ("unreadable", "m1", 0),
        ("unreadable", "m2", 1),
        ("acked", "m3", 2),
    ]


@pytest.mark.parametrize("text", [b"", b"acked 5 - mail - -"])
def test_an_entry_without_a_header_is_one_unreadable_event(text):
    assert [(row["event"], row["number"]) for row in decoded(raw((1, text)))] == [("unreadable", 0)]


def test_groups_of_an_entry_have_their_own_times():
    events = rows(
        (
            line("nacked", "m1", delivered=T0_MS + 5, task="a", error="E"),
            line("acked", "m2", delivered=T0_MS + 5, started=T0_MS + 9, run_us=7, task="b"),
            line("acked", "m3", delivered=T0_MS + 5, started=T0_MS + 11, run_us=8, task="b"),
            line("delivered", "m4", delivered=T0_MS + 50),
        ),
        (line("acked", "m5", delivered=T0_MS + 6, started=T0_MS + 7, run_us=9, task="c"),),
    )
    assert [(row["started_ts"], row["run_ms"], row["task"]) for row in events] == [
        (None, None, "a"),
        (T0 + ms(9), 0.007, "b"),
        (T0 + ms(11), 0.008, "b"),
        (None, None, None),
        (T0 + ms(7), 0.009, "c"),
    ]


@each("times", [b"!", b"AAAA", b"AAAAAAAAAAA=", b"\xff", b"A"])
def test_times_that_are_not_two_per_event_are_unknown(times):
    text = b"acked 5 " + times + b" mail - -\nq1 m1 5 0 0 0 0\nq1 m2 5 0 0 0 0"
    for row in decoded(raw((2, text))):
        assert (row["event"], row["started_ts"], row["run_ms"]) == ("acked", None, None)


def test_bytes_that_are_not_text_do_no_harm():
    events = rows((line("acked", "m1"), line("acked", "m2") + b" u=\xff\xfe\r"), w=b"\xff")
    assert [row["message_id"] for row in events] == ["m1", "m2"]
    assert events[0]["worker"] == "\ufffd"


def test_text_after_a_header_that_is_not_a_flag_is_ignored():
    events = rows(
        (
            line("acked", "m1", flags=f"what t={T0_MS + 5} ="),
            line("acked", "m2", flags=f"u=a=b t={T0_MS + 7}"),
            line("acked", "m3", flags="= t=x w=1"),
        )
    )
    assert [row["ready_ts"] for row in events] == [T0 + ms(5), T0 + ms(7), T0]


def test_a_time_beyond_all_calendars_is_null():
    events = rows((line("acked", "m1", sent=9_999_999_999_999_999), line("acked", "m2")))
    assert [row["sent_ts"] for row in events] == [None, T0]


def test_an_entry_in_another_format_is_refused():
    entry = (b"5-7", [b"n", b"0", b"k", b"1", b"b", b"0", b"t", b"1", b"w", b"", b"e2", b"?"])
    with pytest.raises(
        PipelineError,
        match=r"journal of queue 'emails': this version cannot read the format of entry 5-7",
    ):
        EntryPage.of("emails", [entry])
    fields = [b"n", b"?", b"k", b"1", b"b", b"0", b"t", b"1", b"w", b"", b"e1", b"?"]
    with pytest.raises(PipelineError, match=r"between 5-7 and 5-7 has text in place of numbers"):
        EntryPage.of("emails", [(b"5-7", fields)])


def test_a_gap_has_its_own_row():
    (row,) = gap_batch("emails", T0_MS, 5, 50, "20 events in 2 entries", T0_MS).to_pylist()
    assert {name: value for name, value in row.items() if value is not None} == {
        "queue": "emails",
        "shard": 0,
        "epoch": T0_MS,
        "entry": 5,
        "number": 50,
        "event": "gap",
        "attempt": 0,
        "ts": T0,
        "reason": "20 events in 2 entries",
    }
