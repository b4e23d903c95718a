"""Parameters: which handlers can be decorated, and the errors for others."""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import msgspec
import pytest

from qworker.app.arguments.parameters import item_of_batch, parameters_of
from qworker.errors import InvalidOptionError
from tests.tables import each

if TYPE_CHECKING:
    from qworker.app.app import QWorker as Hidden


EMPTY: list[str] = []


class Plain:
    pass


class Tree(msgspec.Struct):
    children: list[Tree] = []  # msgspec copies it


class HoldsPlain(msgspec.Struct):
    inner: list[Plain]


@dataclass
class Event:
    at: datetime


def refused(function, *, batch: bool = False) -> InvalidOptionError:
    def decorate() -> None:
        parameters = parameters_of(function, "task")
        if batch:
            item_of_batch(parameters, "task")

    with pytest.raises(InvalidOptionError) as caught:
        decorate()
    return caught.value


def test_parameters_are_shown_with_their_types():
    """Parameters are shown with their types, and with `...` for a default."""

    def handler(
        a, /, b: int, c: list[str] = EMPTY, *rest: bool, d: Event | None = None, **more: float
    ) -> None: ...

    assert list(map(str, parameters_of(handler, "task"))) == [
        "a",
        "b: int",
        "c: list[str] = ...",
        "*rest: bool",
        "d: tests.app.test_parameters.Event | None = ...",
        "**more: float",
    ]


def test_annotations_of_a_decorated_function_are_its_own():
    """Annotations of a decorated function are resolved in its own module."""

    def inner(event: Event) -> None: ...

    @functools.wraps(inner)
    def outer(*args: Any) -> None: ...

    assert [parameter.annotation for parameter in parameters_of(outer, "task")] == [Event]


def test_only_parameters_are_resolved():
    """An annotation of the result need not be resolvable."""

    def handler(a: int) -> Hidden: ...

    assert [str(parameter) for parameter in parameters_of(handler, "task")] == ["a: int"]


def test_types_may_be_recursive():
    """Types may be recursive."""

    def handler(tree: Tree) -> None: ...

    assert parameters_of(handler, "task")[0].annotation is Tree


def test_object_takes_anything():
    """`object` takes anything, alone and inside other types."""

    def handler(a: object, b: list[object]) -> None: ...

    decoders = [parameter.decode for parameter in parameters_of(handler, "task")]
    assert [decode(b'[1, {"x": null}]') for decode in decoders] == [[1, {"x": None}]] * 2


def test_the_error_of_an_unresolvable_annotation_says_what_to_do():
    """The error of an annotation that cannot be resolved says what to do."""

    def handler(a: int, app: Hidden) -> None: ...

    assert str(refused(handler)) == (
        "task(app): is annotated Hidden, which cannot be resolved: name 'Hidden' is not defined; import or define the "
        "type at module level (not under `if TYPE_CHECKING:`), or leave the parameter unannotated"
    )


def test_an_annotation_that_is_evaluated_late_is_named_as_well():
    """From Python 3.14 on a module without `from __future__ import annotations` may name what does not exist yet."""
    scope: dict[str, Any] = {}
    future = "" if sys.version_info >= (3, 14) else "from __future__ import annotations\n"
    source = f"{future}def handler(a: int, rows: list[Missing]) -> None: ..."
    exec(compile(source, "shop.py", "exec", dont_inherit=True), scope)
    refusal = str(refused(scope["handler"]))
    assert "task(rows): is annotated list[Missing], which cannot be resolved" in refusal


@each(
    "annotation, problem",
    [
        pytest.param(
            Plain, "is annotated tests.app.test_parameters.Plain, which", id="arbitrary class"
        ),
        pytest.param(
            list[Plain], "(it contains tests.app.test_parameters.Plain)", id="list of a class"
        ),
        pytest.param(
            HoldsPlain, "(it contains tests.app.test_parameters.Plain)", id="Struct of a class"
        ),
        pytest.param(Path, f"is annotated {Path.__module__}.Path", id="Path"),
        pytest.param(complex, "is annotated complex", id="complex"),
        pytest.param(Callable[[], None], "which JSON cannot be converted to", id="Callable"),
        pytest.param(Iterable[int], "which JSON cannot be converted to", id="Iterable"),
        pytest.param(datetime | str, "more than one str-like type", id="ambiguous union"),
        pytest.param(int | Plain, "custom type", id="union with a class"),
        pytest.param(dict[bool, int], "its keys are of type bool", id="keys: bool"),
        pytest.param(dict[int | None, int], "its keys are of type none", id="keys: None"),
        pytest.param(list[dict[tuple[int, ...], int]], "of type vartuple", id="keys: tuples"),
        pytest.param(dict[int | str, int], "its keys are of several types", id="keys: union"),
        pytest.param(dict[Literal[1, "1"], int], "are text and numbers", id="keys: Literal"),
        pytest.param("list[", "cannot be resolved", id="syntax error"),
        pytest.param("Event.missing", "cannot be resolved", id="missing attribute"),
    ],
)
def test_a_type_that_json_cannot_become_is_refused_at_decoration(annotation, problem):
    """Decoration refuses a type that JSON cannot be converted to, and names the parameter."""

    def handler(first: int, second) -> None: ...

    handler.__annotations__["second"] = annotation
    error = refused(handler)
    assert error.field == "task(second)"
    assert problem in error.problem


def test_a_builtin_without_signature_is_refused():
    """A builtin without a signature is refused."""
    assert "has no readable signature" in str(refused(type))


@each(
    "annotation, item",
    [
        pytest.param(list[Event], Event, id="list"),
        pytest.param(Sequence[int], int, id="Sequence"),
        pytest.param(list, Any, id="bare list"),
        pytest.param(Any, Any, id="unannotated"),
    ],
)
def test_the_item_of_a_batch_handler_is_given_by_position(annotation, item):
    """The item of a batch handler has the type inside its list, and is given by position."""

    def handler(events) -> None: ...

    handler.__annotations__["events"] = annotation
    parameter = item_of_batch(parameters_of(handler, "task"), "task")
    assert parameter.annotation == item
    assert (parameter.position, parameter.is_named, parameter.is_required) == (0, False, True)


def test_a_batch_handler_takes_one_list():
    """A batch handler takes one list and nothing else."""

    def none() -> None: ...
    def two(a: list[int], b: int) -> None: ...
    def by_name(*, a: list[int]) -> None: ...
    def no_list(a: Event) -> None: ...

    for handler in (none, two, by_name, no_list):
        assert "annotated list[T]" in refused(handler, batch=True).limit
    assert refused(no_list, batch=True).field == "task(a)"
