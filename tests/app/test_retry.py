"""Retry policies: how long a failed message waits."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from qworker.app.retry import RetryPolicy
from qworker.errors import InvalidOptionError, TimeLimitError
from tests.tables import each


def never() -> float:
    return 0.0


def always() -> float:
    return 0.999_999


def waits(policy: RetryPolicy, count: int) -> list[int]:
    return [policy.delay_ms(nacks, never) for nacks in range(1, count + 1)]


def test_exponential_doubles_up_to_its_cap():
    """Exponential waits double up to their cap."""
    policy = RetryPolicy.exponential("1s", cap="10s")
    assert waits(policy, 6) == [1000, 2000, 4000, 8000, 10_000, 10_000]


def test_waits_grow_by_the_factor():
    """Waits grow by the factor."""
    assert waits(RetryPolicy.exponential("100ms", factor=1.5), 4) == [100, 150, 225, 338]


def test_fixed_waits_are_equal():
    """Fixed waits are equal."""
    assert waits(RetryPolicy.fixed("5s"), 3) == [5000] * 3


def test_the_last_interval_is_repeated():
    """The last interval is repeated."""
    assert waits(RetryPolicy.intervals("1s", "10s", "1m"), 5) == [
        1000,
        10_000,
        60_000,
        60_000,
        60_000,
    ]


def test_without_retries_a_failure_is_final():
    """Without retries a failure is final."""
    assert RetryPolicy.none().is_final
    assert waits(RetryPolicy.none(), 2) == [0, 0]
    assert not RetryPolicy.fixed(0).is_final


def test_the_count_of_nacks_begins_with_one():
    """Fewer nacks than one count as one."""
    assert RetryPolicy.exponential("1s").delay_ms(0, never) == 1000


def test_jitter_only_makes_waits_longer():
    """Jitter is added: waits may exceed the cap or the fixed wait, and are never shorter."""
    assert RetryPolicy.exponential("1s", cap="10s", jitter=0.2).delay_ms(9, always) == 11_999
    assert RetryPolicy.fixed("1s", jitter=1.0).delay_ms(1, always) == 1999
    assert RetryPolicy.fixed("1s").delay_ms(1, always) == 1000


@given(
    first=st.integers(1, 10**9),
    further=st.integers(0, 10**9),
    factor=st.floats(1, 1000),
    jitter=st.floats(0, 1),
    nacks=st.integers(-1, 10**6),
    chance=st.floats(0, 1, exclude_max=True),
)
def test_a_wait_is_never_shorter_than_asked(first, further, factor, jitter, nacks, chance):
    """A wait is never shorter than asked, nor longer than the cap plus jitter, at any count."""
    cap = first + further
    policy = RetryPolicy(steps_ms=(first,), factor=factor, cap_ms=cap, jitter=jitter)
    wait = policy.delay_ms(nacks, lambda: chance)
    assert first <= policy.delay_ms(nacks, never) <= wait <= cap + cap * jitter


@each(
    "make",
    [
        pytest.param(lambda: RetryPolicy.exponential("soon"), id="not a duration"),
        pytest.param(lambda: RetryPolicy.exponential(0), id="nothing to multiply"),
        pytest.param(
            lambda: RetryPolicy.exponential("1m", cap="1s"), id="cap under the first wait"
        ),
        pytest.param(lambda: RetryPolicy.exponential("1s", factor=0.5), id="shrinking"),
        pytest.param(lambda: RetryPolicy.exponential("1s", factor=float("nan")), id="factor NaN"),
        pytest.param(lambda: RetryPolicy.exponential("1s", jitter=1.1), id="jitter over 1"),
        pytest.param(lambda: RetryPolicy.exponential("1s", jitter=True), id="jitter True"),
        pytest.param(lambda: RetryPolicy.fixed(-1), id="negative"),
        pytest.param(lambda: RetryPolicy.fixed(float("inf")), id="infinite"),
        pytest.param(lambda: RetryPolicy.intervals(), id="no interval"),
        pytest.param(lambda: RetryPolicy.intervals("1s", "5"), id="interval without unit"),
        pytest.param(lambda: RetryPolicy(steps_ms=(1.5,)), id="step that is not an int"),
        pytest.param(
            lambda: RetryPolicy(steps_ms=(1,), cap_ms=2**53), id="cap beyond every due time"
        ),
    ],
)
def test_policies_out_of_range_are_refused(make):
    """Policies out of range are refused."""
    with pytest.raises(InvalidOptionError) as caught:
        make()
    assert caught.value.field.startswith("retry ")


# -- which errors ------------------------------------------------------------------------------


@each(
    "given, error, gives_up",
    [
        ({}, ValueError(), False),
        ({"on": OSError}, ValueError(), True),
        ({"on": OSError}, ConnectionError(), False),
        ({"on": (OSError, KeyError)}, KeyError(), False),
        ({"give_up_on": ValueError}, UnicodeError(), True),
        ({"give_up_on": ValueError}, OSError(), False),
        ({"on": OSError, "give_up_on": ConnectionError}, ConnectionResetError(), True),
        ({"on": OSError}, TimeLimitError("task", 1.0), False),
        ({"on": OSError, "give_up_on": TimeLimitError}, TimeLimitError("task", 1.0), True),
    ],
)
def test_a_policy_retries_only_some_errors(given, error, gives_up):
    """`on` and `give_up_on` match classes and their subclasses; `give_up_on` wins."""
    for policy in (
        RetryPolicy.exponential("1s", **given),
        RetryPolicy.fixed("1s", **given),
        RetryPolicy.intervals("1s", "2s", **given),
    ):
        assert policy.gives_up_on(error) is gives_up


@each("field", ["on", "give_up_on"])
@each("wrong", [int, "OSError", ValueError("x"), (OSError, 3), None])
def test_anything_but_an_exception_class_is_refused(field, wrong):
    """Exception classes are checked when the policy is made."""
    with pytest.raises(InvalidOptionError, match=f"retry {field}: .* is not an exception class"):
        RetryPolicy.fixed("1s", **{field: wrong})
