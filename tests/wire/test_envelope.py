"""The envelope: Python writes and reads it as the scripts do."""

from __future__ import annotations

import re
from itertools import dropwhile

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from qworker.wire.envelope import FIRST, Envelope, ItemKind, head, kind_of, tail
from tests.effort import examples
from tests.tables import each

ids = st.text("abcXYZ019._-", min_size=1, max_size=64)
counters = st.integers(0, 999_999)
flags = st.dictionaries(st.sampled_from("xmvpftudweg"), st.text(min_size=0, max_size=40))


def written(
    message_id: str,
    sent_ms: int,
    counts: tuple[int, int, int, int],
    flags: dict[str, str],
    body: bytes,
) -> bytes:
    """Return an envelope as the sending script writes it."""
    middle = " ".join(map(str, (sent_ms, *counts)))
    return head(message_id).encode() + middle.encode() + tail(body, flags)


@given(ids, st.integers(0, 10**16 - 1), st.tuples(*[counters] * 4), flags, st.binary(max_size=200))
@pytest.mark.slow
def test_reads_what_was_written(
    message_id: str,
    sent_ms: int,
    counts: tuple[int, int, int, int],
    flags: dict[str, str],
    body: bytes,
) -> None:
    """Every id, time, count, flag and body is read unchanged."""
    item = written(message_id, sent_ms, counts, flags, body)
    envelope = Envelope.parse(item)
    assert envelope is not None
    assert (envelope.id, envelope.sent_ms, envelope.body) == (message_id, sent_ms, body)
    assert (envelope.receives, envelope.nacks, envelope.timeouts, envelope.shared) == counts
    assert (envelope.flags, envelope.has_flags) == (flags, bool(flags))
    assert kind_of(item) is ItemKind.OWN


def test_example_is_the_one_in_the_documentation() -> None:
    """The stored envelope is readable."""
    item = written("abc", 17, (1, 2, 3, 4), {"p": "5", "u": "a b"}, b'{"x":1}')
    assert item == b'q1 abc 17 1 2 3 4 p=5 u=a%20b\n{"x":1}'


@each(
    "item, kind",
    [
        (b"q1 a 1 0 0 0 0\n", ItemKind.OWN),
        (b"q1 a 1 0 0 0 0\nq2 b", ItemKind.OWN),
        (b'{"a": 1}', ItemKind.PLAIN),
        (b"[1]", ItemKind.PLAIN),
        (b"{", ItemKind.PLAIN),
        (b"q2 whatever", ItemKind.NEWER),
        (b"q10 \n", ItemKind.NEWER),
        (b"q01 a 1 0 0 0 0\n", ItemKind.NEWER),
        (b"", ItemKind.FOREIGN),
        (b"hello", ItemKind.FOREIGN),
        (b"q1", ItemKind.FOREIGN),
        (b"q2", ItemKind.FOREIGN),
        (b"q 1", ItemKind.FOREIGN),
        (b"Q1 a 1 0 0 0 0\n", ItemKind.FOREIGN),
        (b" q1 a 1 0 0 0 0\n", ItemKind.FOREIGN),
        (b"q1 a 1 0 0 0 0", ItemKind.FOREIGN),
        (b"q1 a 1 0 0 0\n", ItemKind.FOREIGN),
        (b"q1 a 1 0 0 0 0 \n", ItemKind.FOREIGN),
        (b"q1 a 1 0 0 0 0 px\n", ItemKind.FOREIGN),
        (b"q1 a 1 0 0 0 0 pp=1\n", ItemKind.FOREIGN),
        (b"q1 a  1 0 0 0 0\n", ItemKind.FOREIGN),
        (b"q1 a -1 0 0 0 0\n", ItemKind.FOREIGN),
        (b"q1 a 1 1234567 0 0 0\n", ItemKind.FOREIGN),
        (b"q1 a 12345678901234567 0 0 0 0\n", ItemKind.FOREIGN),
        (b"q1 " + b"a" * 65 + b" 1 0 0 0 0\n", ItemKind.FOREIGN),
        (b"q1 a 1 0 0 0 \xd9\xa1\n", ItemKind.FOREIGN),
        (b"\x80\x04K\x01.", ItemKind.FOREIGN),
    ],
)
def test_returns_the_kind_of_an_item(item: bytes, kind: ItemKind) -> None:
    """A valid header is our own; JSON is plain, another version is newer, the rest is foreign."""
    assert kind_of(item) is kind
    assert (Envelope.parse(item) is not None) is (kind is ItemKind.OWN)


