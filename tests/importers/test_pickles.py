"""Foreign pickles are read without running their code."""

from __future__ import annotations

import collections
import contextlib
import datetime
import decimal
import os
import pickle
import random
import struct
import sys
import time
import tracemalloc
import uuid
import zoneinfo

import pytest

from qworker.importers import pickles
from qworker.importers.pickles import UnsafePickleError, read_plain

UTC = datetime.UTC
PLAIN = [
    None,
    [True, False, 0, -1, 255, 65536, 2**70, 1.5, "grüße", "", b"\xff\x00"],
    ("a", (1, 2, 3, 4), {"k": ["v"]}, {1, 2}, frozenset({3})),
    {"when": datetime.datetime(2031, 5, 4, 1, 2, 3, tzinfo=UTC), "day": datetime.date(2031, 5, 4)},
    [
        datetime.time(1, 2),
        datetime.timedelta(days=1),
        datetime.timezone(datetime.timedelta(hours=2)),
    ],
    decimal.Decimal("1.10"),
    ["x"] * 300 + list(range(1000)),
]


class Shell:
    """Runs a command when it is unpickled."""

    def __init__(self, path: str) -> None:
        self.path = path

    def __reduce__(self) -> object:
        return os.system, (f"touch {self.path}",)


class Thing:
    """An object with attributes."""

    def __init__(self) -> None:
        self.x = 1


@pytest.mark.parametrize("protocol", range(3, pickle.HIGHEST_PROTOCOL + 1))
def test_plain_values_are_read(protocol: int) -> None:
    """Of every protocol that Python 3 writes by itself."""
    for value in PLAIN:
        assert read_plain(pickle.dumps(value, protocol)) == value


def test_bytearray_is_read_unless_it_is_a_call() -> None:
    """Before protocol 5 it is a call, and `bytearray(10**12)` would be one, too."""
    assert read_plain(pickle.dumps(bytearray(b"x"), 5)) == b"x"
    with pytest.raises(UnsafePickleError, match=r"holds builtins\.bytearray"):
        read_plain(pickle.dumps(bytearray(b"x"), 4))


@pytest.mark.parametrize("protocol", range(pickle.HIGHEST_PROTOCOL + 1))
def test_code_is_refused_and_never_runs(tmp_path, protocol: int) -> None:
    """A pickle that would run a command does not, and the error names what it holds."""
    path = tmp_path / "run"

    with pytest.raises(UnsafePickleError, match=r"holds (posix|nt)\.system"):
        read_plain(pickle.dumps(["args", Shell(str(path))], protocol))

    assert not path.exists()


@pytest.mark.parametrize("protocol", range(pickle.HIGHEST_PROTOCOL + 1))
@pytest.mark.parametrize(
    ("value", "name"),
    [
        (Thing(), "Thing"),
        (Thing, "Thing"),
        (len, "len"),
        (collections.OrderedDict(a=1), "OrderedDict"),
        (uuid.UUID(int=1), "UUID"),
        (zoneinfo.ZoneInfo("Europe/Vienna"), "getattr"),
        (datetime.datetime.fromisoformat, "getattr"),
    ],
)
def test_objects_are_refused(value: object, name: str, protocol: int) -> None:
    """The error names classes and functions, as far as they are readable."""
    with pytest.raises(UnsafePickleError) as refused:
        read_plain(pickle.dumps({"args": (value,)}, protocol))
    assert name in str(refused.value) or protocol < 2


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"hello",
        b"\x80\x05",
        b"\x80\x05N",
        b"\x80\x05].",  # right, see below
        b"\x80\x05\x8c\xffabc.",
        b"\x80\x05\x95\xff\xff\xff\xff\xff\xff\xff\x7fN.",
        b"Ppersistent\n.",
        b"\x80\x04N\x97.",
        b"\x82\x01.",
        b"(cos\nsystem\nS'true'\no.",
        b"(S'true'\nios\nsystem\n.",
        b"cdatetime\ndatetime.now\n)R.",
        b"cdatetime\ndatetime\n(I1\nI2\nI99\ntR.",
        b"\x80\x05K\x01)R.",
        pickle.dumps([1] * 10)[:-3],
    ],
)
def test_nonsense_is_refused_by_one_error(data: bytes) -> None:
    """Any bytes are a plain value or raise `UnsafePickleError`."""
    if data == b"\x80\x05].":
        assert read_plain(data) == []
        return
    with pytest.raises(UnsafePickleError):
        read_plain(data)


@pytest.mark.bad_input("data found: zip bomb")
@pytest.mark.slow
def test_short_pickle_of_endless_values_is_refused() -> None:
    """Lists of the same list, or a list in itself, would expand forever."""
    bomb: list[object] = []
    for _ in range(60):
        bomb = [bomb, bomb]
    with pytest.raises(UnsafePickleError, match="1,000,000 values"):
        read_plain(pickle.dumps(bomb))
    itself: list[object] = [1]
    itself.append(itself)
    with pytest.raises(UnsafePickleError, match="1,000,000 values"):
        read_plain(pickle.dumps(itself))


P = sys.hash_info.modulus
MIB = 1024 * 1024


def long(number: int) -> bytes:
    """The instruction that pushes a number."""
    return pickle.dumps(number, 2)[2:-1]


def text(value: bytes) -> bytes:
    return b"X" + struct.pack("<I", len(value)) + value


