"""Bodies: values that come back unchanged, values that are refused with their path, and bodies of calls."""

from __future__ import annotations

import contextlib
import enum
import json
from dataclasses import dataclass, field
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from typing import NamedTuple
from uuid import UUID

import msgspec
import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from msgspec import Raw

from qworker.errors import BodyTooLargeError, InvalidBodyError
from qworker.wire import codec
from tests.tables import each

NAN = float("nan")
INFINITY = float("inf")


class Colour(enum.Enum):
    RED = "red"
    BROKEN = NAN
    PAIR = (1, 2)


class Level(enum.IntEnum):
    LOW = 1


@dataclass
class Price:
    amount: float
    tags: tuple[str, ...] = ()


@dataclass(slots=True)
class Node:
    children: list[object] = field(default_factory=list)


class Item(msgspec.Struct, rename="camel"):
    unit_price: object
    note: str | msgspec.UnsetType = msgspec.UNSET


class Point(NamedTuple):
    x: object
    y: object


def nested(levels: int) -> list[object]:
    value: list[object] = []
    for _ in range(levels - 1):
        value = [value]
    return value


def nested_alternately(levels: int) -> object:
    value: object = {}
    for level in range(levels - 1):
        value = [value] if level % 2 else {"a": value}
    return value


def refused(call, *args) -> InvalidBodyError:
    with pytest.raises(InvalidBodyError) as caught:
        call(*args)
    return caught.value


json_values = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(),
    lambda children: st.lists(children) | st.dictionaries(st.text(), children),
    max_leaves=30,
)


