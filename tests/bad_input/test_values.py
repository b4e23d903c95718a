"""Bodies, arguments, batches and keys that cannot be accepted, each with its error, and nothing written."""

from __future__ import annotations

import math
from collections.abc import Iterator
from datetime import datetime
from decimal import Decimal
from typing import Any

import pytest

from qworker import QWorker
from qworker.engine.options import LARGEST_MAXSIZE
from qworker.errors import (
    ArgumentsError,
    BodyTooLargeError,
    InvalidBodyError,
    InvalidError,
    InvalidOptionError,
)
from tests.bad_input.conftest import Bench
from tests.bad_input.refusals import CARRIED, Refused, body, check, option
from tests.tables import each

pytestmark = pytest.mark.bad_input


def calls(bench: Bench, *names: object) -> Iterator[Any]:
    for name in names:
        yield bench.greet.call(name)


def nested(depth: int) -> Any:
    value: Any = 1
    for _ in range(depth):
        value = [value]
    return value


def holds_itself() -> Any:
    value: list[Any] = []
    value.append(value)
    return value


BODIES: dict[str, Refused] = {
    "larger than maxsize": Refused(
        lambda bench: bench.queue.send(b"x" * (LARGEST_MAXSIZE + 1)),
        BodyTooLargeError,
        "body",
        "is 67108865 bytes",
        "the limit (maxsize) is 67108864 bytes",
    ),
    "larger than maxsize in a task": Refused(
        lambda bench: bench.greet.send("x" * LARGEST_MAXSIZE),
        BodyTooLargeError,
        "body",
        "is 67108892 bytes",
        "the limit (maxsize) is 67108864 bytes",
    ),
    "object": body({"a": [1, object()]}, "a[1]", "is of type object"),
    "function": body(len, "body", "is of type builtin_function_or_method"),
    "complex number": body([1j], "body[0]", "is of type complex"),
    "NaN": body({"price": math.nan}, "price", "is nan"),
    "infinity": body([[math.inf]], "body[0][0]", "is inf"),
    "minus infinity": body({"a": {"b": -math.inf}}, "a.b", "is -inf"),
    "Decimal in a set with an object": body({"a": {Decimal(1), len}}, "a[", "is of type builtin"),
    "lone surrogate": body({"a": "x\ud800"}, "a", "holds a lone surrogate (U+D800)"),
    "lone surrogate in a key": body({"\udfff": 1}, "body", "has a key with a lone surrogate"),
    "number as a key": body({"a": {1: 2}}, "a", "has the key 1 of type int"),
    "65 levels": body(nested(65), "body[0][0]", "is nested deeper than 64 levels"),
    "a list that holds itself": body(holds_itself(), "body[0][0]", "is nested deeper than 64"),
    "integer of 5000 digits": body({"n": 10**5000}, "n", "too long to write"),
}

ARGUMENTS: dict[str, Refused] = {
    "wrong type": Refused(
        lambda bench: bench.greet.send(42), ArgumentsError, "greet(name)", "int", "str"
    ),
    "missing": Refused(
        lambda bench: bench.greet.send(), ArgumentsError, "greet(name)", "is missing", ""
    ),
    "unknown": Refused(
        lambda bench: bench.greet.send("a", att=1), ArgumentsError, "greet(att)", "", "at"
    ),
    "too many": Refused(lambda bench: bench.greet.send("a", "b"), ArgumentsError, "greet", "", ""),
    "NaN": Refused(
        lambda bench: bench.total.send(math.nan), InvalidError, "args[0]", "is nan", CARRIED
    ),
    "a bad one among many": Refused(
        lambda bench: bench.greet.send_many(calls(bench, "a", "b", 3)),
        ArgumentsError,
        "greet(name)",
        "int",
        "str",
    ),
}

