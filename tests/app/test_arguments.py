"""Arguments: what a typed task takes, on sending and on receiving alike."""

from __future__ import annotations

import enum
import math
import typing
from dataclasses import dataclass
from datetime import UTC, date, datetime
from decimal import Decimal
from typing import Annotated, Literal
from uuid import UUID

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec import Raw

from qworker.app.arguments.binding import Signature
from qworker.app.arguments.calls import Calls
from qworker.errors import ArgumentsError, InvalidBodyError
from qworker.wire import codec
from tests.tables import each


class Colour(enum.Enum):
    RED = "red"


@dataclass
class Address:
    street: str
    zip: int


class Order(msgspec.Struct):
    items: list[Address]


class Size(enum.IntEnum):
    SMALL = 1


class Look(typing.TypedDict, total=False):
    colour: str
    inner: dict[int, Look]


@dataclass
class Shelf:
    books: dict[int, dict[UUID, str]]


class Box(msgspec.Struct, tag="box"):
    look: Look


class Crate(msgspec.Struct, tag="crate"):
    look: dict[str, int]


class Positive(msgspec.Struct):
    number: int

    def __post_init__(self) -> None:
        if self.number <= 0:
            raise ValueError("must be positive")


def send_email(to: str, template: str = "hello", retries: int = 3) -> None: ...
def untyped(a, b=None): ...
def everything(a: int, /, b: int, *rest: int, c: int, d: int = 4, **more: int) -> None: ...
def load(events: list[Order]) -> None: ...
def sweep() -> None: ...


def received(signature: Signature, *args: object, **kwargs: object) -> object:
    """Return the arguments that the function gets after a send, the same on both paths of decoding."""
    body = signature.encode(args, kwargs)
    call = codec.decode_call(body)
    bound, named = signature.decode(call.args, call.kwargs)
    whole = Calls({signature: "owner"}).read(body)
    if whole is None:
        return bound, named
    owner, all_arguments = whole
    # The fast path adds the defaults, the very objects.
    assert (owner, named, all_arguments[: len(bound)]) == ("owner", {}, bound)
    return all_arguments, {}


def refused(signature: Signature, *args: object, **kwargs: object) -> ArgumentsError:
    """Return the error on sending, which is also the one on receiving."""
    with pytest.raises(ArgumentsError) as on_send:
        signature.check(args, kwargs)
    body = codec.encode_call(signature.task, args, kwargs)
    assert Calls({signature: None}).read(body) is None
    call = codec.decode_call(body)
    with pytest.raises(ArgumentsError) as on_receive:
        signature.decode(call.args, call.kwargs)
    assert str(on_receive.value) == str(on_send.value)
    return on_send.value


class TestBinding:
    @each(
        "args, kwargs, bound",
        [
            pytest.param(("a",), {}, (("a", "hello", 3), {}), id="one by position"),
            pytest.param(("a", "b", 5), {}, (("a", "b", 5), {}), id="all by position"),
            pytest.param((), {"to": "a"}, ((), {"to": "a"}), id="by name"),
            pytest.param(("a",), {"retries": 1}, (("a",), {"retries": 1}), id="mixed"),
        ],
    )
    def test_arguments_are_bound_by_position_and_name(self, args, kwargs, bound):
        """Arguments are bound by position and by name, with defaults."""
        assert received(Signature(send_email, "send_email"), *args, **kwargs) == bound

    def test_every_kind_of_parameter_is_bound(self):
        """Every kind of parameter is bound as Python binds it."""
        signature = Signature(everything, "everything")
        assert received(signature, 1, 2, 3, 4, c=5, z=6) == ((1, 2, 3, 4), {"c": 5, "z": 6})
        assert received(signature, 1, b=2, c=3, a=4) == ((1,), {"b": 2, "c": 3, "a": 4})
        everything(1, b=2, c=3, **{"a": 4})

    def test_a_task_without_parameters_takes_none(self):
        """A task without parameters takes none."""
        signature = Signature(sweep, "sweep")
        assert received(signature) == ((), {})
        assert "got 1 positional arguments and takes 0" in refused(signature, 1).problem

    def test_a_default_is_the_very_object(self):
        """A default is the function's own object, of any type."""
        marker = object()

        def handler(a: int, b: object = marker) -> None: ...

        args, _ = received(Signature(handler, "t"), 1)
        assert args == (1, marker)

    @each(
        "args, kwargs, field, problem",
        [
            pytest.param((), {}, "send_email(to)", "is missing", id="missing"),
            pytest.param(
                (), {"template": "x"}, "send_email(to)", "is missing", id="missing beside a name"
            ),
            pytest.param(
                ("a", "b", 1, 2), {}, "send_email", "got 4 positional arguments", id="too many"
            ),
            pytest.param(
                ("a",),
                {"to": "b"},
                "send_email(to)",
                "is given twice, by position and by name",
                id="twice",
            ),
            pytest.param(
                ("a",),
                {"templat": "b"},
                "send_email(templat)",
                "is not a parameter; did you mean 'template'?",
                id="unknown name",
            ),
        ],
    )
    def test_arguments_that_do_not_bind_are_named(self, args, kwargs, field, problem):
        """An error for arguments that do not bind names them and the signature."""
        error = refused(Signature(send_email, "send_email"), *args, **kwargs)
        assert error.field == field
        assert problem in error.problem
        assert (
            error.limit
            == "the task is `send_email(to: str, template: str = ..., retries: int = ...)`"
        )

    def test_a_missing_keyword_only_parameter_is_named(self):
        """A missing keyword-only parameter is named, too."""

        def handler(a: int, *, c: int) -> None: ...

        assert refused(Signature(handler, "t"), 1).field == "t(c)"
        assert refused(Signature(everything, "t"), 1, 2).field == "t(c)"
        assert refused(Signature(everything, "t"), c=1, b=2).field == "t(a)"

    @given(
        st.lists(st.integers(), max_size=5),
        st.dictionaries(st.sampled_from("abcdz"), st.integers(), max_size=5),
    )
    @pytest.mark.slow
    def test_arguments_bind_as_in_python(self, args, kwargs):
        """What Python binds is what is bound, and what it refuses is refused."""
        signature = Signature(everything, "t")
        try:
            everything(*args, **kwargs)
        except TypeError:
            refused(signature, *args, **kwargs)
        else:
            assert received(signature, *args, **kwargs) == (tuple(args), kwargs)