class TestEncode:
    @given(json_values)
    @example(2**53 + 1)
    @example(-(2**64))
    @example({"": [0, -0.0, 1e308, "\0\ud7ff\U0010ffff"]})
    @pytest.mark.slow
    def test_every_json_value_comes_back_as_it_was(self, value):
        """Every JSON value comes back unchanged."""
        assert codec.decode(codec.encode(value)) == value

    @given(json_values)
    @pytest.mark.slow
    def test_other_json_readers_read_the_text(self, value):
        """Other JSON readers read the same value."""
        assert json.loads(codec.encode(value)) == value

    @each("value", [2**53 + 1, -(2**53) - 1, 2**64, 10**300])
    def test_integers_beyond_2_53_are_exact(self, value):
        """Integers beyond 2^53 are exact."""
        assert codec.encode([value]) == f"[{value}]".encode()
        assert codec.decode(codec.encode([value])) == [value]

    def test_all_bytes_come_back_by_their_type(self):
        """All bytes come back by their type."""
        data = bytes(range(256))
        assert msgspec.json.decode(codec.encode(data), type=bytes) == data

    @each(
        "value, text",
        [
            pytest.param(
                datetime(2024, 5, 1, 12, 30, tzinfo=UTC), '"2024-05-01T12:30:00Z"', id="datetime"
            ),
            pytest.param(date(2024, 5, 1), '"2024-05-01"', id="date"),
            pytest.param(timedelta(seconds=90), '"PT90S"', id="timedelta"),
            pytest.param(UUID(int=1), '"00000000-0000-0000-0000-000000000001"', id="UUID"),
            pytest.param(Decimal("1.10"), '"1.10"', id="Decimal"),
            pytest.param(b"\x00\xff", '"AP8="', id="bytes"),
            pytest.param({7}, "[7]", id="set"),
            pytest.param((1, (2, ())), "[1,[2,[]]]", id="tuples in tuples"),
            pytest.param(Colour.RED, '"red"', id="Enum"),
            pytest.param(Colour.PAIR, "[1,2]", id="Enum of a tuple"),
            pytest.param(Level.LOW, "1", id="IntEnum"),
            pytest.param(Price(1.5, ("a",)), '{"amount":1.5,"tags":["a"]}', id="dataclass"),
            pytest.param(Item(2), '{"unitPrice":2}', id="Struct with an unset field"),
            pytest.param(Point(1, None), "[1,null]", id="NamedTuple"),
            pytest.param(
                {Colour.RED: 1, date(2024, 5, 1): 2},
                '{"red":1,"2024-05-01":2}',
                id="keys that are text",
            ),
            pytest.param([(1,), Raw(b'{"a": [1]}')], '[[1],{"a": [1]}]', id="raw JSON"),
        ],
    )
    def test_python_values_have_a_form_in_json(self, value, text):
        """Python values have a form in JSON."""
        assert codec.encode(value) == text.encode()

    @each(
        "value, path, problem",
        [
            pytest.param(NAN, "body", "is nan", id="NaN alone"),
            pytest.param({"a": [0, INFINITY]}, "a[1]", "is inf", id="infinity"),
            pytest.param([None, -INFINITY], "body[1]", "is -inf", id="minus infinity beside null"),
            pytest.param({"p": Price(NAN)}, "p.amount", "is nan", id="NaN in a dataclass"),
            pytest.param([Item(NAN)], "body[0].unitPrice", "is nan", id="NaN in a Struct"),
            pytest.param({"c": Colour.BROKEN}, "c", "is nan", id="NaN in an Enum"),
            pytest.param((1, (2, NAN)), "body[1][1]", "is nan", id="NaN in tuples"),
            pytest.param({"s": "a\ud800"}, "s", "lone surrogate (U+D800)", id="lone surrogate"),
            pytest.param(
                {"\udfff": 1}, "body", "lone surrogate (U+DFFF)", id="lone surrogate in a key"
            ),
            pytest.param({"a": {1: 2}}, "a", "the key 1 of type int", id="int key"),
            pytest.param([{1.5: 2}], "body[0]", "the key 1.5 of type float", id="float key"),
            pytest.param({Level.LOW: 2}, "body", "of type Level", id="key of an IntEnum"),
            pytest.param({None: 2}, "body", "the key None of type NoneType", id="None as key"),
            pytest.param({(1, 2): 3}, "body", "the key (1, 2) of type tuple", id="tuple as key"),
            pytest.param(
                {"a b": [object()]}, "body['a b'][0]", "is of type object", id="arbitrary object"
            ),
            pytest.param([1, range(3)], "body[1]", "is of type range", id="range"),
            pytest.param({"f": print}, "f", "is of type builtin_function_or_method", id="function"),
            pytest.param({"c": Price}, "c", "is of type type", id="class of a dataclass"),
            pytest.param({"n": 10**5000}, "n", "too long to write", id="integer of 5000 digits"),
            pytest.param(
                {"r": Raw(b"[1")}, "r", "is raw JSON that cannot be read", id="broken raw JSON"
            ),
            pytest.param(
                {"r": Raw(b"[" * 65 + b"]" * 65)}, "r", "nested deeper", id="deep raw JSON"
            ),
        ],
    )
    def test_a_value_that_json_cannot_carry_is_refused_with_its_path(self, value, path, problem):
        """A value that JSON cannot carry is refused with its path."""
        error = refused(codec.encode, value)
        assert error.field == path
        assert problem in error.problem

    def test_a_path_leads_through_arguments_items_and_fields(self):
        """A path leads through arguments, items and fields."""
        order = {"items": [1, 2, 3, Price(NAN)]}
        error = refused(codec.encode_call, "ship", [order], {})
        assert error.field == "args[0].items[3].amount"
        assert str(error).startswith(
            "args[0].items[3].amount: is nan, which JSON cannot carry; a body consists of"
        )

    def test_a_path_never_has_raw_text_of_keys(self):
        """A path never has raw text of keys, and stays short."""
        error = refused(codec.encode, {"\x1b[31m\n": {"k" * 500: NAN}})
        assert "\x1b" not in str(error)
        assert "\n" not in str(error)
        assert len(error.field) < 140

    @pytest.mark.parametrize("make", [nested, nested_alternately])
    def test_64_levels_are_accepted_and_65_are_not(self, make):
        """64 levels are accepted and 65 are not."""
        data = codec.encode(make(64))
        assert codec.decode(data) == make(64)
        assert "nested deeper than 64 levels" in refused(codec.encode, make(65)).problem

    def test_a_value_that_contains_itself_is_refused(self):
        """A value that contains itself is refused."""
        node = Node()
        node.children.append(node)
        assert "nested deeper" in refused(codec.encode, node).problem

    def test_many_containers_side_by_side_are_not_deep(self):
        """Many containers side by side are not deep, whatever brackets are in their text."""
        value = [{"a": [], "b": '[[[[{{"\\', "": "\\\\"} for _ in range(200)]
        assert codec.decode(codec.encode(value)) == value

    @given(json_values, st.integers(min_value=55, max_value=66))
    @pytest.mark.slow
    def test_depth_is_counted_exactly(self, value, levels):
        """Depth is counted exactly, whatever is in strings: one level too many is refused."""
        noise = b'["[", "\\"]]", {"]": "\\\\"}],' * 20
        text = b"[" * levels + noise + msgspec.json.encode(value) + b"]" * levels
        if levels + max(2, depth_of(value)) > 64:
            assert "nested deeper" in refused(codec.decode, text).problem
        else:
            assert codec.decode(codec.encode(codec.decode(text))) == codec.decode(text)


