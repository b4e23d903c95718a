"""Pydantic models as arguments: annotated, nested, as plain values, and refused with the path of the wrong value."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import dataclass
from datetime import date
from decimal import Decimal
from typing import Any, Literal

import pydantic
import pytest

from qworker import ArgumentsError, InvalidBodyError, InvalidOptionError, QWorker
from qworker.wire.codec import decode_call
from tests.consumer.driving import drain, history_of
from tests.tables import each


class OrderLine(pydantic.BaseModel):
    """A line of an order."""

    sku: str
    number: int = pydantic.Field(gt=0)
    price: Decimal


class Order(pydantic.BaseModel):
    """A model that contains another one, an alias and a date."""

    model_config = pydantic.ConfigDict(strict=True, populate_by_name=True)

    lines: list[OrderLine]
    day: date
    customer: str = pydantic.Field(alias="customerId", default="none")


class Refund(pydantic.BaseModel):
    """Another model, distinguished by `kind`."""

    kind: Literal["refund"]
    amount: Decimal


@dataclass
class Parcel:
    """A dataclass with a model."""

    order: Order
    weight: float


LINE = OrderLine(sku="a", number=2, price=Decimal("1.10"))
ORDER = Order(lines=[LINE], day=date(2024, 2, 29), customer="c")
REFUND = Refund(kind="refund", amount=Decimal("1"))


def round_trip(handler: Any, *args: object, **kwargs: object) -> tuple[Any, Any]:
    """Return the arguments that a handler gets."""
    task = QWorker("models").task(name="handle")(handler)
    call = decode_call(task.call(*args, **kwargs).body)
    return task.signature.decode(call.args, call.kwargs)


def one(value: Order) -> None: ...


def several(value: list[Order], by_name: dict[str, OrderLine | None]) -> None: ...


def either(value: Order | Refund | None) -> None: ...


def inside(value: Parcel) -> None: ...


def plain(value, other=None) -> None: ...  # type: ignore[no-untyped-def]


@each(
    "handler, args",
    [
        (one, (ORDER,)),
        (several, ([ORDER, ORDER], {"a": LINE, "b": None})),
        (either, (ORDER,)),
        (either, (REFUND,)),
        (either, (None,)),
        (inside, (Parcel(ORDER, 1.5),)),
    ],
)
def test_models_arrive_as_they_were_sent(handler: Any, args: tuple[object, ...]) -> None:
    """A handler gets models, also inside lists, dicts, unions and dataclasses."""
    assert round_trip(handler, *args) == (args, {})


def test_a_model_may_be_given_as_plain_values() -> None:
    """Values that the model accepts as JSON are accepted in its place, by name as well."""
    given = {"lines": [], "day": "2024-02-29", "customerId": "c"}
    assert round_trip(one, given) == ((Order(lines=[], day=date(2024, 2, 29), customer="c"),), {})
    assert round_trip(one, value=given)[1]["value"].customer == "c"


def test_without_an_annotation_a_model_arrives_as_plain_json() -> None:
    """An unannotated parameter gets the model's dump, as for a dataclass."""
    dumped = {"sku": "a", "number": 2, "price": "1.10"}
    assert round_trip(plain, LINE, {"deep": [LINE]}) == ((dumped, {"deep": [dumped]}), {})


@each(
    "handler, args, field, problem",
    [
        (one, ({"lines": [], "day": "soon"},), "handle(value.day)", "input should be a valid date"),
        (
            one,
            ({"lines": [{"sku": "a", "number": 0, "price": "1"}], "day": "2024-02-29"},),
            "handle(value.lines[0].number)",
            "input should be greater than 0",
        ),
        (one, ({},), "handle(value.lines)", "field required (and 1 more)"),
        (
            several,
            ([], {"a": {"sku": 1}}),
            "handle(by_name.a.sku)",
            "input should be a valid string",
        ),
        (one, ("x",), "handle(value)", "object"),
    ],
)
def test_a_value_that_a_model_refuses_is_named_by_its_path(
    handler: Any, args: tuple[object, ...], field: str, problem: str
) -> None:
    """Nothing is sent; the error has the path and pydantic's text."""
    with pytest.raises(ArgumentsError) as raised:
        round_trip(handler, *args)
    assert raised.value.field == field
    assert problem in raised.value.problem


def test_a_model_with_values_that_json_cannot_carry_is_refused_on_sending() -> None:
    """NaN in a model is reported with its path, as in any other value."""

    class Weight(pydantic.BaseModel):
        kilos: float

    with pytest.raises(InvalidBodyError, match=r"args\[0\]\.kilos: is nan"):
        round_trip(plain, Weight(kilos=float("nan")))


def test_an_annotation_with_a_model_and_an_unknown_type_is_refused() -> None:
    """Neither pydantic nor msgspec knows the type; decoration names the parameter."""

    def handle(value: Order | Exception) -> None: ...

    with pytest.raises(InvalidOptionError, match=r"handle\(value\): is annotated "):
        QWorker("models").task(handle)


@pytest.mark.parametrize("batch", [None, 10])
def test_a_worker_gives_models_to_its_handlers(app: QWorker, batch: int | None) -> None:
    """A handler gets models, also in batches; a message that the model refuses is dead, with the reason."""
    seen: list[Order] = []

    def handle(order: Order) -> None:
        seen.append(order)

    def load(orders: list[Order]) -> None:
        seen.extend(orders)

    task: Any = app.task(name="task", batch=batch)(load if batch else handle)
    task.send(ORDER)
    app.queue("default").send({"task": "task", "args": [{"lines": 5}]})

    drain(app)

    assert seen == [ORDER]
    stats = history_of(app.queue("default"))
    assert (stats["acked"], stats["dead:bad_arguments"]) == (1, 1)
    (dead_letter,) = app.queue("default").dead()
    assert ".lines): input should be a valid" in dead_letter.error


@pytest.mark.slow
def test_pydantic_is_not_imported_for_an_app_without_models() -> None:
    """An app that does not use pydantic does not pay for its import."""
    source = (
        "import sys; from qworker import QWorker; app = QWorker('a');"
        "task = app.task(name='t')(lambda a: a); task.call({'a': [1, None, 2.5]});"
        "assert 'pydantic' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", source], check=True)