BATCHES: dict[str, Refused] = {
    "one that JSON cannot carry": Refused(
        lambda bench: bench.queue.send_many([1, {"a": 2}, {"price": math.nan}, 4]),
        InvalidBodyError,
        "bodies[2].price",
        "is nan",
        CARRIED,
    ),
    "one that is no container": Refused(
        lambda bench: bench.queue.send_many([1, math.nan]),
        InvalidBodyError,
        "bodies[1]",
        "is nan",
        CARRIED,
    ),
    "one in a list": Refused(
        lambda bench: bench.queue.send_many([[len]]),
        InvalidBodyError,
        "bodies[0][0]",
        "builtin",
        CARRIED,
    ),
    "one too large": Refused(
        lambda bench: bench.queue.send_many([b"1", b"x" * (LARGEST_MAXSIZE + 1)]),
        BodyTooLargeError,
        "bodies[1]",
        "is 67108865 bytes",
        "67108864",
    ),
    "none received": Refused(
        lambda bench: bench.queue.receive(0),
        InvalidOptionError,
        "count",
        "0 is out of range",
        "a number from 1 to 1000",
    ),
    "1,001 received": Refused(
        lambda bench: bench.queue.receive(1001),
        InvalidOptionError,
        "count",
        "1001 is out of range",
        "a number from 1 to 1000",
    ),
    "True received": Refused(
        lambda bench: bench.queue.receive(True),
        InvalidOptionError,
        "count",
        "True",
        "a number from 1 to 1000",
    ),
    "1,001 looked at": Refused(
        lambda bench: bench.queue.peek(1001),
        InvalidOptionError,
        "count",
        "1001 is out of range",
        "a number from 1 to 1000",
    ),
    "state that is none": Refused(
        lambda bench: bench.queue.peek(state="raedy"),
        InvalidOptionError,
        "state",
        "'raedy' is not a state",
        "one of ready, delayed, held, unacked, dead",
    ),
    "purge of what is in hand": Refused(
        lambda bench: bench.queue.purge("unacked"),
        InvalidOptionError,
        "state",
        "'unacked'",
        "one of ready, delayed, dead",
    ),
    "direction that is none": Refused(
        lambda bench: bench.queue.pause("up"),
        InvalidOptionError,
        "pause",
        "'up' is not a direction",
        "one of in, out, all",
    ),
}

KEYS: dict[str, Refused] = {
    "empty": option("unique", "", "is 0 bytes", "text of 1 to 256 bytes"),
    "257 bytes": option("unique", "x" * 257, "is 257 bytes", "text of 1 to 256 bytes"),
    "no text": option("unique", 7, "is not a str", "text of 1 to 256 bytes"),
    "lone surrogate": option("unique", "\ud800", "lone surrogate", "text of 1 to 256 bytes"),
}

TABLE: dict[str, Refused] = {
    f"{subject}: {what}": case
    for subject, cases in {
        "body": BODIES,
        "arguments": ARGUMENTS,
        "batch": BATCHES,
        "unique key": KEYS,
    }.items()
    for what, case in cases.items()
}


@pytest.mark.parametrize("case", TABLE)
def test_a_value_that_cannot_be_accepted_is_refused(bench: Bench, case: str) -> None:
    """Whole: of many, none is sent."""
    check(bench, TABLE[case])


@pytest.mark.bad_input("body or key: before any network call")
@each("case", [name for name in TABLE if name.startswith(("body", "batch: one", "unique", "arg"))])
@pytest.mark.slow
def test_it_is_refused_before_any_network_call(case: str) -> None:
    """Also where no server is: the error is the same, and at once."""
    app = QWorker("nowhere", url="unix:///nonexistent/socket")

    @app.task(queue="emails")
    def greet(name: str, *, at: datetime | None = None) -> None: ...

    @app.task(queue="emails")
    def total(price: float) -> None: ...

    refused = TABLE[case]
    with pytest.raises(refused.error):
        refused.call(Bench(app, app.queue("emails"), None, None))  # type: ignore[arg-type]
