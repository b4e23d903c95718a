"""Pickles of others are read without running anything of them."""

from __future__ import annotations

import collections
import datetime
import decimal
import os
import pickle
import uuid
import zoneinfo

import pytest

from qworker.moving.pickles import UnsafePickleError, read_plain

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


def test_bytearray_is_read_where_it_is_no_call() -> None:
    """Before protocol 5 it is one, and `bytearray(10**12)` would be another."""
    assert read_plain(pickle.dumps(bytearray(b"x"), 5)) == b"x"
    with pytest.raises(UnsafePickleError, match=r"holds builtins\.bytearray"):
        read_plain(pickle.dumps(bytearray(b"x"), 4))


@pytest.mark.parametrize("protocol", range(pickle.HIGHEST_PROTOCOL + 1))
def test_code_is_refused_and_never_runs(tmp_path, protocol: int) -> None:
    """A pickle that would run a command does not, and is named for what it holds."""
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
    """Classes and functions are named in the error, as far as they can be made out."""
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
    """Whatever bytes stand there, they are a plain value or `UnsafePickleError`."""
    if data == b"\x80\x05].":
        assert read_plain(data) == []
        return
    with pytest.raises(UnsafePickleError):
        read_plain(data)


def test_short_pickle_that_stands_for_endless_values_is_refused() -> None:
    """Lists of the same list, or a list in itself, would be written out for ever."""
    bomb: list[object] = []
    for _ in range(60):
        bomb = [bomb, bomb]
    with pytest.raises(UnsafePickleError, match="1,000,000 values"):
        read_plain(pickle.dumps(bomb))
    itself: list[object] = [1]
    itself.append(itself)
    with pytest.raises(UnsafePickleError, match="1,000,000 values"):
        read_plain(pickle.dumps(itself))
