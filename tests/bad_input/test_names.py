"""Names that are none: refused wherever one is taken, before anything is written."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import pytest

from qworker import QWorker
from qworker.app.options import TaskOptions
from qworker.errors import InvalidNameError
from tests.bad_input.conftest import Bench
from tests.tables import each

pytestmark = pytest.mark.bad_input

NOT_VALID = "is not a valid name"
RESERVED = "is reserved"
NOT_TEXT = "not str"
LIMIT = (
    "1 to 64 of a-z, 0-9, '.', '_' and '-', the first one a letter or digit; "
    "not 'queues', 'reaper' or 'workers'"
)

NAMES: dict[str, tuple[object, str]] = {
    "empty": ("", NOT_VALID),
    "65 characters": ("x" * 65, NOT_VALID),
    "upper case": ("Mail", NOT_VALID),
    "space": ("a b", NOT_VALID),
    "colon": ("a:b", NOT_VALID),
    "hash tag": ("{a}", NOT_VALID),
    "hash tag turned over": ("a}{b", NOT_VALID),
    "glob star": ("*", NOT_VALID),
    "glob question mark": ("a?", NOT_VALID),
    "glob range": ("[a]", NOT_VALID),
    "newline": ("a\nb", NOT_VALID),
    "newline at the end": ("a\n", NOT_VALID),
    "carriage return": ("a\rb", NOT_VALID),
    "NUL": ("a\0b", NOT_VALID),
    "escape": ("a\x1b[0m", NOT_VALID),
    "not ASCII": ("größe", NOT_VALID),
    "homoglyph": ("m\u0430il", NOT_VALID),
    "lone surrogate": ("a\ud800", NOT_VALID),
    "reserved: reaper": ("reaper", RESERVED),
    "reserved: queues": ("queues", RESERVED),
    "reserved: workers": ("workers", RESERVED),
    "integer": (7, NOT_TEXT),
    "None": (None, NOT_TEXT),
    "bytes": (b"mail", NOT_TEXT),
    "path": ("../x", NOT_VALID),
    "percent escapes": ("%7Ba%7D", NOT_VALID),
}

PLACES: dict[str, Callable[[Bench, object], object]] = {
    "low level": lambda bench, name: bench.app.queue(name).send({}),
    "low level, async": lambda bench, name: asyncio.run(sent_async(bench.app, name)),
    "task": lambda bench, name: bench.app.task(queue=name)(lambda: None).send(),
    "options of a task": lambda _, name: TaskOptions(queue=name),
    "name without a call": lambda bench, name: bench.app.queue(name),
}


async def sent_async(app: QWorker, name: object) -> str:
    return await app.aqueue(name).send({})  # type: ignore[arg-type]


@pytest.mark.parametrize("place", PLACES)
@each("name", NAMES)
def test_a_queue_name_that_is_none_is_refused(bench: Bench, place: str, name: str) -> None:
    """By the same error everywhere; what it quotes is escaped."""
    value, problem = NAMES[name]
    before = bench.dump()

    with pytest.raises(InvalidNameError) as caught:
        PLACES[place](bench, value)

    assert caught.value.field == "queue"
    assert problem in caught.value.problem
    assert caught.value.limit == LIMIT
    assert str(caught.value).isascii()
    assert str(caught.value).isprintable()
    assert bench.dump() == before


@each("name", NAMES)
def test_a_namespace_that_is_none_is_refused(name: str) -> None:
    """When the app is made."""
    value, problem = NAMES[name]

    with pytest.raises(InvalidNameError) as caught:
        QWorker(value)  # type: ignore[arg-type]

    assert caught.value.field == "namespace"
    assert problem in caught.value.problem
    assert caught.value.limit == LIMIT


@pytest.mark.parametrize("name", ["x" * 64, "a", "0", "a.b-c_d"])
def test_the_longest_and_the_oddest_names_are_taken(bench: Bench, name: str) -> None:
    """64 characters, one character, digits and punctuation."""
    queue = bench.app.queue(name)

    queue.send({"n": 1})

    assert [message.body for message in queue.peek()] == [b'{"n":1}']