def depth_of(value: object) -> int:
    if isinstance(value, dict):
        return 1 + max(map(depth_of, value.values()), default=0)
    if isinstance(value, list):
        return 1 + max(map(depth_of, value), default=0)
    return 0


class TestDecode:
    @each(
        "data, problem",
        [
            pytest.param(b"", "truncated", id="empty"),
            pytest.param(b"hello", "malformed", id="not JSON"),
            pytest.param(b"[1,]", "trailing comma", id="trailing comma"),
            pytest.param(b"[1] 2", "trailing characters", id="two values"),
            pytest.param(b"NaN", "malformed", id="NaN"),
            pytest.param(b"[1e999]", "out of range", id="number out of range"),
            pytest.param(b"9" * 5000, "out of range", id="integer of 5000 digits"),
            pytest.param(b'"\xff"', "not UTF-8", id="not UTF-8"),
            pytest.param(b"\xef\xbb\xbf[]", "malformed", id="byte order mark"),
            pytest.param(b'"\\ud800"', "cannot be read", id="lone surrogate"),
            pytest.param(b"\x80\x04cos\nsystem\n.", "malformed", id="pickle"),
            pytest.param(b"[" * 65 + b"]" * 65, "nested deeper", id="65 levels"),
            pytest.param(b"[" * 100_000 + b"]" * 100_000, "nested deeper", id="depth bomb"),
            pytest.param(b"[" * 100_000, "nested deeper", id="depth bomb that never ends"),
        ],
    )
    def test_other_data_than_json_is_refused(self, data, problem):
        """Other data than JSON is refused, and never raises anything else."""
        error = refused(codec.decode, data)
        assert error.field == "body"
        assert problem in error.problem

    @given(st.binary())
    def test_any_bytes_are_read_or_refused(self, data):
        """Any bytes are either read or refused."""
        for read in (codec.decode, codec.decode_call):
            with contextlib.suppress(InvalidBodyError):
                read(data)


