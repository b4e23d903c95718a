"""What another program may write into the keys of a queue: any type in any place, and odd content of the right type.

A scribble is a list of Redis commands whose second word is a part of the queue (`ready:3`, `lease:x`), or a key beside
it (`@queues`). A command that the server refuses, because another scribble came first, does not matter.
"""

from __future__ import annotations

from typing import Any

from hypothesis import strategies as st

from tests.fuzz.envelopes import items

__all__ = ["Words", "scribbles"]

Words = tuple[str | bytes | int, ...]

#: Part → the type that it has.
TYPES = {
    **dict.fromkeys(["ready", "ready:1", "ready:5", "ready:9", "suspect", "wake"], "list"),
    **dict.fromkeys(["delayed", "unacked", "cancelled", "@reapers"], "zset"),
    **dict.fromkeys(["dead", "journal"], "stream"),
    **dict.fromkeys(
        ["meta", "stats", "producers", "unique", "rows", "schedules", "readers", "imported"], "hash"
    ),
    **dict.fromkeys(["lease:L-1", "lease:L-3", "lease:odd", "lease:a b", "bulk:b1"], "hash"),
    **dict.fromkeys(["@queues", "@workers", "@leaving"], "hash"),
}
_WORDS = st.one_of(
    st.sampled_from(
        [
            b"",
            b"0",
            b"1",
            b"-1",
            b"abc",
            b"nan",
            b"inf",
            b"-inf",
            b"1e400",
            b"0x10",
            b" 5 ",
            b"1.5",
            b"[]",
        ]
    ),
    st.sampled_from(
        [
            b"9" * 16,
            b"9" * 19,
            b"9" * 400,
            b"9" * 5000,
            b"9223372036854775807",
            b"-9223372036854775808",
        ]
    ),
    st.sampled_from(
        [
            "٥".encode(),
            b"\xff\xfe",
            b"a\0b",
            b"a\nb",
            b"\x1b[31mred",
            b"{}",
            b'{"a":',
            b"null",
            b"1 2",
            b"x y z",
        ]
    ),
    st.binary(max_size=12),
)
_SCORES = st.sampled_from(
    [
        b"inf",
        b"-inf",
        b"-5",
        b"0",
        b"0.5",
        b"1e300",
        b"-1e300",
        b"9007199254740992",
        b"9007199254740993",
        b"32503680000000",
    ]
)
#: Fields of hashes that mean something, beside any other.
_FIELDS = {
    "meta": "visibility_ms paused pause_strict levels max_receives journal journal_cap journal_epoch journal_shed "
    "maxlen maxsize delay_ms ttl_ms created_ms modified_ms",
    "stats": "stored unacked sent received acked nacked expired dead dead:rejected timeouts reaped_ms gap_from_ms "
    "gap_until_ms journal_entries journal_events journal_written set_aside",
    "producers": "lane",
    "unique": "key",
    "schedules": "tick tick:fired",
    "readers": "archive",
    "imported": "run",
    "@queues": "orders",
    "@workers": "web-1",
    "@leaving": "web-1",
}
_SPECS = st.sampled_from(
    [
        b'{"task": "t", "cron": "* * * * *"}',
        b'{"task": 5}',
        b'{"task": "t", "cron": "99 99 * * *"}',
        b'{"name": "web-1", "queues": 5, "children": "x", "seen_ms": "y"}',
        b'{"name": "web-1", "host": null, "queues": ["orders"], "children": [1, null, {}], "seen_ms": 99999999999999}',
        b'{"seen_ms": 1e400}',
        b"[" * 2000,
        b"1 99999999999999",
        b"gone 99999999999999",
        b"99999999999999999999-1 5",
    ]
)
_ENTRY_IDS = st.one_of(
    st.just(b"*"),
    st.sampled_from(
        [
            b"18446744073709551615-5",
            b"18446744073709551615-18446744073709551615",
            b"9007199254740993-5",
            b"99999999999999-0",
            b"5-*",
        ]
    ),
)
_ENTRY_FIELDS = st.one_of(
    st.dictionaries(
        st.sampled_from([b"envelope", b"reason", b"class", b"error", b"died_ms", b"edited"]),
        st.one_of(items, _WORDS),
        min_size=1,
        max_size=6,
    ),
    st.dictionaries(
        st.sampled_from([b"n", b"k", b"b", b"t", b"w", b"e1"]),
        st.one_of(items, _WORDS),
        min_size=1,
        max_size=6,
    ),
    st.dictionaries(_WORDS, _WORDS, min_size=1, max_size=3),
)


def _field(part: str) -> st.SearchStrategy[bytes]:
    if part.startswith("lease:"):
        return st.one_of(st.integers(0, 5).map(lambda n: b"%d" % n), st.just(b"batch"), _WORDS)
    known = [name.encode() for name in _FIELDS.get(part, "").split()]
    return st.one_of(st.sampled_from(known), st.sampled_from(known), _WORDS) if known else _WORDS


def _value(part: str) -> st.SearchStrategy[bytes]:
    if part.startswith("lease:"):
        return items
    if part == "meta":
        return st.one_of(
            _WORDS,
            st.sampled_from(
                [b"in", b"out", b"all", b"outcomes", b"5", b"59", b"0123456789", b"1000"]
            ),
        )
    return st.one_of(_WORDS, _SPECS)


@st.composite
def _more(draw: st.DrawFn, part: str) -> list[Words]:
    """One command that adds odd content of the type that the part has."""
    kind = TYPES[part]
    if kind == "list":
        return [(draw(st.sampled_from(["LPUSH", "RPUSH"])), part, draw(items))]
    if kind == "zset":
        member = (
            items
            if part == "delayed"
            else st.one_of(_WORDS, st.sampled_from([b"L-1", b"L-3", b"odd", b"L" * 80]))
        )
        return [("ZADD", part, draw(_SCORES), draw(member))]
    if kind == "stream":
        fields = draw(_ENTRY_FIELDS)
        return [
            ("XADD", part, draw(_ENTRY_IDS), *(word for pair in fields.items() for word in pair))
        ]
    return [("HSET", part, draw(_field(part)), draw(_value(part)))]


@st.composite
def _other_type(draw: st.DrawFn, part: str) -> list[Words]:
    """Replace a part by something of another type."""
    kind = draw(
        st.sampled_from(
            [each for each in ("string", "list", "hash", "zset", "stream") if each != TYPES[part]]
        )
    )
    word = draw(_WORDS)
    made: dict[str, Words] = {
        "string": ("SET", part, word),
        "list": ("RPUSH", part, word),
        "hash": ("HSET", part, "f", word),
        "zset": ("ZADD", part, draw(_SCORES), word),
        "stream": ("XADD", part, "*", "f", word),
    }
    return [("DEL", part), made[kind]]


@st.composite
def _scribble(draw: st.DrawFn) -> list[Words]:
    part = draw(st.sampled_from(sorted(TYPES)))
    what = draw(st.integers(0, 11))
    if what == 0:
        return draw(_other_type(part))
    if what == 1:
        return [("EXPIRE", part, 1000)]
    if what == 2:
        return [
            (
                *("ZADD", "unacked"),
                draw(_SCORES),
                draw(st.sampled_from([b"L-1", b"L-3", b"odd", b"a b"])),
            )
        ]
    return draw(_more(part))


#: What is written into one queue: commands, in order.
scribbles: st.SearchStrategy[list[Any]] = st.lists(_scribble(), min_size=1, max_size=6).map(
    lambda several: [words for each in several for words in each]
)