@pytest.mark.bad_input("data found: envelope cut at any byte")
def test_a_cut_header_is_foreign() -> None:
    """An envelope that is cut in its header is foreign; cut in its body it has another body."""
    item = written("abc", 17, (1, 2, 3, 4), {"p": "5"}, b"body\n")
    line_end = item.index(b"\n") + 1
    assert all(kind_of(item[:at]) is ItemKind.FOREIGN for at in range(line_end))
    assert all(kind_of(item[:at]) is ItemKind.OWN for at in range(line_end, len(item) + 1))


@pytest.mark.bad_input("data found: nonsense in a header")
@given(st.binary(max_size=60))
@settings(max_examples=examples(300))
def test_no_bytes_raise(junk: bytes) -> None:
    """Reading any bytes of a list never raises."""
    for item in (
        junk,
        b"q1 " + junk,
        b"q1 a 1 0 0 0 0" + junk,
        b"q1 a 1 0 0 0 0 w=" + junk + b"\n",
    ):
        kind_of(item)
        envelope = Envelope.parse(item)
        if envelope is not None:
            assert isinstance(envelope.flags, dict)


def test_body_begins_after_the_first_newline() -> None:
    """No flag value can end the header, and a body can begin with newlines."""
    item = written("a", 1, (0, 0, 0, 0), {"w": "x\n y=\r\n"}, b"\n\nbody")
    envelope = Envelope.parse(item)
    assert envelope is not None
    assert (envelope.body, envelope.flags) == (b"\n\nbody", {"w": "x\n y=\r\n"})


@given(ids, st.integers(0, 10**16 - 1), st.sampled_from([(0,) * 4, (1, 0, 0, 0)]), flags)
@pytest.mark.slow
def test_first_matches_exactly_the_headers_of_first_deliveries(
    message_id: str, sent_ms: int, counts: tuple[int, int, int, int], flags: dict[str, str]
) -> None:
    """`FIRST` matches headers without counts and encryption, and yields the same time, body, and flags that matter."""
    item = written(message_id, sent_ms, counts, flags, b'{"a":\n1}')
    first = FIRST.match(item)
    assert (first is not None) == (counts == (0,) * 4 and "e" not in flags)
    if first is not None:
        assert (int(first[1]), item[first.end() :]) == (sent_ms, b'{"a":\n1}')
        unread = "".join(f" {key}=" for key in dropwhile("gmpv".__contains__, flags))
        assert re.sub(b"=[^ ]*", b"=", first[2] or b"") == unread.encode()


def test_first_reads_a_header_of_any_length_once() -> None:
    """A header that does not match is not tried anew from each of its flags."""
    assert FIRST.match(b"q1 a 1 0 0 0 0" + 300_000 * b" g=" + b" e=1\n") is None


@each(
    "item",
    [
        b"q1 a b 1 0 0 0 0\n",
        b"q1  1 0 0 0 0\n",
        b"q1 a -1 0 0 0 0\n",
        b"q1 a 1 0 0 0\n",
        b"q1 a 1 0 0 0 0",
        b"q1 a 1 0 0 0 0 \n",
        b"q1 a 1 0 0 0 0 X=1\n",
        b"q1 a 12345678901234567 0 0 0 0\n",
        b"q2 a 1 0 0 0 0\n",
        b"q1 " + b"a" * 65 + b" 1 0 0 0 0\n",
        b" q1 a 1 0 0 0 0\n",
    ],
)
def test_first_matches_no_invalid_header(item: bytes) -> None:
    """`FIRST` matches no item that `Envelope.parse` refuses."""
    assert Envelope.parse(item) is None
    assert FIRST.match(item) is None


@each(
    "header, ready_ms",
    [
        (b"q1 a 17 0 0 0 0", 17),
        (b"q1 a 17 0 0 0 0 p=5", 17),
        (b"q1 a 17 0 0 0 0 p=5 t=99", 99),
        (b"q1 a 17 2 1 0 0 t=99", 99),
        # Released by a version that did not record the time.
        (b"q1 a 17 2 1 0 0", None),
        (b"q1 a 17 2 1 0 0 t=", None),
        (b"q1 a 17 0 0 0 0 t=x", 17),
        (b"q1 a 17 0 0 0 0 t=12345678901234567", 17),
    ],
)
def test_when_a_message_became_ready(header: bytes, ready_ms: int | None) -> None:
    """The flag says it, or the time of the send; None if it is not recorded."""
    envelope = Envelope.parse(header + b"\n")
    assert envelope is not None
    assert envelope.ready_ms == ready_ms


def test_flags_are_read_once() -> None:
    """A worker asks for them about five times for each message."""
    envelope = Envelope.parse(b"q1 a 17 0 0 0 0 g=x%20y u=1 u=2\nbody")
    assert envelope is not None
    assert envelope.flags == {"g": "x y", "u": "1"}
    assert envelope.flags is envelope.flags