class TestCall:
    def test_a_call_is_written_as_other_languages_write_it(self):
        """A call is written as other languages write it."""
        body = codec.encode_call("send_email", ("a@b.c", 3), {"retry": True})
        assert body == b'{"task":"send_email","args":["a@b.c",3],"kwargs":{"retry":true}}'

    def test_empty_kwargs_are_left_out(self):
        """Empty kwargs are left out."""
        assert codec.encode_call("sweep", (), {}) == b'{"task":"sweep","args":[]}'

    def test_args_and_kwargs_stay_json_until_a_signature_decodes_them(self):
        """Args and kwargs stay JSON until a signature decodes them."""
        call = codec.decode_call(
            b' {"kwargs": {"b": 2}, "args": [1, "x"], "task": "t", "from": "php"} '
        )
        assert (call.task, bytes(call.args), bytes(call.kwargs)) == ("t", b'[1, "x"]', b'{"b": 2}')

    def test_absent_args_and_kwargs_are_empty(self):
        """Absent args and kwargs are empty."""
        call = codec.decode_call(b'{"task":"t"}')
        assert (bytes(call.args), bytes(call.kwargs)) == (b"[]", b"{}")

    @given(
        st.text(),
        st.lists(json_values, max_size=4),
        st.dictionaries(st.text(), json_values, max_size=4),
    )
    @pytest.mark.slow
    def test_every_call_comes_back_as_it_was(self, task, args, kwargs):
        """Every call comes back unchanged."""
        call = codec.decode_call(codec.encode_call(task, args, kwargs))
        assert (call.task, codec.decode(bytes(call.args)), codec.decode(bytes(call.kwargs))) == (
            task,
            args,
            kwargs,
        )

    @each(
        "data, field, problem",
        [
            pytest.param(b"[]", "body", "expected object, got array", id="array"),
            pytest.param(b"{}", "body", "missing required field task", id="no task"),
            pytest.param(b'{"task": 1}', "body", "expected str, got int", id="task is not text"),
            pytest.param(
                b'{"task": "t", "args": 5}', "args", "is not an array", id="args is a number"
            ),
            pytest.param(
                b'{"task": "t", "args": {}}', "args", "is not an array", id="args is an object"
            ),
            pytest.param(
                b'{"task": "t", "args": null}', "args", "is not an array", id="args is null"
            ),
            pytest.param(
                b'{"task": "t", "kwargs": []}',
                "kwargs",
                "is not an object",
                id="kwargs is an array",
            ),
            pytest.param(b'{"task": "t", "args": [1', "body", "truncated", id="cut off"),
            pytest.param(b'{"task": "\xff"}', "body", "not UTF-8", id="task is not UTF-8"),
            pytest.param(b"\x80\x04cos\nsystem\n.", "body", "malformed", id="pickle"),
            pytest.param(
                b'{"task": "t", "args": ' + b"[" * 64 + b"]" * 64 + b"}",
                "body",
                "nested deeper",
                id="65 levels",
            ),
            pytest.param(
                b'{"task": "t", "args": ' + b"[" * 10**5 + b"]" * 10**5 + b"}",
                "body",
                "nested deeper",
                id="bomb",
            ),
        ],
    )
    def test_other_json_than_a_call_is_refused(self, data, field, problem):
        """Other JSON than a call is refused."""
        error = refused(codec.decode_call, data)
        assert error.field == field
        assert problem in error.problem

    def test_a_call_of_64_levels_is_accepted(self):
        """A call of 64 levels is accepted; one of 65 is refused with its path."""
        assert codec.decode_call(codec.encode_call("t", [nested(62)], {})).task == "t"
        assert refused(codec.encode_call, "t", [nested(63)], {}).field.startswith("args[0][0][0]")

    @pytest.mark.bad_input("data found: envelope cut at any byte")
    def test_a_body_cut_off_anywhere_is_refused(self):
        """A body cut off anywhere is refused."""
        body = codec.encode_call("send_email", ("a@b.c", {"x": [1.5]}), {"k": None})
        for length in range(len(body)):
            refused(codec.decode_call, body[:length])


class TestSize:
    def test_a_body_of_exactly_maxsize_is_accepted(self):
        """A body of exactly maxsize is accepted, and so is an empty one."""
        codec.check_size(b"x" * 1024, 1024)
        codec.check_size(b"", 1024)

    def test_a_larger_body_is_refused_with_both_sizes(self):
        """A larger body is refused with both sizes."""
        with pytest.raises(BodyTooLargeError) as caught:
            codec.check_size(b"x" * 1025, 1024)
        assert str(caught.value) == "body: is 1025 bytes; the limit (maxsize) is 1024 bytes"


def test_json_stays_json_in_an_error() -> None:
    """A text of msgspec continues in lower case, but an abbreviation stays as it is."""
    with pytest.raises(InvalidBodyError, match="cannot be read: JSON is malformed"):
        codec.decode(b"hello")
