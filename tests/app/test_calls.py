"""The fast path of calls: one decoder for many tasks, and what it leaves to their signatures."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import msgspec
import pytest

from qworker.app.arguments.binding import Signature
from qworker.app.arguments.calls import Calls
from tests.tables import each


def add(a: int, b: int = 5) -> None: ...
def greet(name: str) -> None: ...
def sweep() -> None: ...
def many(*numbers: int) -> None: ...
def named(*, to: str) -> None: ...
def anything(value: Any) -> None: ...


def calls(*functions: Callable[..., object]) -> Calls[str]:
    """Return the calls of some functions, whose names are their owners."""
    return Calls(
        {Signature(function, function.__name__): function.__name__ for function in functions}
    )


@each(
    "body, read",
    [
        (b'{"task":"add","args":[1,2]}', ("add", (1, 2))),
        (b'{"task":"add","args":[1]}', ("add", (1, 5))),
        (b'{"task":"greet","args":["x"]}', ("greet", ("x",))),
        (b'{"task":"sweep","args":[]}', ("sweep", ())),
        # Written by other clients: any order, any space, unknown fields.
        (b' { "args" : [ 1, 2 ] , "x": {"y": [1]}, "task" : "add" } ', ("add", (1, 2))),
    ],
)
def test_a_call_by_position_is_decoded_at_once(body: bytes, read: object) -> None:
    """One decoding yields the task and its arguments, defaults included."""
    assert calls(add, greet, sweep).read(body) == read


@each(
    "body",
    [
        pytest.param(b'{"task":"other","args":[]}', id="unknown task"),
        pytest.param(b'{"task":"add","args":["1"]}', id="wrong type"),
        pytest.param(b'{"task":"add","args":[1,2,3]}', id="too many"),
        pytest.param(b'{"task":"add","args":[]}', id="too few"),
        pytest.param(b'{"task":"add"}', id="no args"),
        pytest.param(b'{"task":"add","args":[1],"kwargs":{"b":2}}', id="by name"),
        pytest.param(b'{"args":[1]}', id="no task"),
        pytest.param(b'{"task":1,"args":[1]}', id="task that is not text"),
        pytest.param(b'{"task":"add","args":[1]', id="cut off"),
        pytest.param(b'{"task":"add","args":[1]}x', id="trailing byte"),
        pytest.param(b'{"task":"greet","args":["\xff"]}', id="not UTF-8"),
        pytest.param(b'{"task":"many","args":[1]}', id="any number of arguments"),
        pytest.param(b'{"task":"named","args":[]}', id="needs a name"),
        pytest.param(b"[1]", id="array"),
        pytest.param(b"", id="empty"),
        pytest.param(b'{"task":"anything","args":[' + b"[" * 64 + b"]" * 64 + b"]}", id="deep"),
    ],
)
def test_anything_else_is_left_to_the_signature(body: bytes) -> None:
    """The general path names the problem."""
    assert calls(add, greet, sweep, many, named, anything).read(body) is None


def test_nesting_up_to_the_limit_is_read() -> None:
    """62 levels in an argument are 64 with the body and its args."""
    body = b'{"task":"anything","args":[' + b"[" * 62 + b"]" * 62 + b"]}"
    read = calls(anything).read(body)
    assert read is not None
    assert read[0] == "anything"


@pytest.mark.parametrize("error", [ValueError("no"), LookupError("no"), SystemExit(3)])
def test_an_error_of_a_users_type_is_left_to_the_signature(error: BaseException) -> None:
    """Code of an argument's type may raise anything; the fast path raises nothing."""

    class Picky(msgspec.Struct):
        number: int

        def __post_init__(self) -> None:
            raise error

    def take(picky: Picky) -> None: ...

    take.__annotations__["picky"] = Picky
    assert calls(take).read(b'{"task":"take","args":[{"number":1}]}') is None


def test_without_tasks_nothing_is_read() -> None:
    """An app without calls by position has no fast path."""
    assert calls().read(b'{"task":"add","args":[1]}') is None
    assert calls(many).read(b'{"task":"many","args":[1]}') is None
    assert calls(many).read(b"null") is None
