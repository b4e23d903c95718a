"""Bodies that others have written: read as what they are, or refused with the path, and never anything else."""

# ruff: noqa: PT017  an answer or a refusal: both are checked
from __future__ import annotations

import json
import math
from dataclasses import dataclass
from datetime import datetime
from decimal import Decimal
from typing import Any
from uuid import UUID

import pytest
from hypothesis import strategies as st

from qworker import QWorker
from qworker.errors import InvalidBodyError, InvalidError
from qworker.wire import codec
from tests.fuzz.exploring import explore

_SCALARS = st.sampled_from(
    [
        *(
            "null",
            "true",
            "0",
            "-0",
            "1.5",
            "1e999",
            "-1e999",
            "1E+5",
            "9" * 25,
            "-" + "9" * 400,
            "9" * 5000,
            "01",
            "+1",
        ),
        *(
            '""',
            '"a"',
            '"\\ud800"',
            '"\\u0000"',
            '"\\x"',
            '"\n"',
            '"2026-01-01T00:00:00Z"',
            '"YQ=="',
            '"1.10"',
            "NaN",
        ),
        *(
            "Infinity",
            '"' + "x" * 300 + '"',
            "[]",
            "{}",
            '{"a":1,"a":2}',
            '{"task":"keep"}',
            "'a'",
            "nul",
            "\ufeff1",
        ),
    ]
)
_JSON = st.recursive(
    _SCALARS,
    lambda inner: st.one_of(
        st.lists(inner, max_size=4).map(lambda all_: "[" + ",".join(all_) + "]"),
        st.dictionaries(
            st.sampled_from(["a", "task", "args", "kwargs", "\\ud800", ""]), inner, max_size=3
        ).map(
            lambda dictionary: (
                "{" + ",".join(f'"{name}":{value}' for name, value in dictionary.items()) + "}"
            )
        ),
        st.tuples(st.sampled_from([1, 30, 62, 63, 64, 65, 66, 1000, 100_000]), inner).map(
            lambda pair: "[" * pair[0] + pair[1] + "]" * pair[0]
        ),
    ),
    max_leaves=8,
)
_CALLS = st.tuples(_JSON, _JSON, _JSON).map(
    lambda three: f'{{"task":{three[0]},"args":{three[1]},"kwargs":{three[2]}}}'
)
_TEXTS = st.one_of(_JSON, _CALLS, _CALLS.map(lambda text: text.replace("null", '"keep"', 1)))
_CUT = st.tuples(
    _TEXTS, st.integers(0, 60), st.sampled_from(["", "\0", "]", ",", "\\", "\ud800"])
).map(lambda cut: (cut[0][: cut[1]] + cut[2]).encode("utf-8", "surrogatepass"))
#: JSON, nearly JSON, and anything else.
bodies = st.one_of(_TEXTS.map(str.encode), _CUT, st.binary(max_size=40))


@dataclass
class Item:
    """What a typed task may ask for."""

    price: Decimal
    at: datetime
    tags: set[str]
    child: Item | None = None


def depth_of(value: Any) -> int:
    """How deep a value is nested."""
    deepest, layer = 0, [value]
    while layer:
        inner: list[Any] = []
        for each in layer:
            if isinstance(each, dict):
                inner += each.values()
            elif isinstance(each, list):
                inner += each
        deepest += any(isinstance(each, dict | list) for each in layer)
        layer = inner
    return deepest


@pytest.mark.bad_input("data found: body that is none")
@pytest.mark.slow
def test_a_body_is_read_or_refused() -> None:
    """What is read is finite, at most 64 levels deep and can be sent again; what is not says where it is wrong."""

    def read(body: bytes) -> None:
        try:
            value = codec.decode(body)
        except InvalidBodyError as error:
            assert error.field == "body"
            assert len(str(error)) < 600
            return
        assert depth_of(value) <= codec.MAX_DEPTH
        assert codec.decode(codec.encode(value)) == value
        if isinstance(value, float):
            assert math.isfinite(value)
        json.dumps(value)

    explore(read, bodies, examples=400)


@pytest.mark.slow
@pytest.mark.parametrize(
    "examples",
    [150, pytest.param(400, marks=pytest.mark.nightly("test_a_call_is_read_or_refused"))],
)
def test_a_call_is_read_or_refused(examples: int) -> None:
    """Down to the types of every argument of a task."""
    app = QWorker("fuzzed")

    @app.task
    def keep(
        item: Item, *more: int, raw: bytes = b"", ids: dict[str, UUID] | None = None
    ) -> None: ...

    @app.task
    def anything(*args: Any, **kwargs: Any) -> None: ...

    def read(body: bytes) -> None:
        try:
            call = codec.decode_call(body)
        except InvalidBodyError as error:
            assert len(str(error)) < 600
            return
        for task in (keep, anything):
            try:
                task.signature.decode(call.args, call.kwargs)
            except InvalidError as error:
                assert len(str(error)) < 2000

    explore(read, bodies, examples=examples)
