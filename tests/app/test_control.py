"""Control flow: what a handler raises to say how its message ends."""

from __future__ import annotations

import pickle

import pytest

from qworker.app.control import Bury, ControlFlow, Discard, LetExpire, Release, Retry
from qworker.app.retry import RetryPolicy
from qworker.errors import InvalidOptionError, QworkerError
from tests.tables import each


def test_retry_is_both_instruction_and_source_of_policies():
    """Handlers raise `Retry` with a delay, and tasks get policies from it."""
    assert Retry("5s").delay_ms == 5000
    assert Retry().delay_ms is None
    assert Retry(0).delay_ms == 0
    assert Retry.exponential("1s", cap="10m") == RetryPolicy.exponential("1s", cap="10m")
    assert Retry.fixed("1s") == RetryPolicy.fixed("1s")
    assert Retry.intervals("1s", "2s") == RetryPolicy.intervals("1s", "2s")
    assert Retry.none() == RetryPolicy.none()


def test_release_is_at_once_or_after_a_delay():
    """A released message is ready at once, or after a delay."""
    assert Release().delay_ms == 0
    assert Release(delay="250ms").delay_ms == 250


def test_reasons_are_kept():
    """A reason is kept, and is the text of the exception."""
    assert (Discard("old").reason, Bury("bad").reason) == ("old", "bad")
    assert (str(Discard("old")), str(Bury())) == ("old", "")


@each("raised", [Retry("5s"), Retry(), Discard("x"), Bury("x"), Release("1s"), LetExpire()])
def test_control_flow_is_not_an_error_and_crosses_processes(raised):
    """Control flow is not an error of qworker, and survives pickling."""
    assert isinstance(raised, ControlFlow)
    assert not isinstance(raised, QworkerError)
    copy = pickle.loads(pickle.dumps(raised))
    assert (type(copy), vars(copy)) == (type(raised), vars(raised))


@each("raised", [Retry, Release])
@each("delay", ["soon", -1, float("nan"), True, "1e9d"])
def test_a_delay_that_is_not_a_duration_is_refused(raised, delay):
    """A delay that is not a duration is refused."""
    with pytest.raises(InvalidOptionError) as caught:
        raised(delay)
    assert caught.value.field == "delay"
