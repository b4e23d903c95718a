"""Items as another program might write them into a list: envelopes, nearly envelopes, and anything else."""

from __future__ import annotations

from hypothesis import strategies as st

__all__ = ["flags", "items"]

_BYTES = st.binary(max_size=12)
_MAGIC = st.one_of(
    st.just(b"q1 "),
    st.just(b"q1 "),
    st.sampled_from(
        [b"q2 ", b"q1", b"q1  ", b"q01 ", b"q10 ", b"Q1 ", b"q1\t", b"q ", b"q\0 ", b"q1\n"]
    ),
    st.sampled_from([b"", b"{", b"[", b" {", b"\xef\xbb\xbf{", b"q" + b"9" * 30 + b" "]),
)
_IDS = st.one_of(
    st.sampled_from([b"a", b"abcdefghij0000000001", b"x" * 64, b"x" * 65, b"a.b_c-d", b"", b"-"]),
    st.sampled_from([b"a b", "ä".encode(), b"a\0b", b"a:b", b"a=b", b"a\nb", b"%41", b" a"]),
    st.binary(max_size=8),
)
_NUMBERS = st.one_of(
    st.integers(0, 20).map(lambda n: b"%d" % n),
    st.sampled_from(
        [b"0", b"999999", b"1000000", b"000001", b"0000001", b"1792000000000", b"9" * 16]
    ),
    st.sampled_from(
        [
            b"9" * 17,
            b"9" * 400,
            b"1" * 5000,
            b"-1",
            b"+1",
            b"1.5",
            b"1e3",
            b"0x1f",
            b"nan",
            b"inf",
            b"",
        ]
    ),
    st.sampled_from(["٥".encode(), b" 1", b"1\0", b"1\r", b"1\xa0", b"1_000"]),
)
_COUNTERS = st.one_of(st.just(b"0"), st.just(b"0"), _NUMBERS)
_VALUES = st.one_of(
    _NUMBERS,
    st.sampled_from(
        [
            b"%41",
            b"%4",
            b"%",
            b"%zz",
            b"%ff",
            b"%00",
            b"%0a",
            b"%C3%A4",
            b"%c3",
            b"a+b",
            "ä".encode(),
        ]
    ),
    st.sampled_from([b"=", b"x=1", b"\xff\xfe", b"\0", b"\r", b"a\tb"]),
    st.binary(max_size=6),
)
_NAMES = st.one_of(
    st.sampled_from([b"x", b"m", b"v", b"p", b"f", b"t", b"u", b"d", b"w", b"e", b"s", b"c", b"g"]),
    st.sampled_from([b"X", b"xx", b"", b"1", b" ", b"\xe4"]),
)
flags = st.lists(
    st.one_of(
        st.tuples(_NAMES, _VALUES).map(lambda pair: b" " + pair[0] + b"=" + pair[1]),
        st.sampled_from([b" ", b"  x=1", b" x", b"x=1", b" x=1 ", b" =", b" x= m=1"]),
    ),
    max_size=4,
).map(b"".join)
_BODIES = st.one_of(
    st.sampled_from(
        [b"", b"{}", b'{"task": "t"}', b"\n", b"q1 a 0 0 0 0 0\n", b" x=1\n", b"\0", b"x" * 300]
    ),
    _BYTES,
)
_ENDS = st.sampled_from([b"\n", b"\n", b"\n", b"\n", b"\r\n", b"", b" \n", b"\0\n"])


@st.composite
def _shaped(draw: st.DrawFn) -> bytes:
    numbers = [draw(_NUMBERS), *(draw(_COUNTERS) for _ in range(4))]
    if draw(st.integers(0, 9)) == 0:
        numbers = numbers[: draw(st.integers(0, 5))]
    words = b" ".join([draw(_IDS), *numbers])
    return draw(_MAGIC) + words + draw(flags) + draw(_ENDS) + draw(_BODIES)


@st.composite
def _mutated(draw: st.DrawFn) -> bytes:
    """An envelope of which some bytes were changed, left out, doubled or put in, or that is cut off."""
    item = bytearray(
        b'q1 abcdefghij0000000001 1792000000000 1 1 0 0 x=1793000000000 u=a%20b t=5\n{"task": "t"}'
    )
    for _ in range(draw(st.integers(1, 3))):
        at = draw(st.integers(0, len(item)))
        byte = bytes([draw(st.integers(0, 255))])
        change = draw(st.sampled_from(["set", "drop", "double", "insert", "cut"]))
        if change == "set":
            item[at : at + 1] = byte
        elif change == "drop":
            del item[at : at + draw(st.integers(1, 4))]
        elif change == "double":
            item[at:at] = item[at : at + draw(st.integers(1, 8))]
        elif change == "insert":
            item[at:at] = byte
        else:
            del item[at:]
    return bytes(item)


#: One item of a list, whatever it is.
items = st.one_of(_shaped(), _shaped(), _mutated(), st.binary(max_size=60))