#: Numbers of one hash, pickled.
CLASHING = [long(number * P) for number in range(5_000)]
BOMBS = {
    "a memo entry far away": (b"Nr\xff\xff\xff\x0f.", None),
    "a memo entry beyond memory": (b"Nr\xff\xff\xff\xff.", None),
    "a frame beyond memory": (b"\x80\x04\x95" + b"\xff" * 7 + b"\x7fN.", "cannot be read"),
    "one text many times": (b"(" + text(b"x" * MIB) + b"2" * 100 + b"l.", "expands to more than 67"),
    "one number many times": (b"(" + long(2 ** (8 * MIB)) + b"2" * 100 + b"l.", "expands to more than 67"),
    "keys of one hash": (b"}(" + b"".join(n + b"N" for n in CLASHING) + b"u.", "with one hash"),
    "keys of one hash, one by one": (
        b"}" + b"".join(n + b"Ns" for n in CLASHING) + b".", "with one hash"
    ),
    "keys of one hash in a new dict": (
        b"(" + b"".join(n + b"N" for n in CLASHING) + b"d.", "with one hash"
    ),
    "keys of one hash in a set": (
        b"\x80\x04\x8f(" + b"".join(CLASHING) + b"\x90.", "with one hash"
    ),
    "keys of one hash in a frozen set": (
        b"\x80\x04(" + b"".join(CLASHING) + b"\x91.", "with one hash"
    ),
    "keys of one hash in a set of old": (
        b"cbuiltins\nset\n((" + b"".join(CLASHING) + b"ltR.", "with one hash"
    ),
    "keys of one hash in a frozen set of old": (
        b"cbuiltins\nfrozenset\n((" + b"".join(CLASHING) + b"ltR.", "with one hash"
    ),
    "keys of one hash, as tuples": (
        b"}(" + b"".join(n + b"\x85N" for n in CLASHING) + b"u.", "with one hash"
    ),
    "a key that is hashed for ever": (b"}K\x00" + b"2\x86" * 60 + b"Ns.", "not a plain value"),
    "a part of a key that is hashed for ever": (
        b"}K\x00K\x00" + b"2\x86" * 24 + b"\x86Ns.", "not a plain value"
    ),
    "one large number as a key many times": (
        b"}" + long(2 ** (8 * MIB)) + b"q\x000" + b"h\x00Ns" * 5_000 + b".", "copies more than 67"
    ),
    "one large key many times": (
        b"(}" + text(b"x" * MIB) + b"Ns" + b"2" * 100 + b"l.", "expands to more than 67"
    ),
    "a copy of a copy": (
        b"cbuiltins\nset\nq\x00](" + b"".join(b"J" + struct.pack("<i", n) for n in range(1_000)) + b"e\x85q\x01R0"
        + b"h\x00h\x01R" * 60 + b".", "copies more than 50,000 values"
    ),
    "numbers from one text": (
        b"cdecimal\nDecimal\nq\x00" + text(b"9" * MIB) + b"\x85q\x010" + b"h\x00h\x01R" * 5_000 + b".",
        "copies more than 67",
    ),
    "more instructions than any message has": (b"N0" * 25_001 + b"N.", "50,000 instructions"),
}  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize("bomb", BOMBS)
def test_a_short_pickle_takes_little_memory_and_time(
    bomb: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Bytes that ask for gigabytes, or for a day of comparing, are read or refused in little memory."""
    # A million takes seconds, which is what the limit is for.
    monkeypatch.setattr(pickles, "_MAX_VALUES", 50_000)
    data, refused = BOMBS[bomb]
    tracemalloc.start()
    began = time.process_time()
    try:
        if refused is None:
            assert read_plain(data) is None
        else:
            with pytest.raises(UnsafePickleError, match=refused):
                read_plain(data)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak < 40 * MIB
    assert time.process_time() - began < 20  # hours without the bound; tracing is slow


@pytest.mark.slow
def test_large_ordinary_values_are_read() -> None:
    """Large dicts by number, text and date, and tuples as keys, are read."""
    days = {datetime.date(2031, 1, 1) + datetime.timedelta(days=n): n for n in range(2_000)}
    value = [
        dict.fromkeys(range(-5_000, 5_000)),
        {str(n): n for n in range(5_000)},
        days,
        {("a", 1): 2},
    ]
    assert read_plain(pickle.dumps(value)) == value


@pytest.mark.slow
@pytest.mark.parametrize(
    "number",
    [
        1_000,
        pytest.param(
            3_000, marks=pytest.mark.nightly("test_any_change_of_a_pickle_is_read_or_refused")
        ),
    ],
)
def test_any_change_of_a_pickle_is_read_or_refused(number: int) -> None:
    """Flipped, cut and inserted bytes give a plain value or `UnsafePickleError`, in little memory."""
    rng = random.Random(7)
    sources = [pickle.dumps(value, protocol) for value in PLAIN for protocol in (0, 2, 5)]
    for _ in range(number):
        data = bytearray(rng.choice(sources))
        for _ in range(rng.randint(1, 4)):
            at = rng.randrange(len(data))
            data[at : at + rng.randint(0, 2)] = rng.randbytes(rng.randint(0, 2))
            data = data or bytearray(b".")
        with contextlib.suppress(UnsafePickleError):
            read_plain(bytes(data))