class TestTypes:
    @each(
        "annotation, value",
        [
            pytest.param(datetime, datetime(2024, 5, 1, 12, tzinfo=UTC), id="datetime"),
            pytest.param(UUID, UUID(int=7), id="UUID"),
            pytest.param(Decimal, Decimal("1.10"), id="Decimal"),
            pytest.param(bytes, b"\x00\xff", id="bytes"),
            pytest.param(set[int], {1, 2}, id="set"),
            pytest.param(tuple[int, str], (1, "a"), id="tuple"),
            pytest.param(Colour, Colour.RED, id="Enum"),
            pytest.param(Address, Address("x", 1), id="dataclass"),
            pytest.param(Order, Order([Address("x", 1)]), id="Struct"),
            pytest.param(int | None, None, id="Optional"),
            pytest.param(int | str | list[int], [1], id="union"),
            pytest.param(Literal["a", 2], 2, id="Literal"),
            pytest.param(Annotated[int, msgspec.Meta(ge=1)], 1, id="Annotated"),
            pytest.param(float, 1.5, id="float"),
            pytest.param(dict[str, list[int]], {"a": [2**64]}, id="dict"),
            pytest.param(typing.Any, {"a": [1, None]}, id="Any"),
            pytest.param(dict[int, str], {1: "a", -(2**70): "b"}, id="keys: int"),
            pytest.param(dict[float, str], {1.5: "a", 2.0: "b"}, id="keys: float"),
            pytest.param(dict[int | float, str], {1: "a", 1.5: "b"}, id="keys: numbers"),
            pytest.param(dict[UUID, str], {UUID(int=7): "a"}, id="keys: UUID"),
            pytest.param(dict[date, int], {date(2024, 5, 1): 1}, id="keys: date"),
            pytest.param(dict[Decimal, int], {Decimal("1.10"): 1}, id="keys: Decimal"),
            pytest.param(dict[bytes, int], {b"\xff": 1}, id="keys: bytes"),
            pytest.param(dict[Colour, int], {Colour.RED: 1}, id="keys: Enum of text"),
            pytest.param(dict[Size, int], {Size.SMALL: 1}, id="keys: Enum of numbers"),
            pytest.param(dict[Literal[1, 2], int], {2: 1}, id="keys: Literal"),
            pytest.param(dict[Annotated[int, msgspec.Meta(ge=0)], int], {2: 1}, id="keys: bound"),
            pytest.param(
                list[dict[int, dict[date, set[str]]]],
                [{1: {date(2024, 5, 1): {"a", "b"}}, 2: {}}],
                id="keys: nested",
            ),
            pytest.param(Shelf, Shelf({1: {UUID(int=7): "a"}}), id="keys: in a dataclass"),
            pytest.param(Look, {"colour": "red", "inner": {1: {}}}, id="TypedDict"),
            pytest.param(Box | Crate, Crate({"any": 1}), id="tagged Structs"),
        ],
    )
    def test_types_come_back_by_their_annotation(self, annotation, value):
        """A value is converted back by its annotation, given by position and by name."""

        def handler(value) -> None: ...

        handler.__annotations__["value"] = annotation
        signature = Signature(handler, "t")
        assert received(signature, value) == ((value,), {})
        assert received(signature, value=value) == ((), {"value": value})

    def test_an_unannotated_parameter_gets_plain_json(self):
        """An unannotated parameter gets plain JSON."""
        assert received(Signature(untyped, "t"), [1], b=(2,)) == (([1],), {"b": [2]})

    @each(
        "annotation, value, problem",
        [
            pytest.param(int, "5", "expected int, got str", id="text for a number"),
            pytest.param(int, 5.0, "expected int, got float", id="float for an int"),
            pytest.param(str, 5, "expected str, got int", id="number for text"),
            pytest.param(bool, 1, "expected bool, got int", id="number for a bool"),
            pytest.param(int, None, "expected int, got null", id="null"),
            pytest.param(datetime, "yesterday", "invalid RFC3339", id="no datetime"),
            pytest.param(Colour, "blue", "invalid enum value 'blue'", id="no member"),
            pytest.param(
                Annotated[int, msgspec.Meta(ge=1)], 0, "expected int >= 1", id="out of range"
            ),
            pytest.param(Positive, {"number": 0}, "must be positive", id="refused by its class"),
        ],
    )
    def test_values_of_the_wrong_type_are_refused(self, annotation, value, problem):
        """An error for a value of the wrong type has the problem and the declared type."""

        def handler(other: int, value) -> None: ...

        handler.__annotations__["value"] = annotation
        error = refused(Signature(handler, "t"), 1, value)
        assert error.field.startswith("t(value")
        assert problem in error.problem
        assert error.limit.startswith("the parameter is declared as `value: ")
        refused(Signature(handler, "t"), 1, value=value)

    @each(
        "annotation, value, field, problem",
        [
            pytest.param(dict[int, str], {True: "a"}, "args[0]", "the key True", id="a bool"),
            pytest.param(dict[int, dict], {1: {2: 3}}, "args[0][1]", "the key 2", id="inside"),
            pytest.param(dict[int, object], {1: [{2: 3}]}, "args[0][1][0]", "the key 2", id="Any"),
            pytest.param(dict[int, int], {1: 1, "1": 2}, "args[0]", "one key in JSON", id="twice"),
            pytest.param(dict[float, int], {math.nan: 1}, "args[0]", "the key nan", id="nan"),
            pytest.param(dict[float, int], {-math.inf: 1}, "args[0]", "the key -inf", id="inf"),
            pytest.param(
                int | dict[int, int] | None, {(1, 2): 1}, "args[0]", "the key (1, 2)", id="a tuple"
            ),
        ],
    )
    @each("by_name", [False, True])
    def test_keys_that_would_not_come_back_are_refused(
        self, annotation, value, field, problem, by_name
    ):
        """A number as a key is refused unless an annotation converts it back, even beside keys that it does."""

        def handler(value) -> None: ...

        handler.__annotations__["value"] = annotation
        args, kwargs = ((), {"value": value}) if by_name else ((value,), {})
        with pytest.raises(InvalidBodyError) as caught:
            Signature(handler, "t").encode(args, kwargs)
        assert caught.value.field == field.replace(
            "args[0]", "kwargs.value" if by_name else field[:7]
        )
        assert problem in caught.value.problem

    def test_number_keys_of_one_parameter_are_not_those_of_another(self):
        """A parameter that takes numbers as keys does not allow them in another one."""

        def handler(typed: dict[int, str], plain, *rest, **named: dict[int, int]) -> None: ...

        signature = Signature(handler, "t")
        assert received(signature, {1: "a"}, {"b": 1}, named={2: 3}) == (
            ({1: "a"}, {"b": 1}),
            {"named": {2: 3}},
        )
        for args, field in [(({}, {1: 2}), "args[1]"), (({}, {}, {1: 2}), "args[2]")]:
            with pytest.raises(InvalidBodyError) as caught:
                signature.encode(args, {})
            assert caught.value.field == field

    def test_text_is_refused_as_a_key_among_numbers(self):
        """Text that is not a number is refused if keys are numbers."""

        def handler(value: dict[int, int]) -> None: ...

        assert "expected int, got str" in refused(Signature(handler, "t"), {"x": 1}).problem

    @each(
        "annotation, value, field",
        [
            pytest.param(Look, {"color": "red"}, "t(value)", id="itself"),
            pytest.param(list[Look], [{}, {"color": "red"}], "t(value[1])", id="in a list"),
            pytest.param(
                Look | None, {"inner": {"1": {"color": ""}}}, "t(value.inner[...])", id="in itself"
            ),
            pytest.param(tuple[int, Look], [1, {"color": ""}], "t(value[1])", id="in a tuple"),
            pytest.param(
                Box | Crate,
                {"type": "box", "look": {"color": ""}},
                "t(value.look)",
                id="in a tagged Struct",
            ),
        ],
    )
    def test_keys_that_a_typed_dict_does_not_declare_are_refused(self, annotation, value, field):
        """An undeclared key of a TypedDict is refused, and named, on sending and on receiving."""

        def handler(value) -> None: ...

        handler.__annotations__["value"] = annotation
        error = refused(Signature(handler, "t"), value)
        assert error.field == field
        assert error.problem == (
            "has the key 'color', which Look does not declare; did you mean 'colour'?"
        )
        refused(Signature(handler, "t"), value=value)

    def test_an_error_reads_as_a_sentence(self):
        """An error names task, argument, problem and expected type."""
        assert str(refused(Signature(send_email, "send_email"), 5)) == (
            "send_email(to): expected str, got int; the parameter is declared as `to: str`"
        )

    def test_the_path_leads_into_the_argument(self):
        """The field of an error is the path inside the argument."""

        def handler(order: Order) -> None: ...

        error = refused(Signature(handler, "ship"), {"items": [{"street": "x", "zip": "1010"}]})
        assert error.field == "ship(order.items[0].zip)"

    def test_rest_parameters_are_typed(self):
        """Arguments in *args and **kwargs have the type of their parameter."""
        signature = Signature(everything, "t")
        assert refused(signature, 1, 2, "x", c=3).field == "t(rest)"
        assert refused(signature, 1, 2, c=3, z="x").field == "t(z)"

    def test_a_value_that_json_cannot_carry_is_named_by_its_path(self):
        """A value that JSON cannot carry is refused with its path in the body."""
        with pytest.raises(InvalidBodyError) as caught:
            Signature(untyped, "t").check((1,), {"b": [float("nan")]})
        assert caught.value.field == "kwargs.b[0]"


