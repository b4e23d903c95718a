"""Calls that must be refused, as values: what is called, and what each part of its error says."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import pytest

from qworker import QueueAttributes
from qworker.errors import InvalidBodyError, InvalidError, InvalidOptionError
from tests.bad_input.conftest import Bench

__all__ = ["CARRIED", "Refused", "attribute", "body", "check", "option", "task"]

CARRIED = "a body consists of str, int, finite float"


class Refused(NamedTuple):
    """What is called, and the error that it must come to: its class, and what each of its parts says."""

    call: Callable[[Bench], Any]
    error: type[InvalidError]
    field: str
    problem: str
    limit: str


def body(value: object, field: str, problem: str, limit: str = CARRIED) -> Refused:
    return Refused(lambda bench: bench.queue.send(value), InvalidBodyError, field, problem, limit)


def option(name: str, value: object, problem: str, limit: str) -> Refused:
    return Refused(
        lambda bench: bench.queue.send({}, **{name: value}),
        InvalidOptionError,
        name,
        problem,
        limit,
    )


def attribute(name: str, value: object, problem: str, limit: str) -> Refused:
    return Refused(
        lambda bench: bench.queue.configure(QueueAttributes(**{name: value})),
        InvalidOptionError,
        name,
        problem,
        limit,
    )


def task(name: str, value: object, problem: str, limit: str) -> Refused:
    return Refused(
        lambda bench: bench.app.task(name="other", **{name: value})(lambda items: None),
        InvalidOptionError,
        name,
        problem,
        limit,
    )


def check(bench: Bench, refused: Refused) -> None:
    """Make the call: its error says the field, what is wrong with its value, what is accepted. Nothing is written."""
    before = bench.dump()

    with pytest.raises(refused.error) as caught:
        refused.call(bench)

    error = caught.value
    assert error.field.startswith(refused.field)
    assert refused.problem in error.problem
    assert refused.limit in error.limit
    assert str(error) == f"{error.field}: {error.problem}; {error.limit}"
    assert len(str(error)) < 600
    assert bench.dump() == before
