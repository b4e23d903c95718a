"""Reading RSMQ's keys."""

from __future__ import annotations

import json
import time

import pytest

from qworker.importers.rsmq import Rsmq, as_call, as_it_is
from qworker.importers.source import RefusedMessageError, State
from qworker.importers.survey import survey_queue
from tests.importers.keys import add_rsmq
from tests.tables import each
from tests.timing import left_of_ms


def source(other, bodies=as_it_is, **options):
    return Rsmq(other.redis, lambda _: bodies, **options)


def now_ms(other) -> int:
    seconds, microseconds = other.redis.time()
    return seconds * 1000 + microseconds // 1000


def test_queues_are_those_of_the_set(other):
    """Also those without a message; another prefix has others."""
    add_rsmq(other.redis, "b", [])
    add_rsmq(other.redis, "a", [b"1"])
    assert source(other).queues() == ["a", "b"]
    assert source(other, prefix="old").queues() == []


def test_states_go_by_visibility_and_deliveries(other):
    """Visible is ready; hidden is delayed, or in flight if it was delivered before; deliveries are kept."""
    begun, now = time.monotonic(), now_ms(other)
    later = now + 60_000
    add_rsmq(other.redis, "q", [b"ready"], received=2)
    (key,) = source(other).queue("q").keys
    (ready,) = key.read(0, 10)
    assert (ready.state, ready.content.receives, ready.content.first_received_ms) == (
        State.READY,
        2,
        5,
    )
    assert ready.content.delay_ms == 0
    assert now - ready.content.age_ms in left_of_ms(1_700_000_000_000, begun)
    add_rsmq(other.redis, "d", [b"delayed"], visible_ms=later)
    add_rsmq(other.redis, "f", [b"taken"], visible_ms=later, received=1)
    for name, state in (("d", State.DELAYED), ("f", State.IN_FLIGHT)):
        ((found,),) = [each.read(0, 10) for each in source(other).queue(name).keys]
        assert found.state is state
        assert found.content.delay_ms in left_of_ms(60_000, begun)


def test_originals_are_removed_as_by_its_own_delete(other):
    """Other messages and the attributes stay, and a second removal does nothing."""
    ids = add_rsmq(other.redis, "q", [b"a", b"b"], received=1)
    (key,) = source(other).queue("q").keys
    first = key.read(0, 1)
    assert [key.remove_originals(first), key.remove_originals(first)] == [1, 0]
    assert other.redis.zrange("rsmq:q", 0, -1) == [ids[1].encode()]
    assert {name.decode() for name in other.redis.hkeys("rsmq:q:Q")} == {
        *("vt", "delay", "maxsize"),
        *(ids[1], f"{ids[1]}:rc", f"{ids[1]}:fr"),
    }


def test_id_without_a_body_stays(other):
    """There is nothing to move."""
    ids = add_rsmq(other.redis, "q", [b"a", b"b"])
    other.redis.hdel("rsmq:q:Q", ids[0])
    survey = survey_queue(source(other).queue("q"))
    assert (survey.movable, survey.reasons) == (1, {"no_body": 1})
    assert [each.name for each in survey.refused] == [ids[0]]


@pytest.mark.parametrize(
    ("given", "stored"),
    [
        (
            {"vt": 45, "delay": 10, "maxsize": 2048},
            {"visibility_ms": "45000", "delay_ms": "10000", "maxsize": "2048"},
        ),
        ({"vt": 0, "maxsize": -1}, {"visibility_ms": "1000", "maxsize": str(64 * 2**20)}),
        ({"vt": 9_999_999}, {"visibility_ms": "43200000", "maxsize": "65536"}),
    ],
)
def test_attributes_are_brought_into_our_bounds(other, given, stored):
    """vt to 1 s to 12 h, maxsize to 1 KiB to 64 MiB; a delay of 0 is ours anyway."""
    add_rsmq(other.redis, "q", [], **given)
    assert source(other).queue("q").attributes == stored


@each(
    "body, argument",
    [
        (
            b'{"a": [1, 2.5, null, 12345678901234567890]}',
            {"a": [1, 2.5, None, 12345678901234567890]},
        ),
        (b"[]", []),
        (b"{broken", "{broken"),
        (b"007", "007"),
        (b"1.0", "1.0"),
        (b"null", "null"),
        ("grüße".encode(), "grüße"),
        (b"", ""),
    ],
)
def test_argument_is_an_object_an_array_or_text(body, argument):
    """Text that looks like a number is text."""
    assert json.loads(as_call("t")(body)) == {"task": "t", "args": [argument]}


def test_argument_is_always_text_on_request():
    """Even if it is JSON."""
    assert json.loads(as_call("t", text=True)(b'{"a": 1}'))["args"] == ['{"a": 1}']


def test_bytes_that_are_not_text_are_refused_as_an_argument(other):
    """They stay, unless bodies are moved unchanged."""
    with pytest.raises(RefusedMessageError, match="not_text"):
        as_call("t")(b"\xff")
    add_rsmq(other.redis, "q", [b"\xff", b"[" * 100 + b"]" * 100])
    assert survey_queue(source(other, as_call("t")).queue("q")).reasons == {
        "not_text": 1,
        "arguments": 1,
    }
    assert survey_queue(source(other).queue("q")).movable == 2