class TestForeignBodies:
    @each(
        "args, kwargs, field, problem",
        [
            pytest.param(
                b'["\xff"]', b"{}", "send_email(to)", "is not UTF-8", id="argument not UTF-8"
            ),
            pytest.param(b"[]", b'{"\xff": 1}', "send_email", "is not UTF-8", id="name not UTF-8"),
            pytest.param(
                b"{}", b"{}", "send_email", "expected array, got object", id="args no array"
            ),
            pytest.param(
                b"[]", b"[]", "send_email", "expected object, got array", id="kwargs no object"
            ),
            pytest.param(
                b'["a", "b", 1e999]', b"{}", "send_email(retries)", "out of range", id="number"
            ),
        ],
    )
    def test_arguments_that_cannot_be_read_are_refused(self, args, kwargs, field, problem):
        """Arguments that cannot be read are refused."""
        with pytest.raises(ArgumentsError) as caught:
            Signature(send_email, "send_email").decode(Raw(args), Raw(kwargs))
        assert caught.value.field == field
        assert problem in caught.value.problem

    def test_text_of_a_foreign_body_is_escaped_and_cut(self):
        """Text of a foreign body never reaches a log raw or at full length."""
        signature = Signature(send_email, "send_email")
        error = refused(signature, **{"\x1b[31m\n" + "x" * 10_000: 1})
        assert str(error).isprintable()
        assert len(str(error)) < 700

        def handler(colour: Colour) -> None: ...

        error = refused(Signature(handler, "t"), "\x1b[31m\n" + "x" * 10_000)
        assert str(error).isprintable()
        assert len(str(error)) < 700


class TestBatch:
    def test_a_call_carries_one_item(self):
        """A call of a batch handler carries one item, of the type inside its list."""
        signature = Signature(load, "load", batch=True)
        order = Order([Address("x", 1)])
        assert received(signature, order) == ((order,), {})

    def test_an_item_of_the_wrong_type_is_refused(self):
        """An item of the wrong type is refused, and so are a list of items and an item by name."""
        signature = Signature(load, "load", batch=True)
        assert refused(signature, {"items": 5}).field == "load(events.items)"
        assert refused(signature, [Order([])]).field == "load(events)"
        assert refused(signature, events=Order([])).field == "load(events)"
        assert refused(signature).problem == "is missing"
